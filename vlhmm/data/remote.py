"""Text files that fsspec reads: on S3, on the Hugging Face hub, in memory, wherever it has a file system for."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path, PurePosixPath
from typing import Any

from vlhmm.data.json_file import one_line

BUFFER_BYTES = 1 << 20


@dataclass(frozen=True)
class RemotePath:
    """A file or folder with an address, such as `s3://bucket/text.txt`; as much of `pathlib.Path` as reading text needs."""

    url: str

    def __str__(self) -> str:
        return self.url

    @property
    def name(self) -> str:
        return PurePosixPath(self.url.rstrip("/")).name

    @property
    def suffix(self) -> str:
        return PurePosixPath(self.name).suffix

    @property
    def suffixes(self) -> list[str]:
        return PurePosixPath(self.name).suffixes

    def exists(self) -> bool:
        with _named(self.url):
            files, path = self._found()
            return bool(files.exists(path))

    def is_dir(self) -> bool:
        with _named(self.url):
            files, path = self._found()
            return bool(files.isdir(path))

    def is_file(self) -> bool:
        with _named(self.url):
            files, path = self._found()
            return bool(files.isfile(path))

    def iterdir(self) -> Iterator[RemotePath]:
        with _named(self.url):
            files, path = self._found()
            names = [files.unstrip_protocol(name) for name in files.ls(path, detail=False)]
        return iter([RemotePath(name) for name in names])

    @property
    def num_bytes(self) -> int:
        """0 where the file system does not say."""
        with _named(self.url):
            files, path = self._found()
            return int(files.size(path) or 0)

    def open(self, mode: str = "rb") -> io.BufferedReader:
        if mode != "rb":
            raise ValueError(f"{self.url} can be read alone, not opened as {mode!r}")
        with _named(self.url):
            files, path = self._found()
            return io.BufferedReader(_Raw(files.open(path, "rb"), self.url), BUFFER_BYTES)

    def _found(self) -> tuple[Any, str]:
        require_fsspec(self.url)
        from fsspec.core import url_to_fs

        files, path = url_to_fs(self.url)
        return files, path


TextPath = Path | RemotePath


def text_path(path: str | os.PathLike[str] | RemotePath) -> TextPath:
    """Where a text lies: what has a scheme, as in `s3://`, is for fsspec."""
    if isinstance(path, RemotePath):
        return path
    return RemotePath(path) if isinstance(path, str) and is_remote(path) else Path(path)


def is_remote(path: str) -> bool:
    scheme, separator, _ = path.partition("://")
    return bool(separator) and scheme.replace("+", "").replace("-", "").isalnum()


def bytes_of(path: TextPath) -> int:
    """Of the file as it lies there."""
    return path.num_bytes if isinstance(path, RemotePath) else path.stat().st_size


def require_fsspec(url: str) -> None:
    """Refuses an address where the package that reads it is not installed."""
    if find_spec("fsspec") is None:
        raise ValueError(f"{url} needs the extra for addresses: pip install 'vlhmm[hub]'")


class _Raw(io.RawIOBase):
    """A file of fsspec, whose kinds differ in what they can do beside reading, with errors that name it."""

    def __init__(self, file: Any, url: str) -> None:
        self._file, self._url = file, url

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return bool(self._file.seekable())

    def readinto(self, buffer: Any) -> int:
        with _named(self._url):
            content = self._file.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)

    def seek(self, place: int, whence: int = io.SEEK_SET) -> int:
        with _named(self._url):
            return int(self._file.seek(place, whence))

    def tell(self) -> int:
        return int(self._file.tell())

    def close(self) -> None:
        if not self.closed:
            self._file.close()
        super().close()


@contextmanager
def _named(url: str) -> Iterator[None]:
    """One sentence in place of the many exceptions of the clients of object stores."""
    try:
        yield
    except ImportError as error:
        # fsspec names the package.
        raise ValueError(f"{url} cannot be read: {one_line(error, 300)}") from error
    except (MemoryError, EOFError):
        raise
    except ValueError as error:
        if str(error).startswith(url):
            raise
        raise ValueError(f"{url} cannot be read: {one_line(error, 300)}") from error
    except Exception as error:
        reason = one_line(error, 300) or type(error).__name__
        raise ValueError(
            f"{url} cannot be read: {reason}; check the address, the connection and the credentials"
        ) from error
