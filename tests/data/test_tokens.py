import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vlhmm.data import Tokens, token_file
from vlhmm.data.token_file import HEADER_BYTES, id_dtype, read_header, token_writer

HASH = "ab" * 32


def some_tokens() -> Tokens:
    return Tokens(np.arange(11, dtype=np.uint16), np.array([0, 4, 5, 11]), words=7, bytes=40)


def saved(folder: Path) -> Path:
    some_tokens().save(folder / "x.tokens", vocab_size=20, tokenizer_hash=HASH)
    return folder / "x.tokens"


@given(st.lists(st.lists(st.integers(0, 99), min_size=1), max_size=5), st.sampled_from([100, 1 << 16, (1 << 16) + 1]))
def test_loading_inverts_saving(
    tmp_path_factory: pytest.TempPathFactory, documents: list[list[int]], size: int
) -> None:
    path = tmp_path_factory.mktemp("tokens") / "x.tokens"
    tokens = Tokens.from_documents(documents, size)
    tokens.save(path, vocab_size=size, tokenizer_hash=HASH)
    again = Tokens.load(path, tokenizer_hash=HASH, verify=True)
    assert again.ids.dtype == id_dtype(size) == (np.uint16 if size <= 1 << 16 else np.uint32)
    assert [again.document(i).tolist() for i in range(again.num_documents)] == documents
    assert again.digest() == tokens.digest() == read_header(path).sha256
    assert (again.words, again.bytes) == (None, None)


def test_a_loaded_file_is_mapped_and_keeps_the_source_sizes(tmp_path: Path) -> None:
    tokens = Tokens.load(saved(tmp_path))
    assert isinstance(tokens.ids, np.memmap)
    assert (tokens.words, tokens.bytes, len(tokens), tokens.num_documents) == (7, 40, 11, 3)
    assert tokens.document(1).tolist() == [4]
    assert tokens.count(4) == 1
    assert tokens.count(None) == 0


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    content = saved(tmp_path).read_bytes()
    for length in [*range(0, HEADER_BYTES, 97), *range(HEADER_BYTES, len(content))]:
        (tmp_path / "cut.tokens").write_bytes(content[:length])
        with pytest.raises(ValueError, match=r"cut\.tokens"):
            Tokens.load(tmp_path / "cut.tokens")
    (tmp_path / "long.tokens").write_bytes(content + b"x")
    with pytest.raises(ValueError, match="damaged"):
        Tokens.load(tmp_path / "long.tokens")


def test_every_changed_byte_of_the_content_is_found(tmp_path: Path) -> None:
    content = saved(tmp_path).read_bytes()
    header_end = content.index(b"}") + 1
    padding = range(HEADER_BYTES + 22, HEADER_BYTES + 24)
    for position in [*range(header_end), *range(HEADER_BYTES, len(content))]:
        if position in padding:
            continue
        changed = bytearray(content)
        changed[position] ^= 1
        (tmp_path / "changed.tokens").write_bytes(changed)
        with pytest.raises(ValueError):
            Tokens.load(tmp_path / "changed.tokens", verify=True)


def forged(folder: Path, **changes: object) -> Path:
    """A file whose header has been changed and its checksum made to fit."""
    path = saved(folder)
    header = asdict(read_header(path)) | changes
    text = json.dumps({**header, "header_crc": token_file._header_crc(header)}).encode()
    content = path.read_bytes()
    path.write_bytes(
        (content[:12] + len(text).to_bytes(4, "little") + text).ljust(HEADER_BYTES) + content[HEADER_BYTES:]
    )
    return path


def test_ids_outside_the_vocabulary_are_refused_though_the_checksum_is_right(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"x\.tokens is damaged: it has token id 10, the vocabulary is 0\.\.9"):
        Tokens.load(forged(tmp_path, vocab_size=10), verify=True)
    assert len(Tokens.load(forged(tmp_path, vocab_size=11), verify=True)) == 11


@pytest.mark.parametrize(
    "changes",
    [
        {"num_tokens": "11"},
        {"num_tokens": -1},
        {"num_tokens": 10**30},
        {"num_documents": 10**30},
        {"num_documents": True},
        {"vocab_size": 0},
        {"vocab_size": 1 << 60},
        {"dtype": "<u4"},
        {"dtype": "O"},
        {"words": "7"},
        {"sha256": None},
    ],
)
def test_a_header_of_other_types_and_sizes_is_refused(tmp_path: Path, changes: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"x\.tokens is damaged"):
        Tokens.load(forged(tmp_path, **changes))


def test_a_deeply_nested_header_is_refused(tmp_path: Path) -> None:
    content = saved(tmp_path).read_bytes()
    text = b"[" * 4000
    nested = (content[:12] + len(text).to_bytes(4, "little") + text).ljust(HEADER_BYTES) + content[HEADER_BYTES:]
    (tmp_path / "nested.tokens").write_bytes(nested)
    with pytest.raises(ValueError, match=r"nested\.tokens is damaged"):
        Tokens.load(tmp_path / "nested.tokens")


def test_foreign_files_and_tokenizers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no token file"):
        Tokens.load(tmp_path / "missing.tokens")
    (tmp_path / "text.tokens").write_text("plain text " * 1000)
    with pytest.raises(ValueError, match="is no token file"):
        Tokens.load(tmp_path / "text.tokens")
    with pytest.raises(ValueError, match="abababababab, not cdcdcdcdcdcd"):
        Tokens.load(saved(tmp_path), tokenizer_hash="cd" * 32)


def test_an_interrupted_write_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.tokens"

    def write_half() -> None:
        with token_writer(path, vocab_size=20, tokenizer_hash=HASH) as writer:
            writer.write(np.arange(5))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    before = saved(tmp_path).read_bytes()
    with pytest.raises(ValueError, match=r"0\.\.4"):
        some_tokens().save(tmp_path / "x.tokens", vocab_size=5, tokenizer_hash=HASH)
    assert (tmp_path / "x.tokens").read_bytes() == before


def test_pieces_make_the_same_file_as_the_whole(tmp_path: Path) -> None:
    whole = saved(tmp_path).read_bytes()
    with token_writer(tmp_path / "y.tokens", vocab_size=20, tokenizer_hash=HASH) as writer:
        writer.write(np.arange(3))
        # An empty document, twice, and one that ends in a later piece.
        writer.add_documents(np.array([0, 0], np.int64))
        writer.add_source(3, 20)
        writer.write(np.arange(3, 11))
        writer.add_documents(np.array([4, 5, 11], np.int64))
        writer.add_source(4, 20)
    assert (tmp_path / "y.tokens").read_bytes() == whole


def test_documents_must_end() -> None:
    with pytest.raises(ValueError, match="rise from 0 to the number of tokens, 3"):
        Tokens(np.zeros(3, np.uint16), np.array([0, 2]))
    with pytest.raises(ValueError, match="rise"):
        Tokens(np.zeros(3, np.uint16), np.array([0, 2, 1, 3]))
    with pytest.raises(ValueError, match="flat"):
        Tokens(np.zeros((3, 1), np.uint16), np.array([0, 3]))
    with pytest.raises(ValueError, match="document 3 is outside"):
        some_tokens().document(3)
