"""Files that are written whole or not at all."""

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


def partial_name(path: Path) -> Path:
    """A hidden name beside `path` that no other process uses, for what is not finished yet."""
    return path.with_name(f".{path.name}.partial-{os.getpid()}-{secrets.token_hex(4)}")


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A file under a temporary name, empty as yet; takes its place as `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_name(path)
    try:
        partial.touch(exist_ok=False)
        permissions = partial.stat().st_mode
        yield partial
        # Whoever writes it may have put another in its place, which only its owner could read.
        partial.chmod(permissions)
        _sync(partial)
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """The same, open to be written."""
    with atomic_path(path) as partial, partial.open("wb") as file:
        yield file


def atomic_write(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Makes a rename within the folder survive a power cut."""
    if os.name == "posix":
        _sync(folder)


def _sync(path: Path) -> None:
    # Only what may be written can be synced outside POSIX, where folders cannot be at all.
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
