"""Files appear whole or not at all, errors name them, and what a killed process left is removed, never what a live one writes."""

import errno
import os
import shutil
import time
from pathlib import Path

import pytest
from filelock import FileLock

from vlhmm.data.atomic import ABANDONED_SECONDS, atomic_folder, atomic_path, atomic_write, remove_partials
from vlhmm.training.checkpoint import FolderError
from vlhmm.training.run_folder import RunFolder


def names(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_an_error_keeps_the_file_before_and_names_it(tmp_path: Path) -> None:
    target = tmp_path / "file"
    atomic_write(target, b"before")

    def fail(partial: Path) -> None:
        partial.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(OSError, match="No space left on device") as caught, atomic_path(target) as partial:
        fail(partial)
    assert caught.value.filename == str(target)
    assert caught.value.errno == errno.ENOSPC
    with pytest.raises(FileNotFoundError) as other, atomic_path(target):
        (tmp_path / "source").read_bytes()
    assert other.value.filename == str(tmp_path / "source"), "an error about another file stays one"
    assert target.read_bytes() == b"before"
    assert names(tmp_path) == {"file"}


def test_what_a_library_leaves_beside_the_file_goes_with_it(tmp_path: Path) -> None:
    with atomic_path(tmp_path / "file") as partial:
        partial.write_bytes(b"all")
        partial.with_name(".tmpAbCdEf").write_bytes(b"of a library")
    assert names(tmp_path) == {"file"}


def leave_partials(folder: Path) -> None:
    """As a kill does: a save of today, one of an older version."""
    save = folder / ".model.safetensors.partial-1-aaaa"
    save.mkdir()
    (save / ".tmpAbCdEf").write_bytes(b"half")
    (folder / ".config.json.partial-2-bbbb").write_bytes(b"half")


def test_a_run_folder_is_rid_of_partial_files_by_whoever_holds_its_lock(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    leave_partials(run)
    with FileLock(run / ".lock"), pytest.raises(FolderError, match="in use"), RunFolder(run, resume=True):
        pass
    assert len(names(run)) == 3, "those of a live process stay"
    (run / "log.jsonl").write_text('{"step": 1}\n')
    with RunFolder(run, resume=True) as folder:
        assert names(run) == {".lock", "log.jsonl"}
        leave_partials(run)
        with folder:
            assert len(names(run)) == 4, "entering once more removes nothing: they may be our own"
        with pytest.raises(FolderError, match="in use"), RunFolder(run, resume=True):
            pass
    with RunFolder(run, resume=False):
        assert names(run) == {".lock"}, "the log of a run that never saved is none of the new run's"


def test_partials_below_a_folder_are_left_to_their_own_lock(tmp_path: Path) -> None:
    (tmp_path / "samples").mkdir()
    leave_partials(tmp_path / "samples")
    remove_partials(tmp_path)
    assert len(names(tmp_path / "samples")) == 2


def test_partial_folders_of_dead_processes_are_removed(tmp_path: Path) -> None:
    dead, live, fresh, old, other = (
        tmp_path / f".{name}.partial-{number}"
        for name, number in (("out", "1-a"), ("out", "2-b"), ("out", "3-c"), ("out", "4-d"), ("other", "5-e"))
    )
    for folder in (dead, live, fresh, old, other):
        folder.mkdir()
        (folder / "train.tokens").write_bytes(b"half")
    (dead / ".lock").touch()
    long_ago = time.time() - ABANDONED_SECONDS - 60
    os.utime(old, (long_ago, long_ago))
    with FileLock(live / ".lock"), atomic_folder(tmp_path / "out") as partial:
        (partial / "file").write_bytes(b"whole")
        assert names(tmp_path) == {live.name, fresh.name, other.name, partial.name}
    assert names(tmp_path) == {live.name, fresh.name, other.name, "out"}
    assert names(tmp_path / "out") == {"file"}


def test_a_file_is_rid_of_what_killed_processes_left_of_it(tmp_path: Path) -> None:
    dead, live, unlocked = (tmp_path / f".blocks.tsv.partial-{number}" for number in ("1-a", "2-b", "3-c"))
    for folder in (dead, live, unlocked):
        folder.mkdir()
    for folder in (dead, live):
        (folder / ".lock").touch()
    with FileLock(live / ".lock"):
        atomic_write(tmp_path / "blocks.tsv", b"whole")
        assert names(tmp_path) == {"blocks.tsv", live.name}


def test_a_folder_taken_away_before_it_was_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another process may take it for abandoned in that instant: it costs a second try, and nothing else."""
    acquire, taken = FileLock.acquire, []

    def late(lock: FileLock, *arguments: object, **options: object) -> object:
        folder = Path(lock.lock_file).parent
        if len(taken) < 2:
            taken.append(folder)
            if len(taken) == 1:
                folder.rmdir()
                raise FileNotFoundError(str(folder))
            acquired = acquire(lock, *arguments, **options)
            shutil.rmtree(folder)
            return acquired
        return acquire(lock, *arguments, **options)

    monkeypatch.setattr(FileLock, "acquire", late)
    atomic_write(tmp_path / "file", b"whole")
    assert len(taken) == 2
    assert (tmp_path / "file").read_bytes() == b"whole"
    assert names(tmp_path) == {"file"}


def test_a_folder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(partial: Path) -> None:
        (partial / "file").write_bytes(b"half")
        raise ValueError("bad text")

    with pytest.raises(ValueError, match="bad text"), atomic_folder(tmp_path / "out") as partial:
        fail(partial)
    assert names(tmp_path) == set()
