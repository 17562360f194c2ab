"""Regular expressions mean what `re.fullmatch` says."""

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlhmm.control import regex
from vlhmm.control.operations import MAX_STATES
from vlhmm.control.regex import MAX_DEPTH, pattern_automaton

TEXTS = ["".join(text) for size in range(5) for text in itertools.product("ab é\n", repeat=size)]
LEAVES = ["a", "b", "é", " ", ".", r"\w", r"\s", r"\S", "[ab]", "[^a]", "[^aé]", "ab", "", r"\n", "[a-b]"]


def _grown(patterns: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(patterns, patterns).map("".join),
        st.tuples(patterns, patterns).map(lambda pair: f"(?:{pair[0]}|{pair[1]})"),
        st.tuples(patterns, st.sampled_from(["*", "+", "?", "*?", "{2}", "{1,2}", "{2,}", "{,2}"])).map(
            lambda pair: f"({pair[0]}){pair[1]}"
        ),
    )


@given(st.recursive(st.sampled_from(LEAVES), _grown, max_leaves=6))
def test_any_pattern_agrees_with_fullmatch(pattern: str) -> None:
    automaton, stripped = pattern_automaton(pattern), pattern_automaton(pattern, strip=True)
    assert [t for t in TEXTS if automaton.accepts(t.encode()) != bool(re.fullmatch(pattern, t))] == []
    assert [t for t in TEXTS if stripped.accepts(t.encode()) != bool(re.fullmatch(pattern, t.strip()))] == []


@pytest.mark.parametrize(
    "pattern",
    [
        "a|ab",
        r"^ab?$",
        r"\Aa.*\Z",
        "(^a|b)+$",
        "(?i)É|AB",
        "(?s)a.b",
        "(?x) a b  # two letters",
        r"(?a)\w+",
        "(?i:A)b",
        r"(?a:\w)é",
        "(?P<first>a)b",
        r"[\w.-]+ [^\W]",
        r"a\Z|b",
        "(a*)*b",
        "(|a)+",
        "[€-💡]|é",
    ],
)
def test_syntax_agrees_with_fullmatch(pattern: str) -> None:
    automaton, stripped = pattern_automaton(pattern), pattern_automaton(pattern, strip=True)
    texts = [*TEXTS, "É", "AB", "aB", "Ab", "€", "💡", "好", "\u212a", "a-b. b"]
    # `$` is the end of the text, as in other languages; to Python also the place before a last line break.
    whole = [t for t in texts if not ("$" in pattern and t.endswith("\n"))]
    assert [t for t in whole if automaton.accepts(t.encode()) != bool(re.fullmatch(pattern, t))] == []
    assert [t for t in texts if stripped.accepts(t.encode()) != bool(re.fullmatch(pattern, t.strip()))] == []


@pytest.mark.parametrize("pattern", [r"\w", r"\W", r"\d", ".", "[^x]", "(?i)[k-s]", "[\ud7ff-\ue000]"])
def test_every_character_of_unicode_is_in_its_class(pattern: str) -> None:
    automaton = pattern_automaton(pattern)
    # Every code point around the changes of length in UTF-8, and every 311th.
    edges = [0x80, 0x800, 0xD800, 0xE000, 0x10000, 0x10FFFF, 0x212A, 0x17F, 0x660]
    points = {
        *range(0, 0x110000, 311),
        *(edge + shift for edge in edges for shift in (-1, 0, 1) if edge + shift < 0x110000),
    }
    characters = [chr(point) for point in sorted(points) if not 0xD800 <= point < 0xE000 and point not in range(0x21)]
    wrong = [c for c in characters if automaton.accepts(c.encode()) != bool(re.fullmatch(pattern, c))]
    assert wrong == []


@pytest.mark.parametrize(
    "broken", [b"\xc3", b"\x80", b"\xc0\xaf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xe0\x80\x80"]
)
def test_what_is_no_utf8_matches_nothing(broken: bytes) -> None:
    assert not pattern_automaton("(?s).*").accepts(broken)


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a(b", r"unterminated subpattern at position 1: a⟨here⟩\(b"),
        ("ab[c", r"unterminated character set at position 2"),
        ("*a", r"nothing to repeat at position 0"),
        ("(?=a)b", "look-around"),
        ("(?!)b", "look-around"),
        (r"(a)\1", "reference to a group"),
        ("a*+b", "possessive repetition"),
        (r"\ba", "word boundary"),
        ("(?m)^a$", "line anchor"),
        ("((a{99}){99}){99}", f"more than {MAX_STATES:,} automaton states"),
        ("(?:){0,999999999}", f"more than {MAX_STATES:,} automaton states"),
        ("(" * 400 + ")" * 400, f"nested 400 deep in a pattern of 800 characters, at most {MAX_DEPTH}"),
        ("(?:" * 101 + "a" + ")" * 101, "nested 101 deep"),
        ("a{99999999999}", "too large"),
    ],
)
def test_bad_pattern_is_refused_when_written(pattern: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        regex(pattern)


@pytest.mark.parametrize("group", ["(", "(?:"])
def test_groups_nested_as_deep_as_allowed_agree_with_fullmatch(group: str) -> None:
    # Parentheses that are characters do not count.
    automaton = pattern_automaton(group * MAX_DEPTH + r"a\([()][](][^](]" + ")" * MAX_DEPTH)
    assert automaton.accepts(b"a()(b")
    assert not automaton.accepts(b"a()((")


def test_pattern_of_too_many_states_is_refused() -> None:
    with pytest.raises(ValueError, match=f"more than {MAX_STATES:,} automaton states"):
        pattern_automaton("(?:a|b)*a(?:a|b){20}")
