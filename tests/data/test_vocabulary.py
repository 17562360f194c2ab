"""Tokenizers made from the training text: byte-level BPE spells every text, words are joined with their punctuation."""

import json
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from vlhmm.data import Tokenizer, load_corpus, prepare, vocabulary
from vlhmm.data.splits import SplitBatch
from vlhmm.data.vocabulary import (
    BPELearner,
    Vocabulary,
    WordCounter,
    _with_short_words,
    _words_of_lines,
    vocab_size_for,
)

TEXT = [
    "The cat sees the dog, and the dog sees the cat.",
    '"Ah!" said he, (Figure 3.14) "I don\'t--well, \'tis 1,000 dogs\' bones; the U.S. is state-of-the-art..."',
    "naïve café, 日本語 and 5 % of $10.",
]
UGLY = [
    *" \t\n",
    "\r\n",
    "é",
    "e\u0301",
    "👩\u200d🚀",
    "<eos>",
    "<unk>",
    "\x00",
    "\u2028",
    "\xa0",
    "The ",
    "dog",
    "'s",
    "\ufeff",
]
texts = st.text(st.characters(codec="utf-8")) | st.lists(st.sampled_from(UGLY)).map("".join)


def learnt(**settings: int) -> Tokenizer:
    learner = BPELearner(**{"min_count": 2, "vocab_size": 320, **settings})
    learner.add(SplitBatch("train", 3 * [*TEXT, None]))
    learner.add(SplitBatch("valid", ["zzzz zzzz zzzz"]))
    return learner.tokenizer()


BPE = learnt()


@given(texts)
def test_pieces_give_every_text_back(text: str) -> None:
    assert BPE.decode(BPE.encode(text)) == text


@given(texts)
def test_a_text_has_the_pieces_of_its_lines(text: str) -> None:
    line_end = BPE.encode("\n")
    by_line = [BPE.encode(line) for line in text.split("\n")]
    assert BPE.encode(text) == sum(([*line_end, *line] for line in by_line[1:]), by_line[0])


def test_pieces_have_every_byte_an_end_and_no_unknown_token() -> None:
    assert {*pre_tokenizers.ByteLevel.alphabet(), "<eos>"} <= {*BPE.tokens()}
    assert BPE.unk_id is None
    assert BPE.spells_every_text
    assert 257 < BPE.vocab_size <= 320
    # Held-out text is not learnt from.
    assert not any("z" in token and len(token) > 1 for token in BPE.tokens())
    assert learnt(vocab_size=257).vocab_size == 257
    assert learnt(min_count=1000).vocab_size == 257
    with pytest.raises(ValueError, match=r"vocab_size is 256.* at least 257"):
        learnt(vocab_size=256)


def test_of_much_text_a_part_from_all_of_it_is_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary, "MAX_LEARNT_CHARS", 50)
    learner = BPELearner(1)
    for number in range(64):
        learner.add(SplitBatch("train", [f"line number {number}"]))
    numbers = [int(part.split()[-1]) for part in learner._parts]
    assert sum(map(len, learner._parts)) <= 50
    assert len(numbers) > 1
    assert len({after - before for before, after in pairwise(numbers)}) == 1


