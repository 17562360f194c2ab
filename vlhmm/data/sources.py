"""Text from files: lines in batches, never a file as a whole, with document ends marked."""

import codecs
import gzip
import io
import json
import lzma
import os
import re
import zlib
from collections.abc import Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import islice
from typing import Any, Final, Literal, get_args

from vlhmm.data.json_file import one_line
from vlhmm.data.remote import RemotePath, TextPath, bytes_of, text_path

StrPath = str | os.PathLike[str] | RemotePath
"""Of a text: a path, or an address for fsspec."""
Split = Literal["train", "valid", "test"]
SPLITS: Final[tuple[Split, ...]] = get_args(Split)
SUFFIXES: Final = (".txt", ".txt.gz", ".txt.xz", ".jsonl", ".jsonl.gz", ".jsonl.xz", ".parquet")

BATCH_CHARS: Final = 1 << 20
# One line is held in memory as a whole; more than this is a file without line ends. A record's text is held beside its line.
MAX_LINE_BYTES: Final = 1 << 26
MAX_RECORD_BYTES: Final = 1 << 27
# Of an .xz file's decoder: four times what the highest preset takes.
MAX_XZ_BYTES: Final = 1 << 28
_SHOWN_KEYS: Final = 8
_TWO_BYTES: Final = re.compile("[\u0100-\uffff]")
_FOUR_BYTES: Final = re.compile("[\U00010000-\U0010ffff]")
_SURROGATE: Final = re.compile(r"\\u[dD][89a-fA-F]")
_SPLIT_NAME: Final = re.compile(r"(train|valid|val|dev|test)(?![a-z])|(validation)", re.IGNORECASE)


@dataclass(frozen=True)
class Batch:
    """Lines in order; None ends a document."""

    lines: list[str | None]
    bytes_read: int
    """Bytes of the file, as it lies on disk, read so far."""


def text_files(inputs: StrPath | Sequence[StrPath]) -> list[TextPath]:
    """The text files named, and those directly in the folders named, folders in sorted order."""
    paths = paths_of(inputs)
    files: list[TextPath] = []
    for path in paths:
        if path.is_dir():
            inside: list[TextPath] = list(path.iterdir())
            found = sorted(
                (p for p in inside if _has_suffix(p) and p.is_file() and p.name[0] != "."), key=lambda p: p.name
            )
            if not found:
                raise ValueError(f"folder {path} has 0 text files; supported are {', '.join(SUFFIXES)}")
            files += found
        elif not path.is_file():
            raise ValueError(f"no file or folder at {path}; give text in one of {', '.join(SUFFIXES)}")
        elif not _has_suffix(path):
            raise ValueError(f"{path} has an unsupported file type; supported are {', '.join(SUFFIXES)}")
        else:
            files.append(path)
    if not files:
        raise ValueError("0 text files given; name at least one")
    # Before any file is read: one that comes last may be the one that cannot be.
    for path in files:
        _require_reader(path)
    return files


def paths_of(inputs: StrPath | Sequence[StrPath]) -> list[TextPath]:
    """One path or several."""
    if isinstance(inputs, str | os.PathLike | RemotePath):
        return [text_path(inputs)]
    return [text_path(path) for path in inputs]


def _require_reader(path: TextPath) -> None:
    if path.name.endswith(".parquet") and find_spec("pyarrow") is None:
        raise ValueError(f'{path} needs the extra for parquet files: pip install "vlhmm[parquet]"')


def files_by_split(files: Iterable[TextPath]) -> dict[Split, list[TextPath]] | None:
    """Files sorted by names that begin with train, valid (val, validation, dev) or test.

    None where none does, or all of them are for training: then the text has to be split by document.
    """
    splits: dict[Split, list[TextPath]] = {split: [] for split in SPLITS}
    unnamed: list[TextPath] = []
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


def read_batches(path: TextPath) -> Generator[Batch, None, None]:
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
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile, MemoryError) as error:
        raise ValueError(f"{path} is damaged or cut short: {error}; fetch it again") from error


def _marked_batches(path: TextPath) -> Iterator[Batch]:
    """The file's lines, with None for every blank line, record end and file end."""
    if path.name.endswith(".parquet"):
        yield from _parquet_batches(path)
    elif ".jsonl" in path.suffixes:
        yield from _jsonl_batches(path)
    else:
        for lines, bytes_read in read_raw_lines(path):
            yield Batch([line if line and not line.isspace() else None for line in lines], bytes_read)
    yield Batch([None], bytes_of(path))


