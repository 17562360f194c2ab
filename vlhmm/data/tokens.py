"""Token ids of one split, in memory or in a flat file that is memory-mapped.

The file: 8 bytes of magic, version, length of the header, a JSON header, padded to 4,096 bytes in all; the ids, padded to
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
from vlhmm.data.joined import JoinedIds
from vlhmm.data.json_file import parse_json

MAGIC: Final = b"VLHMMTOK"
VERSION: Final = 1
HEADER_BYTES: Final = 4096
_PREFIX: Final = struct.Struct("<8sII")

Ids = npt.NDArray[np.unsignedinteger[Any]] | npt.NDArray[np.int64] | JoinedIds
Offsets = npt.NDArray[np.int64]


def id_dtype(vocab_size: int) -> np.dtype[Any]:
    """The smallest of uint16 and uint32 that holds every id."""
    if not 0 < vocab_size <= 1 << 32:
        raise ValueError(f"a vocabulary of {vocab_size} tokens; token files hold 1 to {1 << 32}")
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


@dataclass(frozen=True, eq=False, repr=False)
class Tokens:
    """Token ids of documents, one after the other: document i is `ids[offsets[i]:offsets[i + 1]]`.

    Example:
        >>> from vlhmm.data import Tokens
        >>> tokens = Tokens.from_documents([[0, 1, 2], [2, 0]], vocab_size=3)
        >>> tokens
        Tokens(5 tokens, 2 documents, uint16)
        >>> tokens.document(1).tolist()
        [2, 0]
    """

    ids: Ids
    """All token ids."""
    offsets: Offsets
    """Where each document begins, and the number of tokens at the end."""
    words: int | None = None
    """Words of the source text, separated by white space, EOS not counted; None: not known."""
    bytes: int | None = None
    """UTF-8 bytes of the source text, line ends included; None: not known."""

    def __post_init__(self) -> None:
        if self.ids.ndim != 1 or self.ids.dtype.kind not in "ui":
            raise ValueError(f"ids must be a flat array of integers, not {self.ids.dtype} of {self.ids.shape}")
        if self.offsets.ndim != 1 or self.offsets.dtype != np.int64 or len(self.offsets) < 1:
            raise ValueError(
                f"offsets must be a flat int64 array of at least 1, not {self.offsets.dtype} of {self.offsets.shape}"
            )
        if self.offsets[0] != 0 or self.offsets[-1] != len(self.ids) or (self.offsets[1:] < self.offsets[:-1]).any():
            raise ValueError(
                f"offsets must rise from 0 to the number of tokens, {len(self.ids)}; these go from "
                f"{self.offsets[0]} to {self.offsets[-1]}"
            )

    @classmethod
    def from_documents(cls, documents: list[list[int]], vocab_size: int) -> "Tokens":
        """Make tokens in memory from lists of token ids.

        Args:
            documents: Token ids of each document.
            vocab_size: Size of the vocabulary; it decides the dtype.

        Returns:
            The tokens.

        Raises:
            ValueError: A token id is out of range.

        Example:
            >>> from vlhmm.data import Tokens
            >>> Tokens.from_documents([[0, 1, 2], [2, 0]], vocab_size=3)
            Tokens(5 tokens, 2 documents, uint16)
        """
        offsets = np.cumsum([0, *map(len, documents)], dtype=np.int64)
        ids = np.fromiter((i for document in documents for i in document), np.int64, count=int(offsets[-1]))
        if len(ids) and not 0 <= ids.min() <= ids.max() < vocab_size:
            raise ValueError(f"token ids from {ids.min()} to {ids.max()}; the vocabulary is 0..{vocab_size - 1}")
        return cls(ids.astype(id_dtype(vocab_size)), offsets)

    @classmethod
    def joined(cls, texts: "list[Tokens]") -> "Tokens":
        """Put texts one after the other without copying their ids, so that those that are memory-mapped stay so.

        Args:
            texts: The texts.

        Returns:
            All documents of the texts, in order.

        Raises:
            ValueError: There are none.

        Example:
            >>> from vlhmm.data import Tokens
            >>> text = Tokens.from_documents([[0, 1, 2], [2, 0]], vocab_size=3)
            >>> twice = Tokens.joined([text, text])
            >>> twice, twice.document(3).tolist()
            (Tokens(10 tokens, 4 documents, uint16), [2, 0])
        """
        if not texts:
            raise ValueError("0 texts to join, at least 1 is needed")
        begins = np.cumsum([0, *map(len, texts)], dtype=np.int64)
        offsets = [text.offsets[1:] + begin for text, begin in zip(texts, begins, strict=False)]
        words, num_bytes = [text.words for text in texts], [text.bytes for text in texts]
        return cls(
            JoinedIds([text.ids for text in texts]),
            np.concatenate([np.zeros(1, np.int64), *offsets]),
            None if None in words else sum(one or 0 for one in words),
            None if None in num_bytes else sum(one or 0 for one in num_bytes),
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __repr__(self) -> str:
        return f"Tokens({len(self):,} tokens, {self.num_documents:,} documents, {self.ids.dtype})"

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.offsets) - 1

    def document(self, index: int) -> Ids:
        """Return the ids of one document.

        Args:
            index: Number of the document, from 0.

        Returns:
            A view of the ids.

        Raises:
            ValueError: There is no such document.

        Example:
            >>> from vlhmm.data import Tokens
            >>> Tokens.from_documents([[0, 1, 2], [2, 0]], vocab_size=3).document(0).tolist()
            [0, 1, 2]
        """
        if not 0 <= index < self.num_documents:
            raise ValueError(f"document {index} is outside 0..{self.num_documents - 1}")
        return self.ids[self.offsets[index] : self.offsets[index + 1]]

    def count(self, token: int | None) -> int:
        """Count how often a token occurs.

        Args:
            token: The token id; None: counts as 0 occurrences.

        Returns:
            The number of occurrences.

        Example:
            >>> from vlhmm.data import Tokens
            >>> Tokens.from_documents([[0, 1, 2], [2, 0]], vocab_size=3).count(2)
            2
        """
        if token is None:
            return 0
        return sum(int((chunk == token).sum()) for chunk in chunks(self.ids))

    def digest(self) -> str:
        """Compute the SHA-256 of ids and offsets.

        Returns:
            64 hexadecimal digits.

        Example:
            >>> from vlhmm.data import Tokens
            >>> Tokens.from_documents([[0, 1, 2], [2, 0]], vocab_size=3).digest()[:12]
            'c4e3d2a39d03'
        """
        sha = hashlib.sha256()
        for array in (self.ids, self.offsets):
            for chunk in chunks(array):
                sha.update(np.ascontiguousarray(chunk).tobytes())
        return sha.hexdigest()

    def save(self, path: str | os.PathLike[str], *, vocab_size: int, tokenizer_hash: str) -> None:
        """Write a token file atomically.

        Args:
            path: The file.
            vocab_size: Size of the vocabulary.
            tokenizer_hash: `Tokenizer.hash` of the tokenizer that made the ids.

        Raises:
            ValueError: A token id is out of range.

        Example:
            >>> from vlhmm.data import Tokens
            >>> Tokens.from_documents([[0, 1, 2], [2, 0]], vocab_size=3).save("text.tokens", vocab_size=3, tokenizer_hash="none")
            >>> Tokens.load("text.tokens")
            Tokens(5 tokens, 2 documents, uint16)
        """
        with token_writer(path, vocab_size=vocab_size, tokenizer_hash=tokenizer_hash) as writer:
            for chunk in chunks(self.ids):
                writer.write(chunk)
            writer.add_documents(self.offsets[1:])
            writer.add_source(self.words, self.bytes)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, tokenizer_hash: str | None = None, verify: bool = False) -> "Tokens":
        """Map a token file into memory.

        Args:
            path: The file.
            tokenizer_hash: `Tokenizer.hash` that the file must have; None: any.
            verify: Read the whole file and check its SHA-256.

        Returns:
            The tokens, read from disk when they are used.

        Raises:
            ValueError: The file is damaged, no token file, or was made with another tokenizer.

        Example:
            >>> from vlhmm.data import Tokens
            >>> Tokens.from_documents([[0, 1, 2], [2, 0]], vocab_size=3).save("text.tokens", vocab_size=3, tokenizer_hash="none")
            >>> Tokens.load("text.tokens", verify=True).ids.tolist()
            [0, 1, 2, 2, 0]
        """
        header = read_header(path)
        if tokenizer_hash is not None and header.tokenizer_hash != tokenizer_hash:
            raise ValueError(
                f"{path} was made with tokenizer {header.tokenizer_hash[:12]}, not {tokenizer_hash[:12]}; "
                "prepare the text again with this tokenizer"
            )
        # numpy cannot map an empty stretch of a file.
        ids = (
            np.memmap(path, header.dtype, "r", HEADER_BYTES, (header.num_tokens,))
            if header.num_tokens
            else np.empty(0, header.dtype)
        )
        offsets = np.memmap(path, "<i8", "r", header.offsets_at, (header.num_documents + 1,))
        try:
            tokens = cls(ids, offsets, header.words, header.bytes)
        except ValueError as error:
            raise ValueError(f"{path} is damaged: {error}; prepare it again") from error
        if verify and tokens.digest() != header.sha256:
            raise ValueError(f"{path} is damaged: its SHA-256 is not {header.sha256}; prepare it again")
        # A file whose checksum is right may still have been written by another program.
        if verify and (largest := max((int(chunk.max()) for chunk in chunks(ids)), default=0)) >= header.vocab_size:
            raise ValueError(
                f"{path} is damaged: it has token id {largest}, the vocabulary is 0..{header.vocab_size - 1}; prepare it again"
            )
        return tokens


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
        # Offsets follow the ids in the file, and may be too many for memory: they wait in a file of their own.
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
        # The header comes last, so that a file without one was never finished.
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


def chunks(array: npt.NDArray[Any] | JoinedIds, size: int = 1 << 22) -> Iterator[npt.NDArray[Any]]:
    """Pieces of a large array, so that a mapped file is never in memory as a whole."""
    for start in range(0, len(array), size):
        yield array[start : start + size]
