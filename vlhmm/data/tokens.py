"""Token ids of one split, in memory or in a flat file that is memory-mapped."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from vlhmm.data.joined import JoinedIds
from vlhmm.data.token_file import HEADER_BYTES, id_dtype, read_header, token_writer

Ids = npt.NDArray[np.unsignedinteger[Any]] | npt.NDArray[np.int64] | JoinedIds
Offsets = npt.NDArray[np.int64]


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


def chunks(array: npt.NDArray[Any] | JoinedIds, size: int = 1 << 22) -> Iterator[npt.NDArray[Any]]:
    """Chunks of a large array, so that a memory-mapped file is never loaded whole."""
    for start in range(0, len(array), size):
        yield array[start : start + size]