def read_raw_lines(path: TextPath) -> Iterator[tuple[list[str], int]]:
    """Batches of the lines of a text file, blank ones too, without their ends; with each the bytes read so far."""
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    held = ""
    # Buffered parts of an unfinished line: joining them at every block would take quadratic time for a long line.
    begun = _Line(path)
    with path.open("rb") as raw, _unpack(raw, path) as stream:
        while block := stream.read(BATCH_CHARS):
            # A carriage return at the end of a block may be half of a CRLF: it is buffered until the next block.
            text = held + decoder.decode(block)
            held = "\r" if text.endswith("\r") else ""
            lines = _unify_line_ends(text.removesuffix("\r")).split("\n")
            begun.add(lines[0])
            if len(lines) > 1:
                lines[0] = begun.joined()
                begun.add(lines.pop())
                yield lines, raw.tell()
        last = _unify_line_ends(begun.joined() + held + decoder.decode(b"", final=True)).split("\n")
        # Text after the last line end is a line; nothing after it is not.
        yield last if last[-1] else last[:-1], raw.tell()


class _Line:
    """A buffer for a line that arrives in parts. Joining at every part would take quadratic time for a long line."""

    def __init__(self, path: TextPath) -> None:
        self._path = path
        self._parts: list[str] = []
        self._num_chars, self._bytes_a_char = 0, 1

    def add(self, part: str) -> None:
        """Refuses what is too long before it is joined: one wide character makes all of them wide."""
        self._parts.append(part)
        self._num_chars += len(part)
        self._bytes_a_char = max(self._bytes_a_char, _bytes_a_char(part))
        if self._num_chars * self._bytes_a_char > MAX_LINE_BYTES:
            raise ValueError(
                f"{self._path} has a line of more than {self._num_chars:,} characters, {MAX_LINE_BYTES:,} bytes in memory; the limit "
                "keeps memory bounded: break its lines"
            )

    def joined(self) -> str:
        """The line; the next part begins another."""
        line = "".join(self._parts)
        self._parts.clear()
        self._num_chars, self._bytes_a_char = 0, 1
        return line


def _bytes_a_char(text: str) -> int:
    """What Python takes for each character of a text."""
    if text.isascii():
        return 1
    return 4 if _FOUR_BYTES.search(text) else 2 if _TWO_BYTES.search(text) else 1


def _unpack(raw: io.BufferedReader, path: TextPath) -> io.BufferedIOBase:
    if path.suffix == ".gz":
        return gzip.GzipFile(fileobj=raw)
    if path.suffix != ".xz":
        return raw
    # The header decides how much memory is taken, and the file's reader has no limit of its own.
    lzma.LZMADecompressor(memlimit=MAX_XZ_BYTES).decompress(raw.peek(1 << 16), max_length=1)
    return lzma.LZMAFile(raw)


def _unify_line_ends(text: str) -> str:
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def _jsonl_batches(path: TextPath) -> Iterator[Batch]:
    number = 0
    for rows, bytes_read in read_raw_lines(path):
        lines: list[str | None] = []
        rows.reverse()
        while rows:
            number += 1
            # Taken out, so that a long row is not held beside the lines that are made of it.
            if not rows[-1] or rows[-1].isspace():
                rows.pop()
            else:
                for part in _record_parts(_record_text(rows.pop(), path, number)):
                    lines += part
                    # Many lines of one record take several times its text.
                    if part[-1] is not None:
                        yield Batch(lines, bytes_read)
                        lines = []
        yield Batch(lines, bytes_read)


