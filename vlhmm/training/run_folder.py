"""The folder of one training run: the best model, the state to go on from, the log, and a lock for one process."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from filelock import FileLock, Timeout
from torch import Tensor

from vlhmm.training.checkpoint import CONFIG, FolderError, read_tensors, write_tensors

STATE, LOG, RESULTS = "training.safetensors", "log.jsonl", "results.json"


class RunFolder:
    """`with RunFolder(path, resume)`: held by one process at a time, given back however it ends, kill -9 included."""

    def __init__(self, path: Path, resume: bool) -> None:
        self.path = path
        self.resume = resume
        path.mkdir(parents=True, exist_ok=True)
        self._lock = FileLock(path / ".lock")

    def __enter__(self) -> RunFolder:
        try:
            self._lock.acquire(timeout=0)
        except Timeout:
            raise FolderError(
                f"{self.path} is in use by another process: wait for it, or choose another folder"
            ) from None
        if not self.resume and (self.path / STATE).exists():
            self._lock.release()
            raise FolderError(f"{self.path} already holds a run: go on with it by --resume, or choose another folder")
        if not self.resume and (self.path / CONFIG).exists():
            self._lock.release()
            raise FolderError(f"{self.path} already holds a model: choose another folder")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._lock.release()

    def save_state(self, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
        write_tensors(self.path / STATE, tensors, {"state": json.dumps(values)})

    def load_state(self) -> tuple[dict[str, Tensor], dict[str, Any]] | None:
        """What `save_state` last wrote; None if it never did, and then nothing is left in the log: the run begins anew."""
        if not (self.path / STATE).exists():
            self.cut_log(0)
            return None
        tensors, metadata = read_tensors(self.path / STATE)
        return tensors, json.loads(metadata["state"])

    def log(self, record: Mapping[str, Any]) -> None:
        with (self.path / LOG).open("a", encoding="utf-8") as file:
            file.write(json.dumps(record) + "\n")

    def cut_log(self, step: int) -> None:
        """Drops records of steps after `step`: a resumed run makes them again."""
        if not (self.path / LOG).exists():
            return
        kept = [record for record in read_log(self.path) if record["step"] <= step]
        (self.path / LOG).write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")


def read_log(folder: Path) -> list[dict[str, Any]]:
    """The records of a run's log; a last line cut short by a crash is passed over."""
    path = folder / LOG
    if not path.exists():
        return []
    records = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            records.append(json.loads(line))
        except json.JSONDecodeError:
            continue
    return records
