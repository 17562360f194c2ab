from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tokenizer import byte_level
from tokenizers import pre_tokenizers

from vlhmm.data import EosRule, Tokenizer, encode, word_tokenizer
from vlhmm.data.encode import LineEncoder
from vlhmm.data.sentencepiece import convert_sentencepiece
from vlhmm.data.splits import SplitBatch
from vlhmm.data.vocabulary import BPELearner

# Spaces of all kinds, the space symbol of SentencePiece, what only Python takes for white space, words.
PARTS = [*"  abé▁\t\xa0\x1c", "</s>", "the ", "return "]
LINES = st.lists(st.none() | st.lists(st.sampled_from(PARTS), max_size=8).map("".join).filter(str.strip))


def bpe_of(lines: list[str | None]) -> Tokenizer:
    learner = BPELearner(min_count=1, vocab_size=300)
    learner.add(SplitBatch("train", lines))
    return learner.tokenizer()


def one_by_one(tokenizer: Tokenizer, lines: list[str | None], eos: EosRule) -> tuple[list[int], list[int]]:
    """The specification: every line through the tokenizer by itself, and line ends too where there are tokens for them."""
    ids: list[int] = []
    ends: list[int] = []
    end = [] if tokenizer.eos_id is None else [tokenizer.eos_id]
    begun = False
    for line in lines:
        if (
            line is not None
            and begun
            and not tokenizer.word_level
            and tokenizer.token_id("Ċ") is not None
            and eos != "line"
        ):
            ids += tokenizer.encode("\n")
        ids += [] if line is None else tokenizer.encode(line)
        begun = line is not None or (begun and eos == "none")
        if (line is None and eos == "document") or (line is not None and eos == "line"):
            ids += end
        if line is None:
            ends.append(len(ids))
    return ids, ends


@pytest.mark.parametrize("kind", ["words", "punctuation", "sentencepiece", "bytes", "bpe"])
@pytest.mark.parametrize("eos", ["line", "document", "none"])
def test_batches_give_the_ids_of_single_lines(
    train_sentencepiece: Callable[..., bytes], kind: str, eos: EosRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = {
        "words": lambda: word_tokenizer(["a", "b", "the", "</s>"]),
        "punctuation": lambda: word_tokenizer(["a", "b", "the", "'"], punctuation=True),
        "bpe": lambda: bpe_of(["the a b\u00e9 return", "the  the\ta", "return the"]),
        "sentencepiece": lambda: convert_sentencepiece(
            train_sentencepiece(normalization_rule_name="identity", remove_extra_whitespaces=False, byte_fallback=True)
        ),
        "bytes": lambda: Tokenizer.from_backend(byte_level()),
    }[kind]()
    # Small enough for the cache to be thrown away now and then, and for words to be encoded in several texts.
    monkeypatch.setattr(encode, "_MAX_CACHED_UNITS", 20)
    monkeypatch.setattr(encode, "_WORDS_A_TEXT", 3)
    # Small enough for lines to be cut, where they may be.
    monkeypatch.setattr(encode, "_PART_CHARS", 4)
    monkeypatch.setattr(encode, "_UNIT_CHARS", 3)
    encoder = LineEncoder(tokenizer, eos)

    @given(LINES)
    def check(lines: list[str | None]) -> None:
        encoded = encoder.encode(lines)
        assert (encoded.ids.tolist(), encoded.document_ends.tolist()) == one_by_one(tokenizer, lines, eos)
        texts = [line for line in lines if line is not None]
        assert encoded.words == sum(len(text.split()) for text in texts)
        assert encoded.bytes == sum(len(text.encode()) + 1 for text in texts)

    check()


@pytest.mark.parametrize(
    "line",
    [
        "猫は犬を見る。庭の中で、走る！" * 40,
        "it's4/5+the_end...thé's<x>" * 20,
        "a b " + "abc,123;" * 50 + "  a  b\t" * 20 + "'ll've" * 30,
        "a" * 90 + "\u0301" * 90 + "。" * 90,
    ],
)
@pytest.mark.parametrize("word_chars", [100, 1000])
def test_lines_without_spaces_are_cut_at_marks(line: str, word_chars: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where words of GPT-2 end, so that no id changes; and a word is not counted for every part of it."""
    monkeypatch.setattr(encode, "_UNIT_CHARS", 7)
    monkeypatch.setattr(encode, "_WORD_CHARS", word_chars)
    tokenizer = bpe_of(["the a b\u00e9 return", "the  the\ta", "猫は犬を見る。庭の中で", "abc,123;it's"])
    encoded = LineEncoder(tokenizer, "none").encode([line])
    assert len(list(encode.cut_before_spaces(line))) > 10 or line[0] == line[1]
    assert encoded.ids.tolist() == tokenizer.encode(line)
    assert encoded.words == len(line.split())
    assert encoded.bytes == len(line.encode()) + 1


def test_words_of_any_length_are_read_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_UNIT_CHARS", 50)
    monkeypatch.setattr(encode, "_WORD_CHARS", 50)
    tokenizer = bpe_of(["xx xx", "the a"])
    line = "the " + "x" * 1000 + " a"
    encoded = LineEncoder(tokenizer, "none").encode([line])
    assert max(map(len, encode.cut_before_spaces(line))) <= 100
    assert tokenizer.decode(encoded.ids) == line
    assert (encoded.words, encoded.bytes) == (3, len(line) + 1)


def test_a_line_that_cannot_be_cut_and_takes_too_much_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "_PART_CHARS", 4)
    monkeypatch.setattr(encode, "MAX_UNCUT_CHARS", 10)
    backend = byte_level()
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    whole, words = Tokenizer.from_backend(backend), word_tokenizer(["a"])
    assert len(LineEncoder(whole, "none").encode(["a a a a aa"]).ids) == 10
    assert len(LineEncoder(words, "none").encode(["a a a a aa aa aa aa"]).ids) == 8
    for tokenizer, line in ((whole, "a a a a aaa"), (words, "a a a a\x1caaa")):
        with pytest.raises(ValueError, match=r"a line of 11 characters.* for 10 at most"):
            LineEncoder(tokenizer, "none").encode([line])


def test_an_eos_rule_needs_an_eos() -> None:
    backend = byte_level("<unusual>")
    tokenizer = Tokenizer.from_backend(backend)
    assert tokenizer.eos_id is None
    assert len(LineEncoder(tokenizer, "none").encode(["ab", None]).ids) == 2
    with pytest.raises(ValueError, match="no end-of-text token"):
        LineEncoder(tokenizer, "document")
