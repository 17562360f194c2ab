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
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """A file under a temporary name; takes its place as `path` when the block ends without an error."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_name(path)
    try:
        with partial.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        sync_folder(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def atomic_write(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


def sync_folder(folder: Path) -> None:
    """Makes a rename within the folder survive a power cut."""
    if os.name != "posix":
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
