"""Compilation ends: with the automaton, or with a refusal that says what was exceeded. No test looks at a real clock."""

import itertools
import re
from collections.abc import Callable, Iterator

import pytest
import torch
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.control import (
    Constraint,
    Guide,
    ImpossibleConstraintError,
    TimeLimitError,
    TokenTexts,
    contains,
    contains_all,
    contains_any,
    excludes,
    explain_empty,
    in_order,
    length,
    regex,
    words,
)
from vlhmm.control.count_constraints import MAX_COUNT, Words
from vlhmm.control.minimise import minimised
from vlhmm.control.operations import MAX_STATES_BETWEEN
from vlhmm.control.regex import MAX_PATTERN, pattern_automaton
from vlhmm.control.time_limit import check_time, limited_to
from vlhmm.data import word_tokenizer

EVERY_BYTE = TokenTexts(tuple(bytes([byte]) for byte in range(256)))
ASCII = TokenTexts(tuple(bytes([byte]) for byte in range(128)))
NAMES = ["".join(letters) for letters in itertools.product("abcdef", repeat=3)]


def ticking() -> Callable[[], float]:
    """A clock that moves on by a second whenever it is read."""
    ticks = itertools.count()
    return lambda: float(next(ticks))


@pytest.mark.parametrize(
    "constraint",
    [
        contains("ab"),
        contains_all("a", "b c"),
        contains_any("a", "b"),
        excludes("ab"),
        in_order("a", "b", "c"),
        words(2, 4),
        length(1, 3),
        regex(r"(\w{1,3} ){0,2}"),
        ~(words(1, 2) & length(2)) | regex("[ab]{2}"),
    ],
    ids=repr,
)
def test_a_limit_refuses_or_changes_nothing(constraint: Constraint) -> None:
    texts = TokenTexts((b"a", b"b", b" ", b"c ", b"ab", "é".encode(), None))
    whole = constraint.compile(texts, time_limit=None)
    told, found = list[str](), None
    while found is None:
        seconds = float(2 ** len(told))
        try:
            with limited_to(seconds, clock=ticking()):
                found = constraint.compile(texts, time_limit=None)
        except TimeLimitError as error:
            told.append(str(error))
    assert len(told) > 1
    assert all(f"within {2**power} s, the time limit" in message for power, message in enumerate(told))
    assert torch.equal(found.next_state, whole.next_state)
    assert torch.equal(found.class_of_token, whole.class_of_token)
    assert torch.equal(found.accepting, whole.accepting)


@pytest.mark.parametrize(("outer", "inner"), [(2.0, 9.0), (9.0, 2.0), (2.0, None), (None, 2.0)])
def test_the_limit_that_ends_first_holds(outer: float | None, inner: float | None) -> None:
    now = 0.0
    with limited_to(outer, clock=lambda: now), limited_to(inner, clock=lambda: now):
        now = 1.9
        check_time("steps", 0)
        now = 2.0
        with pytest.raises(TimeLimitError, match="within 2 s"):
            check_time("steps", 0)
    check_time("steps", 0)
    with limited_to(None):
        check_time("steps", 0)


@pytest.mark.parametrize("seconds", [-1.0, float("nan")])
def test_bad_limit_is_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match=f"time_limit is {seconds}, but must be at least 0 seconds"):
        contains("a").compile(ASCII, time_limit=seconds)


@pytest.fixture(scope="module")
def lm() -> vlhmm.LanguageModel:
    corpus = tiny_corpus()
    torch.manual_seed(0)
    return vlhmm.LanguageModel(tiny_model(corpus), corpus.tokenizer)


@pytest.mark.parametrize(
    "ask",
    [
        lambda lm, limit: lm.generate(constraint=contains("cat"), max_tokens=5, time_limit=limit),
        lambda lm, limit: lm.best_text(constraint=contains("cat"), max_tokens=5, time_limit=limit),
        lambda lm, limit: lm.constraint_probability("the", contains("dog"), 5, time_limit=limit),
        lambda lm, limit: Guide(lm, contains("cat"), max_new_tokens=5, time_limit=limit),
        lambda lm, limit: explain_empty(contains("cat"), lm.tokenizer, time_limit=limit),
        lambda lm, limit: contains("cat").compile(lm.tokenizer, time_limit=limit),
    ],
)
def test_every_way_in_has_the_limit(lm: vlhmm.LanguageModel, ask: Callable[[object, float | None], object]) -> None:
    told = r"not compiled within 0 s, the time limit \(.*: \d+\); raise time_limit, or use fewer or shorter phrases"
    with pytest.raises(TimeLimitError, match=told):
        ask(lm, 0.0)
    ask(lm, None)


