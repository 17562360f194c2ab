"""Text from files: lines in batches, never a file as a whole, with document ends marked."""

import codecs
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, get_args

Split = Literal["train", "valid", "test"]
SPLITS: Final[tuple[Split, ...]] = get_args(Split)
SUFFIXES: Final = (".txt", ".txt.gz", ".txt.xz", ".jsonl", ".jsonl.gz", ".jsonl.xz", ".parquet")

BATCH_CHARS: Final = 1 << 20
# One line is held in memory as a whole; more than this is a file without line ends.
MAX_LINE_CHARS: Final = 1 << 26
_SPLIT_NAME: Final = re.compile(r"(train|valid|val|dev|test)(?![a-z])|(validation)", re.IGNORECASE)


@dataclass(frozen=True)
class Batch:
    """Lines in order; None ends a document."""

    lines: list[str | None]
    bytes_read: int
    """Bytes of the file, as it lies on disk, read so far."""


def text_files(inputs: str | Path | Sequence[str | Path]) -> list[Path]:
    """The text files named, and those directly in the folders named, folders in sorted order."""
    paths = [Path(inputs)] if isinstance(inputs, str | Path) else [Path(path) for path in inputs]
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            found = sorted(p for p in path.iterdir() if _has_suffix(p) and p.is_file() and p.name[0] != ".")
            if not found:
                raise ValueError(f"folder {path} has 0 text files; supported are {', '.join(SUFFIXES)}")
            files += found
        elif not path.is_file():
            raise ValueError(f"no file or folder at {path}; give text in one of {', '.join(SUFFIXES)}")
        elif not _has_suffix(path):
            raise ValueError(f"{path} is of no supported kind; supported are {', '.join(SUFFIXES)}")
        else:
            files.append(path)
    if not files:
        raise ValueError("0 text files given; name at least one")
    return files


def files_by_split(files: Iterable[Path]) -> dict[Split, list[Path]] | None:
    """Files sorted by names that begin with train, valid (val, validation, dev) or test.

    None where none does, or all of them are for training: then the text has to be split by document.
    """
    splits: dict[Split, list[Path]] = {split: [] for split in SPLITS}
    unnamed: list[Path] = []
    for file in files:
        match = _SPLIT_NAME.match(file.name)
        if match is None:
            unnamed.append(file)
        else:
            name = match.group().lower()
            splits["valid" if name in ("val", "validation", "dev") else _split_named(name)].append(file)
    if not splits["valid"] and not splits["test"]:
        return None
    if unnamed:
        raise ValueError(
            f"{unnamed[0]} belongs to no split, {len(unnamed)} such files beside others named train, valid or test; "
            "rename or move it"
        )
    missing = [split for split in SPLITS if not splits[split]]
    if missing:
        raise ValueError(f"no text for {' and '.join(missing)}; add a file named {missing[0]}.txt, or name no splits")
    return splits


def read_batches(path: Path) -> Generator[Batch, None, None]:
    """The file's lines, none of them blank, and no document empty.

    A document ends at a blank line of a text file, at the end of a record of the other kinds (the text under `text`),
    and at the end of the file.
    """
    begun = False
    try:
        for batch in _marked_batches(path):
            lines: list[str | None] = []
            for line in batch.lines:
                if line is not None or begun:
                    lines.append(line)
                begun = line is not None
            yield Batch(lines, batch.bytes_read)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 ({error.reason}); convert it first") from error
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is damaged or cut short: {error}; fetch it again") from error


def _marked_batches(path: Path) -> Iterator[Batch]:
    """The file's lines, with None for every blank line, record end and file end."""
    if path.name.endswith(".parquet"):
        yield from _parquet_batches(path)
    elif ".jsonl" in path.suffixes:
        yield from _jsonl_batches(path)
    else:
        for lines, bytes_read in read_raw_lines(path):
            yield Batch([line if line and not line.isspace() else None for line in lines], bytes_read)
    yield Batch([None], path.stat().st_size)


def read_raw_lines(path: Path) -> Iterator[tuple[list[str], int]]:
    """Batches of the lines of a text file, blank ones too, without their ends; with each the bytes read so far."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    rest = ""
    with path.open("rb") as raw, _unpack(raw, path) as stream:
        while block := stream.read(BATCH_CHARS):
            # A carriage return at the block's end may be half of a line end: it waits for the next block.
            text = rest + decoder.decode(block)
            held = "\r" if text.endswith("\r") else ""
            lines = _unify_line_ends(text.removesuffix("\r")).split("\n")
            rest = lines.pop() + held
            if len(rest) > MAX_LINE_CHARS:
                raise ValueError(
                    f"{path} has a line of more than {MAX_LINE_CHARS} characters; the limit keeps memory bounded: "
                    "break its lines"
                )
            yield lines, raw.tell()
        last = _unify_line_ends(rest + decoder.decode(b"", final=True)).split("\n")
        # Text after the last line end is a line; nothing after it is not.
        yield last if last[-1] else last[:-1], raw.tell()


def _unpack(raw: io.BufferedReader, path: Path) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    return lzma.LZMAFile(raw) if path.suffix == ".xz" else raw


def _unify_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _jsonl_batches(path: Path) -> Iterator[Batch]:
    number = 0
    for rows, bytes_read in read_raw_lines(path):
        lines: list[str | None] = []
        for row in rows:
            number += 1
            if row.strip():
                lines += _record_lines(_record_text(row, path, number))
        yield Batch(lines, bytes_read)


def _record_text(row: str, path: Path, number: int) -> str:
    try:
        record = json.loads(row)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, line {number} is no JSON: {error}; write one object a line") from error
    if not isinstance(record, dict) or not isinstance(record.get("text"), str):
        keys = ", ".join(map(str, record)) if isinstance(record, dict) else "none"
        raise ValueError(f'{path}, line {number} has no string under "text" (its keys: {keys}); rename the key')
    return str(record["text"])


def _parquet_batches(path: Path) -> Iterator[Batch]:
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError as error:
        raise ValueError(f'{path} needs the extra for parquet files: pip install "vlhmm[parquet]"') from error
    size = path.stat().st_size
    try:
        file = parquet.ParquetFile(path)
    except pyarrow.ArrowInvalid as error:
        raise ValueError(f"{path} is damaged or no parquet file: {error}; fetch it again") from error
    with file:
        if "text" not in file.schema_arrow.names:
            raise ValueError(
                f"{path} has no column text (its columns: {', '.join(file.schema_arrow.names)}); rename the column"
            )
        rows_read = 0
        for table in file.iter_batches(batch_size=256, columns=["text"]):
            rows_read += len(table)
            lines: list[str | None] = []
            for text in table.column(0).to_pylist():
                if text is not None:
                    lines += _record_lines(text)
            yield Batch(lines, size * rows_read // max(file.metadata.num_rows, 1))


def _record_lines(text: str) -> list[str | None]:
    lines = [line for line in _unify_line_ends(text).split("\n") if line and not line.isspace()]
    return [*lines, None]


def _has_suffix(path: Path) -> bool:
    return path.name.endswith(SUFFIXES)


def _split_named(name: str) -> Split:
    return next(split for split in SPLITS if split == name)
