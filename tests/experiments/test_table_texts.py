"""The text of a table: `english` is made once from the published files alone."""

import hashlib
import lzma
from pathlib import Path

import pytest

import vlhmm
from experiments import texts
from experiments.texts import PREPARED, Prepared, checksums, read_text
from vlhmm.data import word_tokenizer

ENGLISH = "english"
WORDS = ["a", "cat", "sees", "the", "dog"]


@pytest.fixture
def published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder whose files are the published ones."""
    folder, tokenizer = tmp_path / "data", "tokenizers/tokenizer.json"
    digests = {}
    for name in (*PREPARED[ENGLISH].files, tokenizer):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if name == tokenizer:
            word_tokenizer([*WORDS, "<eos>"]).save(path)
        else:
            line = " ".join(WORDS[len(name) % 3 :])
            path.write_bytes(lzma.compress(f"{line}\n\n{line}\n".encode()))
        digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setattr(texts, "SHA256", digests)
    monkeypatch.setitem(PREPARED, ENGLISH, Prepared(PREPARED[ENGLISH].files, tokenizer))
    return folder


def read(data_dir: Path, runs: Path) -> vlhmm.Corpus:
    corpus = list(read_text(ENGLISH, data_dir, runs))[-1]
    assert isinstance(corpus, vlhmm.Corpus)
    return corpus


def test_english_is_tokenized_once(published: Path, tmp_path: Path) -> None:
    corpus = read(published, tmp_path / "runs")
    assert len(corpus.train) > len(corpus.valid) > 0
    # A second time the text itself is not needed.
    (published / "english" / "valid.txt.xz").unlink()
    assert read(published, tmp_path / "runs").hash == corpus.hash
    assert set(checksums(ENGLISH, None).values()) == set(texts.SHA256.values())


def test_a_file_that_is_missing_or_another_is_refused(published: Path, tmp_path: Path) -> None:
    file = published / "english" / "train-1.txt.xz"
    file.write_bytes(lzma.compress(b"another text\n"))
    with pytest.raises(ValueError, match=r"train-1\.txt\.xz has SHA-256 .* another text"):
        read(published, tmp_path / "runs")
    file.unlink()
    with pytest.raises(ValueError, match=r"train-1\.txt\.xz is missing"):
        read(published, tmp_path / "runs")


def test_without_a_data_folder_english_says_what_it_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLHMM_DATA", raising=False)
    with pytest.raises(ValueError, match="--data-dir or VLHMM_DATA"):
        list(read_text(ENGLISH, None, tmp_path))