def _record_text(row: str, path: TextPath, number: int) -> str:
    escapes = row.count("\\u")
    surrogates = bool(escapes) and _SURROGATE.search(row) is not None
    bytes_a_char = 4 if surrogates else max(2 if escapes else 1, _bytes_a_char(row))
    if (size := (len(row) - 5 * escapes) * bytes_a_char) > MAX_RECORD_BYTES:
        raise ValueError(
            f"{path}, line {number} has a text of up to {size:,} bytes in memory, the limit is {MAX_RECORD_BYTES:,}: "
            "break it into several records"
        )
    try:
        record = json.loads(row)
    except RecursionError:
        raise ValueError(f"{path}, line {number} is JSON nested too deeply; write one object a line") from None
    # An integer of more than 4,300 digits is a plain ValueError.
    except ValueError as error:
        raise ValueError(f"{path}, line {number} is no JSON: {error}; write one object a line") from None
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        keys = _shown_keys(record) if isinstance(record, dict) else "none"
        raise ValueError(f'{path}, line {number} has no string under "text" (its keys: {keys}); rename the key')
    if surrogates:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(
                f"{path}, line {number} has half a character, \\u{ord(text[error.start]):04x}, at character {error.start:,} "
                "of its text; no UTF-8 can hold it: repair the escapes"
            ) from None
    return text


def _shown_keys(record: dict[str, object]) -> str:
    more = f" and {len(record) - _SHOWN_KEYS} more" if len(record) > _SHOWN_KEYS else ""
    return ", ".join(one_line(key, 40) for key in islice(record, _SHOWN_KEYS)) + more


def _parquet_batches(path: TextPath) -> Iterator[Batch]:
    _require_reader(path)
    if isinstance(path, RemotePath):
        # The library closes what it has opened itself, and nothing else.
        with path.open("rb") as opened:
            yield from _parquet_texts(opened, path)
    else:
        yield from _parquet_texts(path, path)


def _parquet_texts(opened: Any, path: TextPath) -> Iterator[Batch]:
    import pyarrow
    from pyarrow import parquet

    size = bytes_of(path)
    try:
        file = parquet.ParquetFile(opened, page_checksum_verification=True)
    # Metadata that cannot be parsed is an OSError, names that are no UTF-8 a UnicodeDecodeError.
    except (pyarrow.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
        raise ValueError(f"{path} is damaged or no parquet file: {one_line(error)}; fetch it again") from None
    with file:
        try:
            schema = file.schema_arrow
            kinds = [field.type for field in schema if field.name == "text"]
        except (pyarrow.ArrowException, OSError, UnicodeDecodeError, MemoryError) as error:
            raise ValueError(f"{path} is damaged: {one_line(error)}; fetch it again") from None
        if not kinds:
            raise ValueError(
                f"{path} has no column text (its columns: {one_line(', '.join(schema.names))}); rename the column"
            )
        if len(kinds) > 1 or not _is_text(kinds[0]):
            raise ValueError(
                f"{path} has text of type {one_line(', '.join(map(str, kinds)))}, one column of strings is needed"
            )
        rows_read = 0
        batches = file.iter_batches(batch_size=256, columns=["text"])
        while True:
            try:
                texts = next(batches).column(0).to_pylist()
            except StopIteration:
                return
            except UnicodeDecodeError:
                raise
            except (pyarrow.ArrowException, OSError, ValueError, MemoryError) as error:
                raise ValueError(
                    f"{path} is damaged after row {rows_read:,}: {one_line(error)}; fetch it again"
                ) from None
            rows_read += len(texts)
            lines: list[str | None] = []
            for text in texts:
                if text is not None:
                    lines += _record_lines(text)
            yield Batch(lines, min(size, size * rows_read // max(file.metadata.num_rows, 1)))


def _is_text(kind: Any) -> bool:
    """A type whose values are strings, plain or by dictionary."""
    from pyarrow import types

    value = kind.value_type if types.is_dictionary(kind) else kind
    views = getattr(types, "is_string_view", lambda _: False)
    return bool(types.is_string(value) or types.is_large_string(value) or views(value))


def _record_lines(text: str) -> list[str | None]:
    return [line for part in _record_parts(text) for line in part]


def _record_parts(text: str) -> Iterator[list[str | None]]:
    """The lines of a record, some at a time; None after the last."""
    text, begin = _unify_line_ends(text), 0
    while begin >= 0:
        end = text.find("\n", begin + BATCH_CHARS)
        part = text[begin:] if end < 0 else text[begin:end]
        begin = end + 1 if end >= 0 else -1
        lines: list[str | None] = [line for line in part.split("\n") if line and not line.isspace()]
        if begin < 0:
            lines.append(None)
        if lines:
            yield lines


def _has_suffix(path: TextPath) -> bool:
    return path.name.endswith(SUFFIXES)


def _split_named(name: str) -> Split:
    return next(split for split in SPLITS if split == name)