@pytest.mark.parametrize("run", ["x", "ab", " ", "あ", "-", "1", "é"])
def test_a_run_of_any_length_is_learnt_from(run: str) -> None:
    """Learning takes the square of a word's length: 200,000 characters took minutes, in parts they take none."""
    learner = BPELearner(2, 400)
    learner.add(SplitBatch("train", [*TEXT, run * (200_000 // len(run))]))
    tokenizer = learner.tokenizer()
    assert tokenizer.decode(tokenizer.encode(run * 999)) == run * 999
    assert max(map(len, tokenizer.tokens())) <= 3 * vocabulary.MAX_LEARNT_WORD


def test_only_words_that_are_too_long_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is learnt from all other words is what the backend learns from the whole lines."""
    lines = ["the cat、見る。" * 300, "a" * 999 + " " + "b1" * 700, "x  y\t" * 400 + " " * 999, "it's a dog"]
    cut = [text for line in lines for text in _with_short_words(line, _words_of_lines())]
    assert cut == lines
    long = "the " + "a" * 2500 + "'s dog"
    assert "".join(_with_short_words(long, _words_of_lines())) == long
    assert [*map(len, _with_short_words(long, _words_of_lines()))] == [3 + 1000, 1000, 501 + 6]


def test_the_vocabulary_grows_with_the_text_between_bounds() -> None:
    sizes = [vocab_size_for(10**power) for power in range(12)]
    assert sizes == sorted(sizes)
    assert sizes[0] == 512
    assert len(set(sizes)) > 4
    assert sizes[-1] == sizes[-2]


def counted(
    lines: list[str | None], min_count: int = 1, vocab_size: int | None = None, punctuation: bool = True
) -> Tokenizer:
    counter = WordCounter(min_count, vocab_size, punctuation=punctuation)
    counter.add(SplitBatch("train", lines))
    return counter.tokenizer()


def test_words_are_separated_from_punctuation_and_joined_again() -> None:
    tokenizer = counted(list(TEXT))
    names = [tokenizer.token(token) for token in tokenizer.encode(TEXT[1])]
    assert names[:8] == ["``", "Ah", "!", "''", "said", "he", ",", "("]
    assert {"3.14", "don't", "--", "1,000", "U.S", "state-of-the-art", "..."} <= {*names}
    for text in (TEXT[0], TEXT[1]):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert Tokenizer(tokenizer.definition) == tokenizer
    assert tokenizer.encode("dog.") == tokenizer.encode("dog .")
    assert not tokenizer.spells_every_text


def test_a_text_with_its_own_unknown_word_is_split_at_white_space_alone() -> None:
    tokenizer = counted(["a b, <unk> once"], min_count=2)
    assert {"b,", "once"} <= {*tokenizer.tokens()}
    plain = counted(["a b, once"], punctuation=False)
    assert "b," in plain.tokens()


def test_the_most_frequent_words_are_kept() -> None:
    tokenizer = counted(["a a a b b c c d <end>"], vocab_size=4)
    assert {*tokenizer.tokens()} == {"<unk>", "<eos>", "a", "b"}
    assert tokenizer.encode("c") == [tokenizer.unk_id]


def test_a_given_tokenizer_has_its_vocabulary(tmp_path: Path) -> None:
    BPE.save(tmp_path / "tokenizer.json")
    assert Vocabulary.of(tmp_path / "tokenizer.json").tokenizer == BPE
    with pytest.raises(ValueError, match="vocab_size is 300"):
        Vocabulary.of(tmp_path, 300)
    with pytest.raises(ValueError, match="min_count is 0"):
        Vocabulary.of("bpe", min_count=0)
    with pytest.raises(ValueError, match="no tokenizer at wordz"):
        Vocabulary.of("wordz")


def test_documents_keep_their_line_ends(tmp_path: Path) -> None:
    documents = [f"line {i} a\n  line {i} b\r\nlast" for i in range(40)]
    (tmp_path / "text.txt").write_text("\n\n".join(documents) + "\n", newline="")
    corpus = load_corpus(tmp_path / "text.txt")
    held = [corpus.tokenizer.decode(corpus.valid.document(i)) for i in range(corpus.valid.num_documents)]
    assert {*held} <= {document.replace("\r\n", "\n") for document in documents}
    assert corpus.valid.count(corpus.tokenizer.eos_id) == corpus.valid.num_documents
    spelt = "".join(document + "\n" for document in held)
    assert corpus.valid.bytes == len(spelt.encode())
    # A record of JSON lines is a document, and its lines are read as those of a file.
    (tmp_path / "text.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in documents))
    again = load_corpus(tmp_path / "text.jsonl")
    assert again.hash == corpus.hash
    assert prepare(tmp_path / "text.jsonl", None, tmp_path / "out").hash == corpus.hash
    assert prepare(tmp_path / "text.jsonl", "words", tmp_path / "words", min_count=1).tokenizer.word_level
