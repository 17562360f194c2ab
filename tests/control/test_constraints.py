"""Constraints against plain Python predicates on the decoded text, for every way to spell it in tokens."""

import itertools
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tokenizers
import torch
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, pre_tokenizers, trainers

from vlhmm import Tokenizer
from vlhmm.control import (
    Constraint,
    TokenTexts,
    contains,
    contains_all,
    contains_any,
    ends_with,
    excludes,
    explain_empty,
    in_order,
    length,
    regex,
    starts_with,
    words,
)
from vlhmm.control.constraints import AllOf, AnyOf, Not
from vlhmm.control.count_constraints import MAX_COUNT, Length, Words
from vlhmm.control.pattern_constraints import Regex
from vlhmm.control.phrase_constraints import Phrases
from vlhmm.data import load_tokenizer, word_tokenizer

SUBWORDS = TokenTexts((b"a", b"b", b" ", b"ab", b" a", "é".encode(), b"\xc3", b"\xa9", "“".encode(), None))
SPELT_WORDS = TokenTexts((b"a", b"b", b"ab", b"a.b", "aé".encode(), None), joiner=b" ")
WORD_CHARACTER = r"[A-Za-z0-9_\u00c0-\u1fff\u3000-\uffff]"


def text_of(tokens: tuple[int, ...], texts: TokenTexts) -> bytes:
    return texts.joiner.join(texts.bytes_of_token[token] or b"" for token in tokens)


def sequences(texts: TokenTexts, longest: int) -> Iterator[tuple[tuple[int, ...], str]]:
    """All token sequences that spell UTF-8, with what they spell."""
    spelt = [token for token, text in enumerate(texts.bytes_of_token) if text is not None]
    for size in range(longest + 1):
        for tokens in itertools.product(spelt, repeat=size):
            try:
                yield tokens, text_of(tokens, texts).decode()
            except UnicodeDecodeError:
                continue


def holds(constraint: Constraint, text: str, num_tokens: int) -> bool:
    """The meaning of a constraint, in terms of `re` and `str`."""
    match constraint:
        case Phrases(phrases, whole_words, ignore_case, at_start, at_end):
            found = [_found(phrase, whole_words) for phrase in phrases]
            pattern = r"\s*" * at_start + ".*".join(found) + r"\s*\Z" * at_end
            search = re.match if at_start else re.search
            return bool(search(pattern, text, re.DOTALL | (re.IGNORECASE if ignore_case else 0)))
        case Words(at_least, at_most):
            return at_least <= len(text.split()) and (at_most is None or len(text.split()) <= at_most)
        case Length(at_least, at_most):
            return at_least <= num_tokens and (at_most is None or num_tokens <= at_most)
        case Regex(pattern, strip):
            return bool(re.fullmatch(pattern, text.strip() if strip else text))
        case AllOf(parts):
            return all(holds(part, text, num_tokens) for part in parts)
        case AnyOf(parts):
            return any(holds(part, text, num_tokens) for part in parts)
        case Not(part):
            return not holds(part, text, num_tokens)
        case _:
            raise AssertionError(constraint)


def _found(phrase: str, whole_words: bool) -> str:
    before = f"(?<!{WORD_CHARACTER})" if whole_words and re.match(WORD_CHARACTER, phrase[0]) else ""
    after = f"(?!{WORD_CHARACTER})" if whole_words and re.match(WORD_CHARACTER, phrase[-1]) else ""
    return f"{before}{re.escape(phrase)}{after}"


PHRASES = ["a", "b", "ab", "a b", "é", "b a", "“", "a“", "ba", "A", "É", "a a"]
OPTIONS = ["", ", whole_words=False", ", ignore_case=True", ", whole_words=False, ignore_case=True"]


# As one types them: objects made here would have their types checked inside the strategy, with random numbers of its own.
@st.composite
def written(draw: st.DrawFn, depth: int = 2) -> str:
    if depth and draw(st.booleans()):
        first, second = draw(written(depth - 1)), draw(written(depth - 1))
        return draw(st.sampled_from([f"(({first}) & ({second}))", f"(({first}) | ({second}))", f"~({first})"]))
    name = draw(
        st.sampled_from(
            [contains, contains_all, contains_any, in_order, excludes, starts_with, ends_with, words, length, regex]
        )
    ).__name__
    if name in ("words", "length"):
        low = draw(st.integers(0, 3))
        return f"{name}({low}, {draw(st.one_of(st.none(), st.integers(low, 4)))})"
    if name == "regex":
        strip = draw(st.sampled_from(["", ", strip=True"]))
        return f"regex({draw(st.sampled_from(['a*', '.*b', '(a|é)[^b]*', '[^“]+']))!r}{strip})"
    several = name in ("contains_all", "contains_any", "in_order", "excludes")
    phrases = draw(st.lists(st.sampled_from(PHRASES), min_size=1, max_size=3 if several else 1))
    return f"{name}({', '.join(map(repr, phrases))}{draw(st.sampled_from(OPTIONS))})"


