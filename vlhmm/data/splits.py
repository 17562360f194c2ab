"""Text files as train, valid and test: by the files' names, or by document."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vlhmm.data.sources import SPLITS, Batch, Split, files_by_split, read_batches, text_files

# Of every so many documents in a row one is for validation, one for test.
GROUP: Final = 20


@dataclass(frozen=True)
class SplitBatch:
    """Lines of one split, in order; None ends a document."""

    split: Split
    lines: list[str | None]
    bytes_read: int = 0
    """Bytes of all files, as they lie on disk, read so far."""
    source: str = ""
    """The file, for an error about its text."""


@dataclass(frozen=True)
class Text:
    """Text files and what is known of them before they are read."""

    files: list[Path]
    splits: list[Split] | None
    """The split of each file; None where the text is to be split by document."""
    lines_are_documents: bool

    @property
    def size(self) -> int:
        """Bytes of all files as they lie on disk."""
        return sum(file.stat().st_size for file in self.files)

    def batches(self) -> Iterator[SplitBatch]:
        """All of the text, in one pass."""
        return self._by_document() if self.splits is None else self._by_file(self.splits)

    def _by_file(self, splits: list[Split]) -> Iterator[SplitBatch]:
        done = 0
        for file, split in zip(self.files, splits, strict=True):
            for batch in self._read(file):
                yield SplitBatch(split, batch.lines, done + batch.bytes_read, str(file))
            done += file.stat().st_size

    def _by_document(self) -> Iterator[SplitBatch]:
        document = done = 0
        for file in self.files:
            for batch in self._read(file):
                kept: dict[Split, list[str | None]] = {split: [] for split in SPLITS}
                for line in batch.lines:
                    kept[split_of(document)].append(line)
                    document += line is None
                for split, lines in kept.items():
                    if lines:
                        yield SplitBatch(split, lines, done + batch.bytes_read, str(file))
            done += file.stat().st_size
        if document < GROUP:
            raise ValueError(
                f"{document} documents, at least {GROUP} are needed to split them into train, valid and test; part the "
                "text by blank lines, or give valid and test texts"
            )

    def _read(self, file: Path) -> Iterator[Batch]:
        for batch in read_batches(file):
            if self.lines_are_documents:
                ended = [mark for line in batch.lines if line is not None for mark in (line, None)]
                yield Batch(ended, batch.bytes_read)
            else:
                yield batch


def find_text(inputs: str | Path | Sequence[str | Path], held_out: tuple[Path, Path] | None = None) -> Text:
    """The text in files or folders; its splits by `held_out` (valid, test), else by the files' names, else none yet."""
    files = text_files(inputs)
    if held_out is None:
        by_split = files_by_split(files)
    else:
        by_split = {"train": files, "valid": text_files(held_out[0]), "test": text_files(held_out[1])}
    if by_split is None:
        return Text(files, None, _lines_are_documents(files))
    files = [file for split in SPLITS for file in by_split[split]]
    return Text(files, [split for split in SPLITS for _ in by_split[split]], _lines_are_documents(files))


def split_of(document: int, group_size: int = GROUP) -> Split:
    """The split of a document by its number: 90 : 5 : 5 for groups of 20, the same on every machine."""
    group, place = divmod(document, group_size)
    draw = hashlib.sha256(str(group).encode()).digest()
    valid = draw[0] % group_size
    test = (valid + 1 + draw[1] % (group_size - 1)) % group_size
    return "valid" if place == valid else "test" if place == test else "train"


def _lines_are_documents(files: Iterable[Path]) -> bool:
    """Whether nothing in these files parts documents: then every line is one."""
    for file in files:
        if not file.name.endswith((".txt", ".txt.gz", ".txt.xz")):
            return False
        ended = False
        with closing(read_batches(file)) as batches:
            for batch in batches:
                for line in batch.lines:
                    if line is not None and ended:
                        return False
                    ended = line is None
    return True