def test_parts_that_are_not_found_in_time_are_not_told_apart(
    lm: vlhmm.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    def slow(*_: object, **__: object) -> str:
        raise TimeLimitError

    impossible = contains("cat") & words(0, 0)
    with pytest.raises(ImpossibleConstraintError, match=r"^contains\('cat'\) & words\(0, 0\) is impossible"):
        lm.generate(constraint=impossible, max_tokens=5)
    monkeypatch.setattr("vlhmm.control.possible.explain_empty", slow)
    monkeypatch.setattr("vlhmm.control.possible._guilty", slow)
    with pytest.raises(
        ImpossibleConstraintError, match=r"^no text of 5 tokens satisfies contains\('cat'\) & words\(0, 0\)"
    ):
        lm.generate(constraint=impossible, max_tokens=5)


def test_what_grows_too_large_is_refused_with_the_number(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = regex(".{0,4}").compile(EVERY_BYTE).num_states
    # A character more is a state more, and the states within it: one each for two bytes, two for three, four for four.
    assert regex(".{0,5}").compile(EVERY_BYTE).num_states == needed + 8
    monkeypatch.setattr("vlhmm.control.constraints.MAX_STATES", 40)
    with pytest.raises(ValueError, match=f"needs {needed + 8 * 6}, more than 40 automaton states; use fewer"):
        regex(".{0,10}").compile(EVERY_BYTE)


def test_what_grows_too_large_on_the_way_is_refused() -> None:
    with pytest.raises(ValueError, match=f"needs more than {MAX_STATES_BETWEEN:,} automaton states; use fewer"):
        contains_all(*NAMES[:14]).compile(EVERY_BYTE, time_limit=None)


def test_too_many_kinds_of_tokens_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlhmm.control.token_texts._MAX_CELLS", 30)
    told = r"a table of \d+ kinds of tokens x \d+ automaton states, \d+ cells, at most 30 are allowed; use fewer"
    with pytest.raises(ValueError, match=told):
        contains("abc").compile(ASCII)


def test_long_pattern_is_refused_before_it_is_parsed() -> None:
    with pytest.raises(ValueError, match=r"has 100,001 characters, at most 100,000 are allowed; make it smaller"):
        regex("a" * (MAX_PATTERN + 1))


def test_all_words_in_any_order_take_a_state_for_each_subset() -> None:
    automaton = contains_all(*NAMES[:10]).compile(word_tokenizer(NAMES), time_limit=None)
    # One more for tokens without text.
    assert automaton.num_states == 2**10 + 1
    tokens = word_tokenizer(NAMES).encode(" ".join(NAMES[:10][::-1]))
    assert automaton.accepts(tokens)
    assert not any(automaton.accepts(tokens[:at] + tokens[at + 1 :]) for at in range(10))


def test_words_in_order_take_a_state_each() -> None:
    tokenizer = word_tokenizer(NAMES)
    automaton = in_order(*NAMES[:150]).compile(tokenizer, time_limit=None)
    assert automaton.num_states == 150 + 2
    tokens = tokenizer.encode(" ".join(NAMES[:150]))
    assert automaton.accepts([tokens[5], *tokens])
    assert not automaton.accepts(tokens[:-1])
    assert not automaton.accepts([*tokens[1:], tokens[0]])


@pytest.mark.parametrize(
    ("constraint", "low", "high"),
    [
        (regex("x{0,999}"), 0, 999),
        (regex(".{0,1200}"), 0, 1200),
        (regex("(.{0,30}){0,40}"), 0, 1200),
        (regex("(.{3,4}){20,40}"), 60, 160),
        (regex(r"\w{1,300}"), 1, 300),
        (regex(r"[^\W]{17}"), 17, 17),
        (words(10, 200), None, None),
        (words(3, MAX_COUNT), None, None),
    ],
    ids=repr,
)
def test_counts_end_where_they_should(constraint: Constraint, low: int | None, high: int | None) -> None:
    automaton = constraint.compile(ASCII, time_limit=None)
    if low is None or high is None:
        assert isinstance(constraint, Words)
        low, high = constraint.at_least, constraint.at_most or 0
        for number in (low - 1, low, high, high + 1):
            assert automaton.accepts(b"x " * number) == (low <= number <= high)
    else:
        for number in {0, max(0, low - 1), low, low + 1, high - 1, high, high + 1}:
            assert automaton.accepts(b"x" * number) == (low <= number <= high)


BOUNDS = ["{0}", "{0,0}", "{1}", "{1,1}", "{2}", "{2,3}", "{3,3}", "{0,2}", "{2,}", "{0,}", "+", "?", "{3,4}", "{,1}"]
SPELLINGS = TokenTexts((b"a", b"ab", "é".encode(), b"\xc3", b"\xa9", b"\xa9a", "aé".encode()[:2]))


def all_spelt(texts: TokenTexts, longest: int) -> Iterator[tuple[tuple[int, ...], bytes]]:
    for size in range(longest + 1):
        for tokens in itertools.product(range(texts.num_tokens), repeat=size):
            yield tokens, b"".join(texts.bytes_of_token[token] or b"" for token in tokens)


def matches(pattern: str, text: bytes) -> bool:
    """Bytes that are no UTF-8 match nothing."""
    try:
        return bool(re.fullmatch(pattern, text.decode()))
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("item", ["a", "(?:ab?)", "(?:a|)", r"\w", "(?:é|ab|b)"])
def test_repetition_agrees_with_fullmatch(item: str) -> None:
    texts = {"".join(text) for size in range(8) for text in itertools.product("a", repeat=size)}
    texts |= {"".join(text) for size in range(4) for text in itertools.product("abé", repeat=size)}
    for first, second in itertools.product(BOUNDS, ["", "{0}", "{2}", "{0,2}", "{2,}"]):
        pattern = f"(?:{item}{first}){second}"
        automaton = pattern_automaton(pattern)
        wrong = [text for text in texts if automaton.accepts(text.encode()) != bool(re.fullmatch(pattern, text))]
        assert (pattern, wrong) == (pattern, [])


@pytest.mark.parametrize(
    "pattern",
    ["é{2,3}", r"\w{1,2}", "(é|a){0,2}", "(?:aé){1,2}|a{3}", r"(?a:\w)*é?", ".{2}", "[^é]{0,3}", "(?:é{0}a)*"],
)
def test_tokens_of_pieces_of_characters_agree_with_fullmatch(pattern: str) -> None:
    automaton = regex(pattern).compile(SPELLINGS, time_limit=None)
    wrong = [text for tokens, text in all_spelt(SPELLINGS, 4) if automaton.accepts(tokens) != matches(pattern, text)]
    assert wrong == []


def test_compiled_automata_are_minimal() -> None:
    texts = TokenTexts((b"a", None, b"b", b" ", b"\xc3", b"zz", None))
    for constraint in (contains("a b"), regex("[ab]{2,5}"), length(2, 3) & words(0, 0), ~words(1, 2), regex("q")):
        found = constraint.compile(texts)
        again = minimised(found)
        assert (found.num_states, found.num_classes) == (again.num_states, again.num_classes)
        assert not any(found.accepts(tokens) for tokens in [(1,), (6,), (0, 1), (1, 0), (0, 3, 2, 6)])


def test_vocabulary_without_any_text_has_the_empty_text_alone() -> None:
    texts = TokenTexts((None, None))
    for constraint, expected in ((words(0, 0), True), (length(0, 3), True), (length(1), False), (regex("a?"), True)):
        automaton = constraint.compile(texts)
        assert automaton.accepts([]) == expected
        assert not any(automaton.accepts(tokens) for tokens in [(0,), (1,), (0, 1)])