@given(written())
def test_subwords_are_accepted_as_their_text_is(typed: str) -> None:
    constraint: Constraint = eval(typed)
    automaton = constraint.compile(SUBWORDS)
    wrong = [
        t for tokens, t in sequences(SUBWORDS, 3) if automaton.accepts(tokens) != holds(constraint, t, len(tokens))
    ]
    assert wrong == []


@given(written())
def test_words_are_accepted_as_their_text_is(typed: str) -> None:
    constraint: Constraint = eval(typed)
    automaton = constraint.compile(SPELT_WORDS)
    wrong = [
        t for tokens, t in sequences(SPELT_WORDS, 4) if automaton.accepts(tokens) != holds(constraint, t, len(tokens))
    ]
    assert wrong == []


@given(written())
def test_what_is_printed_can_be_typed(typed: str) -> None:
    constraint = eval(typed)
    again = eval(repr(constraint))
    assert again == constraint
    assert hash(again) == hash(constraint)


@given(written())
def test_tokens_without_text_are_never_accepted(typed: str) -> None:
    constraint: Constraint = eval(typed)
    automaton = constraint.compile(SUBWORDS)
    special = len(SUBWORDS.bytes_of_token) - 1
    assert not any(automaton.accepts(tokens) for tokens in [(special,), (0, special), (special, 2, 0)])


@pytest.mark.parametrize(
    ("constraint", "text", "expected"),
    [
        (contains("loss"), "a loss.", True),
        (contains("loss"), "(loss)", True),
        (contains("loss"), "“loss”—", True),
        (contains("loss"), "the glossary", False),
        (contains("loss"), "losses", False),
        (contains("loss"), "losses, loss", True),
        (contains("loss"), "lossé", False),
        (contains("loss", whole_words=False), "the glossary", True),
        (contains("loss", ignore_case=True), "LoSS", True),
        (contains("straße", ignore_case=True), "STRASSE", True),
        (contains("<unk>"), "a<unk>b", True),
        (in_order("loss", "(x)"), "loss(x)", True),
        (in_order("a", "a"), "a", False),
        (in_order("b", "a"), "a b", False),
        (starts_with("The"), " \nThe end", True),
        (starts_with("The"), "Theirs", False),
        (ends_with("end."), "The end. \n", True),
        (ends_with("end"), "The end, my friend", False),
        (ends_with("a a"), "a a a", True),
        (words(2, 3), "  one\ttwo ", True),
        (words(0, 0), " \n", True),
        (regex("[0-9]+ words"), "12 words", True),
        (regex("[0-9]+ words"), " 12 words", False),
        (regex("[0-9]+ words"), "12 words\n", False),
        (regex("[0-9]+ words", strip=True), " 12 words\n", True),
        (excludes("\n"), "a\nb", False),
    ],
)
def test_phrases_mean_what_one_expects(constraint: Constraint, text: str, expected: bool) -> None:
    every_byte = TokenTexts(tuple(bytes([byte]) for byte in range(256)))
    assert constraint.compile(every_byte).accepts(text.encode()) == expected


def byte_level_bpe() -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=320,
        special_tokens=["<|endoftext|>", "<pad>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the loss function of the glossary, naïve café — “losses”"] * 3, trainer)
    return backend


def metaspace_bpe() -> tokenizers.Tokenizer:
    pieces = [
        "<unk>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "l",
        "o",
        "s",
        "ss",
        "lo",
        "loss",
        "▁loss",
    ]
    merges = [("s", "s"), ("l", "o"), ("lo", "ss"), ("▁", "loss")]
    backend = tokenizers.Tokenizer(
        models.BPE({piece: i for i, piece in enumerate(pieces)}, merges, unk_token="<unk>", byte_fallback=True)
    )
    backend.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    backend.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    backend.add_special_tokens(["<unk>", "</s>"])
    return backend


@dataclass(frozen=True)
class FromTransformers:
    """What `transformers` gives."""

    backend_tokenizer: tokenizers.Tokenizer
    all_special_ids: list[int]


def spellings(text: bytes, texts: TokenTexts, generator: torch.Generator) -> tuple[int, ...]:
    """A random way to spell a text."""
    tokens: list[int] = []
    while text:
        fits = [i for i, piece in enumerate(texts.bytes_of_token) if piece and text.startswith(piece)]
        tokens.append(fits[int(torch.randint(len(fits), (), generator=generator))])
        text = text[len(texts.bytes_of_token[tokens[-1]] or b"") :]
    return tuple(tokens)


@pytest.mark.parametrize("backend", [byte_level_bpe(), metaspace_bpe()])
def test_all_spellings_in_a_real_tokenizer_are_judged_by_their_text(backend: tokenizers.Tokenizer) -> None:
    tokenizer = Tokenizer.from_backend(backend)
    texts = TokenTexts.of(tokenizer)
    assert tokenizer.eos_id is not None
    assert texts.bytes_of_token[tokenizer.eos_id] is None
    assert TokenTexts.of(FromTransformers(backend, [tokenizer.eos_id])) == texts
    generator = torch.Generator().manual_seed(0)
    constraint = contains("loss") & words(2, 6) & excludes("café", "glossary")
    automaton = constraint.compile(tokenizer)
    for text in ["the loss function", "a glossary of loss", "the losses", "naïve — “loss”", "café loss", "loss"]:
        ways = {tuple(tokenizer.encode(text)), *(spellings(text.encode(), texts, generator) for _ in range(20))}
        assert len(ways) > 1
        for tokens in ways:
            assert tokenizer.backend.decode(tokens, skip_special_tokens=False) == text
            assert automaton.accepts(tokens) == holds(constraint, text, len(tokens))


