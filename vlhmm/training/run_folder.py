"""The folder of one training run: the best model, the state to go on from, the log, and a lock for one process."""

from __future__ import annotations

import json
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from filelock import FileLock, Timeout
from torch import Tensor

from vlhmm.data.atomic import LOCK, atomic_write, remove_partials, renamed
from vlhmm.data.json_file import parse_json
from vlhmm.distributed import (
    ALONE,
    SentTensors,
    World,
    barrier,
    broadcast_object,
    first_does,
    first_yields,
    remember,
    remembered,
)
from vlhmm.tensor_file import FolderError, read_tensors, write_tensors
from vlhmm.training.checkpoint import CONFIG

Made = TypeVar("Made")

STATE, LOG, RESULTS = "training.safetensors", "log.jsonl", "results.json"


class RunFolder:
    """`with RunFolder(path, resume)`: locked by one process at a time, and released however it ends, kill -9 included.

    What a killed process left half written is removed on entering. Of several ranks all enter, and the first alone reads and
    writes files. A run that it began is resumed where torchrun starts the processes anew.
    """

    def __init__(self, path: Path, resume: bool, here: World = ALONE) -> None:
        self.path, self.here = path, here
        # As the first rank has it: the machines of the others may have been started with other words.
        self.resume = broadcast_object(resume, here, f"opening {path}") or begun_before(path, here)
        if here.is_first:
            path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path / LOCK)
        self._depth = 0

    def __enter__(self) -> RunFolder:
        if self._depth:
            # The lock is held already: a nested `with`.
            self._depth += 1
            return self
        if self.here.is_first:
            self._enter()
            remember(str(self.path.absolute()), self.here)
        self._depth = 1
        barrier(self.here, f"opening {self.path}")
        return self

    def _enter(self) -> None:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise FolderError(
                f"{self.path} is in use by another process: wait for it, or choose another folder"
            ) from None
        if not self.resume and (self.path / STATE).exists():
            self._lock.release()
            raise FolderError(f"{self.path} already holds a run: continue it with --resume, or choose another folder")
        if not self.resume and (self.path / CONFIG).exists():
            self._lock.release()
            raise FolderError(f"{self.path} already holds a model: choose another folder")
        remove_partials(self.path)
        if not self.resume:
            # Left by a run that was killed before its first checkpoint.
            (self.path / LOG).unlink(missing_ok=True)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._depth -= 1
        if not self._depth and self.here.is_first:
            self._lock.release()

    def holds(self, name: str) -> bool:
        """Whether there is such a file."""
        return broadcast_object((self.path / name).exists(), self.here, f"reading {self.path}")

    def write(self, work: Callable[[], object]) -> None:
        """Runs on the first rank; the others wait at a barrier without a time limit."""
        first_does(work, self.here, f"writing to {self.path}")

    def does(self, work: Callable[[], Made]) -> Made:
        """What the first rank's work gives, on all of them."""
        return first_does(work, self.here, "what the first rank makes")

    def making(self, steps: Callable[[], Generator[Any, None, Made]]) -> Generator[Any, None, Made]:
        """What the first rank makes, and tells of meanwhile, on all of them."""
        return (yield from first_yields(steps, self.here, "what the first rank makes"))

    def save_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        self.write(lambda: write_tensors(self.path / STATE, tensors, {"state": json.dumps(values)}))

    def load_state(self) -> tuple[Mapping[str, Tensor], dict[str, Any]] | None:
        """What `save_state` last wrote; None if it never did, and then nothing is left in the log: the run begins anew.

        The first rank's tensors are mapped from the file, and given to the others as `SentTensors`."""
        found = self._load_state() if self.here.is_first else None
        values = broadcast_object(None if found is None else found[1], self.here, f"reading {self.path}")
        if values is None:
            return None
        tensors: Mapping[str, Tensor] = {} if found is None else found[0]
        return tensors if self.here.size == 1 else SentTensors(tensors, self.here, f"reading {self.path}"), values

    def _load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        if not (self.path / STATE).exists():
            self.cut_log(0)
            return None
        tensors, metadata = read_tensors(self.path / STATE)
        if "state" not in metadata:
            raise FolderError(f"{self.path / STATE} is no state of a run: it is another file of vlhmm; restore it")
        values = parse_json(metadata["state"], str(self.path / STATE))
        if not isinstance(values, dict):
            raise FolderError(f"{self.path / STATE} is no state of a run: it is damaged; restore it")
        return tensors, values

    def log(self, record: Mapping[str, Any]) -> None:
        if not self.here.is_first:
            return
        try:
            with (self.path / LOG).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        except OSError as error:
            raise renamed(error, self.path / LOG) from error

    def cut_log(self, step: int) -> None:
        """Drops records of steps after `step`: a resumed run makes them again."""
        if not (self.here.is_first and (self.path / LOG).exists()):
            return
        kept = [record for record in read_log(self.path) if record["step"] <= step]
        atomic_write(self.path / LOG, "".join(json.dumps(record) + "\n" for record in kept).encode())


def begun_before(path: Path, here: World = ALONE) -> bool:
    """Whether this is a run that torchrun has begun in that folder and starts anew; all ranks ask together."""
    return remembered(str(path.absolute()), here)


def path_of(out: str | Path | RunFolder | None) -> Path | None:
    """Of a folder that is named, or held already."""
    return out.path if isinstance(out, RunFolder) else None if out is None else Path(out)


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's log; a last line cut short by a crash is passed over."""
    path = folder / LOG
    if not path.exists():
        return []
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            record = parse_json(line, f"{path}, line {number}")
        except ValueError:
            continue
        if not isinstance(record, dict) or type(record.get("step")) is not int or "kind" not in record:
            raise FolderError(f"{path}, line {number} is no record of a run: it was edited; delete the line")
        records.append(record)
    return records
