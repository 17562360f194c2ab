"""The record of which word is in which block, and its text form."""

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from vlhmm.data.atomic import atomic_write

_ESCAPES = {"\\": "\\\\", "\t": "\\t", "\n": "\\n", "\r": "\\r"}
_UNESCAPES = {"\\": "\\", "t": "\t", "n": "\n", "r": "\r"}


@dataclass(frozen=True, eq=False)
class Blocks:
    """A partition of the vocabulary into blocks: word x is in block `block_of_word[x]`, and no block is empty.

    Example:
        >>> import numpy as np
        >>> blocks = vlhmm.Blocks(np.array([0, 0, 1, 1, 1]), num_blocks=2)
        >>> blocks.vocab_size, blocks.words(1).tolist()
        (5, [2, 3, 4])
    """

    block_of_word: npt.NDArray[np.int64]
    """The block of each word."""
    num_blocks: int
    """Number of blocks."""
    information: float | None = None
    """Mutual information of the blocks of adjacent words, in nats; None: not measured."""
    seconds: float | None = None
    """Wall time of the clustering; None: not measured."""

    def __post_init__(self) -> None:
        ids = self.block_of_word
        if not isinstance(ids, np.ndarray) or ids.ndim != 1 or ids.dtype != np.int64 or len(ids) == 0:
            shape = getattr(ids, "shape", None)
            raise ValueError(
                f"block_of_word must be a flat int64 array of at least 1 word, not {type(ids).__name__} "
                f"of shape {shape}, dtype {getattr(ids, 'dtype', None)}"
            )
        if ids.min() < 0 or ids.max() >= self.num_blocks:
            raise ValueError(
                f"blocks from {ids.min()} to {ids.max()}; {self.num_blocks} blocks are 0..{self.num_blocks - 1}"
            )
        sizes = np.bincount(ids, minlength=self.num_blocks)
        if not sizes.all():
            raise ValueError(
                f"block {int(sizes.argmin())} of {self.num_blocks} has no word; number the blocks without gaps"
            )

    def __repr__(self) -> str:
        measured = "" if self.information is None else f", {self.information:.3f} nats"
        return f"Blocks({self.vocab_size:,} words, {self.num_blocks:,} blocks{measured})"

    @property
    def vocab_size(self) -> int:
        """Number of words, X."""
        return len(self.block_of_word)

    def words(self, block: int) -> npt.NDArray[np.int64]:
        """Return the words of one block.

        Args:
            block: Number of the block.

        Returns:
            Token ids, ascending.

        Raises:
            ValueError: There is no such block.

        Example:
            >>> import numpy as np
            >>> vlhmm.Blocks(np.array([0, 0, 1, 1, 1]), num_blocks=2).words(0).tolist()
            [0, 1]
        """
        if not 0 <= block < self.num_blocks:
            raise ValueError(f"block {block} is outside 0..{self.num_blocks - 1}")
        return np.flatnonzero(self.block_of_word == block)

    def save(self, path: str | os.PathLike[str], tokens: Sequence[str], counts: npt.ArrayLike) -> None:
        """Write a line `block<TAB>word<TAB>count` for each word, atomically.

        Lines are sorted by block, then by falling count. Backslash, tab and line ends in a word are escaped as in Python.

        Args:
            path: The file.
            tokens: Names of the words, in the order of their ids.
            counts: How often each word occurs.

        Raises:
            ValueError: The number of names or counts is not that of the words, or two names are equal.

        Example:
            >>> import numpy as np
            >>> from pathlib import Path
            >>> vlhmm.Blocks(np.array([1, 0, 0]), num_blocks=2).save("blocks.tsv", ["the", "cat", "dog"], [9, 4, 5])
            >>> print(Path("blocks.tsv").read_text().expandtabs(4), end="")
            0   dog 5
            0   cat 4
            1   the 9
        """
        counts = np.asarray(counts)
        if len(tokens) != self.vocab_size or counts.shape != (self.vocab_size,):
            raise ValueError(
                f"{self.vocab_size} words have a block, but {len(tokens)} names and counts of shape {counts.shape} "
                "were given"
            )
        _ids_of(tokens)
        order = np.lexsort((np.arange(self.vocab_size), -counts.astype(np.int64), self.block_of_word))
        lines = [f"{self.block_of_word[i]}\t{_escape(tokens[i])}\t{int(counts[i])}\n" for i in order]
        atomic_write(Path(path), "".join(lines).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str], tokens: Sequence[str]) -> "Blocks":
        """Read the blocks that `save` wrote.

        Args:
            path: The file.
            tokens: Names of the words, in the order of their ids.

        Returns:
            The blocks.

        Raises:
            ValueError: A line cannot be read, or the words are not those of the vocabulary.

        Example:
            >>> import numpy as np
            >>> vlhmm.Blocks(np.array([1, 0, 0]), num_blocks=2).save("blocks.tsv", ["the", "cat", "dog"], [9, 4, 5])
            >>> vlhmm.Blocks.load("blocks.tsv", ["the", "cat", "dog"]).block_of_word.tolist()
            [1, 0, 0]
        """
        id_of = _ids_of(tokens)
        block_of_word = np.full(len(tokens), -1, np.int64)
        try:
            lines = Path(path).read_bytes().decode("utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text (byte {error.start}); is it a file of blocks?") from error
        if lines[-1] == "":
            lines.pop()
        for number, line in enumerate(lines, start=1):
            fields = line.removesuffix("\r").split("\t")
            where = f"{path}, line {number}"
            if len(fields) != 3:
                raise ValueError(f"{where}: {len(fields)} fields; a line is block<TAB>word<TAB>count")
            block, name, count = fields
            if not (block.isascii() and block.isdecimal() and count.isascii() and count.isdecimal()):
                raise ValueError(f"{where}: block {block!r} and count {count!r} must be whole numbers of 0 or more")
            # One block a word at most, so a larger number leaves gaps; it might not even fit an int64.
            if len(block) > 18 or int(block) >= len(tokens):
                raise ValueError(
                    f"{where}: block {block}; {len(tokens)} words fill blocks 0..{len(tokens) - 1} at most"
                )
            word = id_of.get(_unescape(name, where))
            if word is None:
                raise ValueError(f"{where}: {name!r} is not in the vocabulary; were the blocks made for another one?")
            if block_of_word[word] >= 0:
                raise ValueError(f"{where}: {name!r} has a block already; each word has one line")
            block_of_word[word] = int(block)
        missing = np.flatnonzero(block_of_word < 0)
        if len(missing):
            raise ValueError(
                f"{path}: {len(missing)} of {len(tokens)} words have no line, {tokens[missing[0]]!r} for one; "
                "were the blocks made for another vocabulary?"
            )
        try:
            return cls(block_of_word, int(block_of_word.max(initial=-1)) + 1)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error


