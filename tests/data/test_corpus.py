import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from test_tokenizer import byte_level

from vlhmm.data import Tokenizer, load_corpus, word_tokenizer
from vlhmm.data.benchmarks import benchmark_batches


def write_splits(folder: Path) -> Path:
    folder.mkdir()
    (folder / "train.txt").write_text("a b a\nb c\n\na\n")
    (folder / "valid.txt").write_text("a x\n")
    (folder / "test.txt").write_text("b\n\nb\n")
    return folder


def test_words_of_a_text_get_eos_per_line_and_documents_at_blank_lines(tmp_path: Path) -> None:
    corpus = load_corpus(write_splits(tmp_path / "text"), tokenizer="words")
    names = corpus.tokenizer.tokens()
    assert [names[i] for i in corpus.train.ids] == ["a", "b", "a", "<eos>", "b", "<unk>", "<eos>", "a", "<eos>"]
    assert corpus.train.offsets.tolist() == [0, 7, 9]
    assert [names[i] for i in corpus.valid.ids] == ["a", "<unk>", "<eos>"]
    assert (corpus.train.words, corpus.train.bytes, corpus.test.num_documents) == (6, 12, 2)


def test_text_with_unk_of_its_own_keeps_every_word(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "text")
    (folder / "train.txt").write_text("a b <unk> once\n")
    assert load_corpus(folder, tokenizer="words").tokenizer.token_id("once") is not None


def test_subwords_get_eos_per_document(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_backend(byte_level())
    tokenizer.save(tmp_path / "tokenizer.json")
    corpus = load_corpus(write_splits(tmp_path / "text"), tokenizer=tmp_path)
    assert tokenizer.decode(corpus.train.ids) == "a b a\nb c\na"
    assert corpus.train.count(tokenizer.eos_id) == corpus.train.num_documents == 2


def test_the_hash_knows_text_splits_and_tokenizer(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "text")
    tokenizer = word_tokenizer(["a", "b", "c", "d"])
    first = load_corpus(folder, tokenizer=tokenizer)
    assert load_corpus(folder, tokenizer=tokenizer).hash == first.hash
    hashes = {first.hash, load_corpus(folder, tokenizer=word_tokenizer(["a", "b", "c", "e"])).hash}
    (folder / "test.txt").write_text("b\n\nc\n")
    hashes.add(load_corpus(folder, tokenizer=tokenizer).hash)
    # The same ids, but one document.
    (folder / "test.txt").write_text("b\nb\n")
    hashes.add(load_corpus(folder, tokenizer=tokenizer).hash)
    assert len(hashes) == 4
    assert first.hash.startswith(first.short_hash)


def test_held_out_texts_may_be_named(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "text")
    by_name = load_corpus(folder)
    given = load_corpus(folder / "train.txt", valid=folder / "valid.txt", test=folder / "test.txt")
    assert given.hash == by_name.hash
    with pytest.raises(ValueError, match="name both"):
        load_corpus(folder / "train.txt", valid=folder / "valid.txt")
    with pytest.raises(ValueError, match="its own valid"):
        load_corpus("ptb", valid=folder / "valid.txt", test=folder / "test.txt")


def test_an_empty_split_is_refused(tmp_path: Path) -> None:
    folder = write_splits(tmp_path / "text")
    (folder / "valid.txt").write_text("\n\n")
    with pytest.raises(ValueError, match="0 tokens for valid"):
        load_corpus(folder)


def test_an_unknown_name_gets_the_nearest_known_one() -> None:
    with pytest.raises(ValueError, match="did you mean wikitext-2"):
        load_corpus("wikitext2")
    with pytest.raises(ValueError, match="pydocs, ptb, wikitext-2"):
        load_corpus("no/such/file.txt")


def test_articles_begin_at_titles_between_blank_lines(tmp_path: Path) -> None:
    lines = [" ", " = First = ", " ", " x ", " = = Part = = ", " ", " = 3 = ", " y ", " ", " = Second = ", " ", " z "]
    (tmp_path / "x.txt").write_text("\n".join(lines) + "\n")
    (batch,) = benchmark_batches("wikitext-2", {"train": tmp_path / "x.txt"})
    assert batch.lines == [*lines[:9], None, *lines[9:], None]


def test_a_wrong_checksum_names_file_expected_and_found(tmp_path: Path) -> None:
    write_splits(tmp_path / "ptb")
    with pytest.raises(ValueError, match=r"train\.txt .* SHA-256 [0-9a-f]{64}, expected fcea919f"):
        load_corpus("ptb", data_dir=tmp_path)
    with pytest.raises(ValueError, match=r"wikitext-2/train\.txt is missing"):
        load_corpus("wikitext-2", data_dir=tmp_path)


def test_without_data_or_hub_the_remedies_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLHMM_DATA", raising=False)
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(ValueError, match=r"--data-dir or VLHMM_DATA.*vlhmm\[hub\]"):
        load_corpus("ptb")


def test_a_fetched_text_that_differs_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hub = ModuleType("datasets")
    hub.load_dataset = lambda *_, **__: [{"sentence": "not the treebank"}]  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", hub)
    monkeypatch.delenv("VLHMM_DATA", raising=False)
    monkeypatch.setenv("VLHMM_CACHE", str(tmp_path))
    with pytest.raises(ValueError, match="expected fcea919f"):
        load_corpus("ptb")
    assert list(tmp_path.rglob("*.txt")) == []


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "sizes", "vocab_size", "documents"),
    [
        ("ptb", [929_589, 73_760, 82_430], 10_000, [42_068, 3_370, 3_761]),
        ("wikitext-2", [2_088_628, 217_646, 245_569], 33_278, [600, 60, 60]),
    ],
)
def test_benchmarks_have_their_published_sizes(
    name: str, sizes: list[int], vocab_size: int, documents: list[int]
) -> None:
    corpus = load_corpus(name)
    splits = (corpus.train, corpus.valid, corpus.test)
    assert [len(tokens) for tokens in splits] == sizes
    assert [tokens.num_documents for tokens in splits] == documents
    assert corpus.tokenizer.vocab_size == vocab_size
    assert corpus.train.bytes == (Path(os.environ["VLHMM_DATA"]) / name / "train.txt").stat().st_size
    counts = [corpus.train.count(token) for token in range(0, vocab_size, 997)]
    assert counts == sorted(counts, reverse=True)


@pytest.mark.data
@pytest.mark.parametrize("name", ["ptb", "wikitext-2"])
def test_the_hubs_form_of_the_lines_gives_the_published_files(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(os.environ["VLHMM_DATA"]) / name

    def load_dataset(*_: str, split: str, **__: str) -> Iterator[dict[str, Any]]:
        """PTB's sentences come stripped; WikiText's blank lines come empty, the others as they are."""
        text = (folder / f"{split.removesuffix('ation')}.txt").read_bytes().decode()
        for line in text.removesuffix("\n").split("\n"):
            yield {"sentence": line.strip()} if name == "ptb" else {"text": f"{line}\n" if line.strip() else ""}

    hub = ModuleType("datasets")
    hub.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", hub)
    monkeypatch.delenv("VLHMM_DATA")
    monkeypatch.setenv("VLHMM_CACHE", str(tmp_path))
    fetched = load_corpus(name)
    # Fetched once: the second time nothing is asked for.
    monkeypatch.setitem(sys.modules, "datasets", None)
    assert load_corpus(name).hash == fetched.hash
    shutil.rmtree(tmp_path)
