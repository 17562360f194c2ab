"""Text files as train, valid and test: by the files' names, or by document."""

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final

from vlhmm.data.remote import TextPath, bytes_of
from vlhmm.data.sources import SPLITS, Batch, Split, StrPath, files_by_split, read_batches, text_files

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

    files: list[TextPath]
    splits: list[Split] | None
    """The split of each file; None where the text is to be split by document."""
    lines_are_documents: bool

    @property
    def size(self) -> int:
        """Bytes of all files as they lie on disk."""
        return sum(self.sizes)

    @property
    def sizes(self) -> list[int]:
        """Bytes of each file."""
        return [bytes_of(file) for file in self.files]

    def batches(self) -> Iterator[SplitBatch]:
        """All of the text, in one pass."""
        document = done = 0
        for number, size in enumerate(self.sizes):
            for batch in self.batches_of(number, document):
                yield replace(batch, bytes_read=done + batch.bytes_read)
                document += batch.lines.count(None)
            done += size
        if self.splits is None:
            require_documents(document)

    def batches_of(self, number: int, first_document: int = 0) -> Iterator[SplitBatch]:
        """The text of one file; documents before it decide the splits of its own, where these are told by document."""
        file, document = self.files[number], first_document
        for batch in self._read(file):
            if self.splits is not None:
                yield SplitBatch(self.splits[number], batch.lines, batch.bytes_read, str(file))
                continue
            kept: dict[Split, list[str | None]] = {split: [] for split in SPLITS}
            for line in batch.lines:
                kept[split_of(document)].append(line)
                document += line is None
            for split, lines in kept.items():
                if lines:
                    yield SplitBatch(split, lines, batch.bytes_read, str(file))

    def _read(self, file: TextPath) -> Iterator[Batch]:
        for batch in read_batches(file):
            if self.lines_are_documents:
                ended = [mark for line in batch.lines if line is not None for mark in (line, None)]
                yield Batch(ended, batch.bytes_read)
            else:
                yield batch


def require_documents(count: int) -> None:
    """Refuses a text that has too few of them to hold some out."""
    if count < GROUP:
        raise ValueError(
            f"{count} documents, at least {GROUP} are needed to split them into train, valid and test; part the "
            "text by blank lines, or give valid and test texts"
        )


def find_text(inputs: StrPath | Sequence[StrPath], held_out: tuple[StrPath, StrPath] | None = None) -> Text:
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


def _lines_are_documents(files: Iterable[TextPath]) -> bool:
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