def one_block(vocab_size: int) -> Blocks:
    """All words in one block: every state can emit every word, a dense HMM."""
    return Blocks(np.zeros(vocab_size, np.int64), 1)


def one_word_per_block(vocab_size: int) -> Blocks:
    """Every word a block of its own: a cloned HMM."""
    return Blocks(np.arange(vocab_size), vocab_size)


def random_blocks(vocab_size: int, num_blocks: int, generator: np.random.Generator) -> Blocks:
    """Words dealt out at random, block sizes equal to within one word."""
    if not 1 <= num_blocks <= vocab_size:
        raise ValueError(f"{num_blocks} blocks for {vocab_size} words; ask for 1 to {vocab_size}")
    return Blocks(generator.permutation(np.arange(vocab_size) % num_blocks), num_blocks)


def _ids_of(tokens: Sequence[str]) -> dict[str, int]:
    id_of = {token: i for i, token in enumerate(tokens)}
    if len(id_of) != len(tokens):
        repeated = next(token for i, token in enumerate(tokens) if id_of[token] != i)
        raise ValueError(f"the vocabulary names {repeated!r} twice; a file of blocks needs distinct names")
    return id_of


def _escape(word: str) -> str:
    return "".join(_ESCAPES.get(character, character) for character in word)


def _unescape(name: str, where: str) -> str:
    def plain(escape: re.Match[str]) -> str:
        if escape[1] not in _UNESCAPES:
            raise ValueError(f"{where}: unknown escape {escape[0]!r}; known are \\\\, \\t, \\n and \\r")
        return _UNESCAPES[escape[1]]

    return re.sub(r"\\(.?)", plain, name, flags=re.DOTALL)
