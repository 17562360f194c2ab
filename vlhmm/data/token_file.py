"""The flat file that token ids are kept in.

It has 8 bytes of magic, version, length of the header, a JSON header, padded to 4,096 bytes in all; the ids, padded to
8 bytes; the document offsets (int64); little-endian throughout. The file's length must agree with the header's numbers.
"""

import hashlib
import json
import os
import struct
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from vlhmm.data.atomic import atomic_file
from vlhmm.data.json_file import parse_json

MAGIC: Final = b"VLHMMTOK"
VERSION: Final = 1
HEADER_BYTES: Final = 4096
_PREFIX: Final = struct.Struct("<8sII")


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of uint16 and uint32 that holds every id."""
    if not 0 < vocab_size <= 1 << 32:
        raise ValueError(f"a vocabulary of {vocab_size} tokens; token files hold 1 to {1 << 32}")
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


@dataclass(frozen=True)
class TokenFileHeader:
    """What a token file says of itself."""

    dtype: str
    vocab_size: int
    tokenizer_hash: str
    num_tokens: int
    num_documents: int
    words: int | None
    bytes: int | None
    sha256: str
    """Of the ids and the offsets, as they stand in the file, without the padding."""

    @property
    def offsets_at(self) -> int:
        """Where the document offsets begin."""
        return _aligned(HEADER_BYTES + self.num_tokens * np.dtype(self.dtype).itemsize)


def read_header(path: str | os.PathLike[str]) -> TokenFileHeader:
    """The header of a token file; truncated, damaged and foreign files are refused."""
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"no token file at {path}; make one with `vlhmm prepare`")
    with path.open("rb") as file:
        block = file.read(HEADER_BYTES)
    size = path.stat().st_size
    if block[: len(MAGIC)] != MAGIC:
        raise ValueError(f"{path} is no token file (it does not begin with {MAGIC.decode()}); use `vlhmm prepare`")
    if len(block) < HEADER_BYTES:
        raise ValueError(f"{path} is cut short: {size} bytes, the header alone has {HEADER_BYTES}; prepare it again")
    _, version, length = _PREFIX.unpack_from(block)
    if version != VERSION:
        raise ValueError(f"{path} has format version {version}, this program reads {VERSION}; prepare it again")
    header = _header_of(block[_PREFIX.size : _PREFIX.size + length])
    if header is None:
        raise ValueError(f"{path} is damaged: its header cannot be read; prepare it again")
    expected = header.offsets_at + 8 * (header.num_documents + 1)
    if size != expected:
        raise ValueError(f"{path} is damaged: {size} bytes, its header says {expected}; prepare it again")
    return header


def _header_of(text: bytes) -> TokenFileHeader | None:
    """None for anything that `TokenWriter` did not write, a wrong type included."""
    try:
        values = parse_json(text, "the header")
        checksum = values.pop("header_crc")
        counts = [values[name] for name in ("vocab_size", "num_tokens", "num_documents")]
        sizes = [values[name] for name in ("words", "bytes")]
        texts = [values[name] for name in ("dtype", "tokenizer_hash", "sha256")]
        sound = (
            checksum == _header_crc(values)
            and all(type(count) is int and count >= 0 for count in counts)
            and all(size is None or type(size) is int for size in sizes)
            and all(type(name) is str for name in texts)
            and values["dtype"] == id_dtype(values["vocab_size"]).str
        )
        return TokenFileHeader(**values) if sound else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None


class TokenWriter:
    """Appends ids and document ends to a token file; made by `token_writer`."""

    def __init__(self, file: BinaryIO, offsets: IO[bytes], vocab_size: int, tokenizer_hash: str) -> None:
        self._file = file
        self._vocab_size = vocab_size
        self._tokenizer_hash = tokenizer_hash
        self._dtype = id_dtype(vocab_size)
        self._sha = hashlib.sha256()
        # Offsets follow the ids in the file, and may not fit into memory: they are buffered in a temporary file.
        self._offsets = offsets
        self._last_end = 0
        self._words: int | None = 0
        self._bytes: int | None = 0
        self.num_tokens = 0
        self.num_documents = 0
        file.write(bytes(HEADER_BYTES))
        self._offsets.write(bytes(8))

    def write(self, ids: npt.NDArray[Any]) -> None:
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < self._vocab_size:
            raise ValueError(f"token ids from {ids.min()} to {ids.max()}; the vocabulary is 0..{self._vocab_size - 1}")
        data = ids.astype(self._dtype, copy=False).tobytes()
        self._sha.update(data)
        self._file.write(data)
        self.num_tokens += len(ids)

    def add_documents(self, ends: npt.NDArray[np.int64]) -> None:
        """Ends of the next documents, in tokens from the file's beginning; documents without tokens are left out."""
        ends = np.unique(ends)
        ends = ends[ends > self._last_end]
        if len(ends):
            self._last_end = int(ends[-1])
            self._offsets.write(ends.astype("<i8").tobytes())
            self.num_documents += len(ends)

    def add_source(self, words: int | None, num_bytes: int | None) -> None:
        """Adds to the size of the source text; None where it is not known, and stays so."""
        self._words = None if self._words is None or words is None else self._words + words
        self._bytes = None if self._bytes is None or num_bytes is None else self._bytes + num_bytes

    def finish(self) -> TokenFileHeader:
        if self._last_end != self.num_tokens:
            raise ValueError(f"the last document ends at token {self._last_end} of {self.num_tokens}; end it first")
        self._file.write(bytes(_aligned(self._file.tell()) - self._file.tell()))
        self._offsets.seek(0)
        while data := self._offsets.read(1 << 22):
            self._sha.update(data)
            self._file.write(data)
        header = TokenFileHeader(
            dtype=self._dtype.str,
            vocab_size=self._vocab_size,
            tokenizer_hash=self._tokenizer_hash,
            num_tokens=self.num_tokens,
            num_documents=self.num_documents,
            words=self._words,
            bytes=self._bytes,
            sha256=self._sha.hexdigest(),
        )
        content = json.dumps({**asdict(header), "header_crc": _header_crc(asdict(header))}).encode()
        # The header is written last: a file without one is incomplete.
        self._file.seek(0)
        self._file.write(_PREFIX.pack(MAGIC, VERSION, len(content)) + content)
        return header


@contextmanager
def token_writer(path: str | os.PathLike[str], *, vocab_size: int, tokenizer_hash: str) -> Iterator[TokenWriter]:
    """Writes a token file piece by piece; it appears under its name only when the block ends well."""
    path = Path(path)
    with atomic_file(path) as file, tempfile.TemporaryFile(dir=path.parent) as offsets:
        writer = TokenWriter(file, offsets, vocab_size, tokenizer_hash)
        yield writer
        writer.finish()


def _aligned(position: int) -> int:
    return -(-position // 8) * 8


def _header_crc(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())