@pytest.mark.data
def test_llama_tokens_spell_their_text() -> None:
    tokenizer = load_tokenizer(Path(os.environ["VLHMM_DATA"]) / "tokenizers" / "llama2_tokenizer.model")
    texts = TokenTexts.of(tokenizer)
    for text in ["The loss function — “naïve” 好 😀", "x = 3\n\ty"]:
        assert text_of(tuple(tokenizer.encode(text)), texts).decode().removeprefix(" ") == text
    automaton = contains("loss function").compile(tokenizer)
    assert automaton.accepts(tokenizer.encode("the loss function is"))
    assert not automaton.accepts(tokenizer.encode("the loss functions are"))


def test_unknown_word_is_a_word_and_eos_is_none() -> None:
    tokenizer = word_tokenizer(["the", "cat"])
    assert tokenizer.eos_id is not None
    assert contains("<unk>").compile(tokenizer).accepts(tokenizer.encode("the dog"))
    assert not excludes("<unk>").compile(tokenizer).accepts(tokenizer.encode("the dog"))
    anything = length(0).compile(tokenizer)
    assert not anything.accepts([tokenizer.eos_id])
    assert anything.ending_at(tokenizer.eos_id, required=True).accepts([*tokenizer.encode("the cat"), tokenizer.eos_id])


def test_spaces_are_between_words_only() -> None:
    automaton = in_order(" ", "b").compile(SPELT_WORDS)
    assert [automaton.accepts(tokens) for tokens in [(1,), (0, 1), (1, 0)]] == [False, True, False]


def test_padded_and_unusable_tokens_are_never_accepted() -> None:
    texts = TokenTexts((b"a", b"b")).padded_to(3).only(torch.tensor([True, False, True]))
    automaton = words(0, 9).compile(texts)
    assert [automaton.accepts([token]) for token in range(3)] == [True, False, False]


def test_large_vocabulary_has_few_classes() -> None:
    numbers = TokenTexts(tuple(f" {number}".encode() for number in range(50_000)))
    automaton = (contains_all("7", "13 14", "499") & words(3, 9)).compile(numbers)
    assert automaton.num_classes <= 6
    assert automaton.accepts([499, 13, 14, 7])
    assert not automaton.accepts([499, 14, 13, 7])


TOKENIZER = word_tokenizer(["the", "cat", "sat", "on", "a", "mat"])


@pytest.mark.parametrize(
    ("constraint", "max_tokens", "explanation"),
    [
        (contains("the cat") & words(2, 9), None, None),
        (contains("the cat sat on") & words(0, 9), 4, None),
        (
            words(0, 9) & length(1, 2) & contains("cat sat on"),
            None,
            "length(1, 2) & contains('cat sat on') is impossible: no text satisfies these 2 parts together; leave one out",
        ),
        (
            contains("cat") & contains("zoo"),
            None,
            "contains('zoo') is impossible: no token that can be used spells 'z'; choose other words",
        ),
        (
            contains("sat tea"),
            None,
            "contains('sat tea') is impossible: no token that can be used spells 'tea'; choose other words",
        ),
        (
            words(1) & contains("the cat sat"),
            2,
            "contains('the cat sat') takes at least 3 tokens, but at most 2 are allowed; allow more",
        ),
        (
            regex("[0-9]+"),
            5,
            "regex('[0-9]+') is impossible: no sequence of the tokens that can be used satisfies it; change it",
        ),
    ],
)
def test_guilty_parts_are_named(constraint: Constraint, max_tokens: int | None, explanation: str | None) -> None:
    assert explain_empty(constraint, TOKENIZER, max_tokens) == explanation


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda: contains(""), "empty"),
        (lambda: in_order(), "0 phrases"),
        (lambda: contains_all(), "0 parts"),
        (lambda: starts_with(" a"), "white space at its ends.*write 'a'"),
        (lambda: words(3, 2), r"words\(3, 2\) is no range"),
        (lambda: length(-1, 2), r"length\(-1, 2\) is no range"),
        (lambda: length(0, MAX_COUNT + 1), f"beyond {MAX_COUNT:,}"),
        (lambda: TokenTexts((b"a", b"b")).padded_to(1), "2 tokens, more than the 1"),
    ],
)
def test_bad_constraint_is_refused(write: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        write()  # type: ignore[operator]


def test_tokenizer_of_another_kind_is_refused() -> None:
    backend = tokenizers.Tokenizer(models.WordPiece({"a": 0, "##b": 1, "[UNK]": 2}, unk_token="[UNK]"))
    backend.decoder = decoders.WordPiece()
    with pytest.raises(ValueError, match="decoder is WordPiece"):
        contains("a").compile(Tokenizer.from_backend(backend))
