"""Files and folders that are written whole or not at all."""

import glob
import os
import secrets
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from filelock import FileLock, Timeout

LOCK = ".lock"
"""Held in a folder by the process that writes to it."""
ABANDONED_SECONDS = 24 * 3600
"""A partial folder that has content but no lock, of a file system without locks or an older version, is left alone for so long."""


def partial_name(path: Path) -> Path:
    """A hidden name beside `path` that no other process uses, for what is not finished yet."""
    return path.with_name(f"{_prefix(path)}{os.getpid()}-{secrets.token_hex(4)}")


def _prefix(path: Path) -> str:
    return f".{path.name}.partial-"


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A file under a temporary name, empty as yet; takes its place as `path` when the block ends without an error.

    An OSError about it names `path`. A process that is killed leaves a `.NAME.partial-*`, which the next one that writes
    `path` removes.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        # A folder: a library that writes the file may keep temporary files of its own beside it.
        with _partial_folder(path) as (folder, _):
            partial = folder / path.name
            partial.touch(exist_ok=False)
            permissions = partial.stat().st_mode
            yield partial
            # The writer may have replaced the file by one with owner-only permissions.
            partial.chmod(permissions)
            _sync(partial)
            partial.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        named = None if error.filename is None else Path(os.fsdecode(error.filename))
        if named is None or any(part.name.startswith(_prefix(path)) for part in (named, named.parent)):
            raise renamed(error, path) from error
        raise


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """The same, open to be written."""
    with atomic_path(path) as partial, partial.open("wb") as file:
        yield file


def atomic_write(path: Path, content: bytes) -> None:
    with atomic_file(path) as file:
        file.write(content)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """The same for a folder, empty but for a lock."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _partial_folder(path) as (partial, lock):
        yield partial
        if os.name != "posix":
            # A folder with an open file cannot be renamed there.
            lock.release()
        # Renamed together with its lock file: the partial folder always holds a lock.
        partial.replace(path)
    (path / LOCK).unlink(missing_ok=True)
    sync_folder(path.parent)


@contextmanager
def _partial_folder(path: Path) -> Iterator[tuple[Path, FileLock]]:
    """A new folder beside `path` and its lock, which tells other processes that it is in use.

    Unused folders of the same kind are removed first.
    """
    for entry in path.parent.glob(f"{glob.escape(_prefix(path))}*"):
        _remove_if_abandoned(entry)
    folder, lock = _locked_folder(path)
    try:
        yield folder, lock
    finally:
        lock.release()
        shutil.rmtree(folder, ignore_errors=True)


def _locked_folder(path: Path) -> tuple[Path, FileLock]:
    while True:
        folder = partial_name(path)
        folder.mkdir()
        lock = FileLock(folder / LOCK)
        try:
            lock.acquire(timeout=0)
        except Timeout:
            # Another process holds the lock: it takes the folder for abandoned, and removes it.
            continue
        except FileNotFoundError:
            continue
        except (OSError, NotImplementedError):
            # Without file locks (some network file systems) writing continues, and nothing is removed.
            return folder, lock
        if (folder / LOCK).exists():
            return folder, lock
        # Another process has removed it before it was locked.
        lock.release()


def remove_partials(folder: Path) -> None:
    """Removes what killed saves left in `folder`, not below it. Only for the process that holds the folder's lock."""
    for entry in folder.glob(".*.partial-*"):
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)


def _remove_if_abandoned(entry: Path) -> None:
    """Removes a partial folder that no live process holds."""
    try:
        if not (entry / LOCK).exists():
            if time.time() - entry.stat().st_mtime > ABANDONED_SECONDS:
                shutil.rmtree(entry, ignore_errors=True)
            else:
                # Only if it is empty: a process that is about to lock it makes another.
                entry.rmdir()
            return
        with FileLock(entry / LOCK).acquire(timeout=0):
            shutil.rmtree(entry, ignore_errors=True)
    except (Timeout, OSError, NotImplementedError):
        # In use, or just now removed or renamed by its process, or on a file system without locks.
        return


def renamed(error: OSError, path: Path) -> OSError:
    """The same error, about `path`."""
    if error.errno is None:
        return OSError(f"{path}: {error}")
    return OSError(error.errno, error.strerror or os.strerror(error.errno), str(path))


def sync_folder(folder: Path) -> None:
    """Makes a rename within the folder survive a power cut."""
    if os.name == "posix":
        _sync(folder)


def _sync(path: Path) -> None:
    # Outside POSIX only writable files can be synced (fsync), and folders not at all.
    descriptor = os.open(path, os.O_RDONLY if os.name == "posix" else os.O_RDWR)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
