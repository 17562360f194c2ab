"""Text at an address is read as the same file on disk is."""

import gzip
import importlib.util
import json
import lzma
from collections.abc import Iterator
from pathlib import Path

import fsspec
import pytest

from vlhmm.data import load_corpus, prepare
from vlhmm.data.remote import RemotePath, text_path
from vlhmm.data.sources import read_batches, text_files

LINES = [f"line {number} é \u2028 of {number % 5} words" for number in range(400)]


@pytest.fixture
def files(tmp_path: Path) -> Path:
    """One text in every kind of file."""
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    folder = tmp_path / "text"
    folder.mkdir()
    plain = "".join(f"{line}\n" + "\n" * (number % 3 == 0) for number, line in enumerate(LINES)).encode()
    rows = "".join(json.dumps({"text": line}) + "\n" for line in LINES).encode()
    for name, content in (("train", plain), ("valid", rows)):
        suffix = {"train": "txt", "valid": "jsonl"}[name]
        (folder / f"{name}-0.{suffix}").write_bytes(content)
        (folder / f"{name}-1.{suffix}.gz").write_bytes(gzip.compress(content))
        (folder / f"{name}-2.{suffix}.xz").write_bytes(lzma.compress(content))
    parquet.write_table(pyarrow.table({"text": LINES}), folder / "test.parquet")
    return folder


@pytest.fixture
def in_memory(files: Path) -> Iterator[str]:
    memory = fsspec.filesystem("memory")
    for file in files.iterdir():
        memory.pipe(f"/corpus/{file.name}", file.read_bytes())
    yield "memory://corpus"
    memory.rm("/corpus", recursive=True)


def test_the_memory_file_system_holds_the_same_corpus(files: Path, in_memory: str, tmp_path: Path) -> None:
    on_disk = load_corpus(files, tokenizer="words")
    assert load_corpus(in_memory, tokenizer="words").hash == on_disk.hash
    assert prepare(in_memory, "words", tmp_path / "out").hash == on_disk.hash
    train, valid, test = (sorted(RemotePath(in_memory).iterdir(), key=str)[place] for place in (1, 4, 0))
    named = load_corpus(str(train), valid=str(valid), test=str(test), tokenizer="words")
    local = [files / path.name for path in (train, valid, test)]
    assert named.hash == load_corpus(local[0], valid=local[1], test=local[2], tokenizer="words").hash


def test_the_local_file_system_holds_the_same_corpus(files: Path, tmp_path: Path) -> None:
    on_disk = prepare(files, "words", tmp_path / "disk")
    assert prepare(f"file://{files}", "words", tmp_path / "out").hash == on_disk.hash
    for file in text_files(files):
        remote = text_path(f"file://{file}")
        assert isinstance(remote, RemotePath)
        batches = list(read_batches(remote))
        assert [batch.lines for batch in batches] == [batch.lines for batch in read_batches(file)]
        assert batches[-1].bytes_read == remote.num_bytes == file.stat().st_size


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("memory://nowhere/a.txt", "no corpus 'memory://nowhere/a.txt'"),
        ("nosuch://bucket/a.txt", "nosuch://bucket/a.txt cannot be read: Protocol not known: nosuch"),
    ],
)
def test_an_address_that_leads_nowhere_is_refused(url: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_corpus(url)


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    if importlib.util.find_spec("s3fs") is None:
        with pytest.raises(ValueError, match=r"s3://bucket/a\.txt cannot be read: Install s3fs"):
            load_corpus("s3://bucket/a.txt")
    monkeypatch.setattr("vlhmm.data.remote.find_spec", lambda name: None)
    with pytest.raises(
        ValueError, match=r"s3://bucket/a.txt needs the extra for addresses: pip install 'vlhmm\[hub\]'"
    ):
        load_corpus("s3://bucket/a.txt")


def test_an_error_while_reading_names_the_address(in_memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> bytes:
        raise ConnectionError("reset by peer")

    monkeypatch.setattr("fsspec.implementations.memory.MemoryFile.read", broken)
    with pytest.raises(ValueError, match=r"train-0\.txt cannot be read: reset by peer; check the address"):
        list(read_batches(RemotePath(f"{in_memory}/train-0.txt")))
