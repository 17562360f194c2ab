"""What is known of the stages of a training: their folders, their records, and how they ended."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from vlhmm.data.atomic import atomic_write
from vlhmm.data.json_file import read_json_object
from vlhmm.progress import Note, Progress
from vlhmm.tensor_file import FolderError
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import CheckEvent, StepEvent, Stopped

TEACHER, SAMPLES, MIXTURE = "teacher", "samples", "mixture"
"""Folders in that of the run, in the order in which they are made."""
FINETUNING = "finetuning"
"""The last stage, whose folder is that of the run itself."""
STAGE = "stage.json"

StageEvent = Progress | Note | StepEvent | CheckEvent


@dataclass(frozen=True)
class StageRecord:
    """What stage.json says of a stage."""

    name: str
    decided_by: dict[str, Any]
    """Settings, seed, text and what the stages before it have made."""
    finished: bool = False
    seconds: float = 0.0
    """Of all runs of the stage, where it was made."""
    tokens: int = 0
    """Drawn, or read in training."""
    valid_perplexity: float | None = None
    """As it was seen in training; of samples: how the teacher rates them."""


@dataclass(frozen=True)
class Taught:
    """How the stages ended; the model has the weights of the last one."""

    records: tuple[StageRecord, ...]
    stopped: Stopped | None = None
    """None: all stages are finished."""


def read_record(folder: Path, name: str, decided_by: dict[str, Any], *, may_grow: tuple[str, ...] = ()) -> StageRecord:
    """What stage.json says; refused where it was decided by other values, except by smaller ones of `may_grow`."""
    path = folder / STAGE
    if not path.is_file():
        return StageRecord(name, decided_by)
    try:
        record = StageRecord(**read_json_object(path))
    except (ValueError, TypeError) as error:
        raise FolderError(f"{path} cannot be read ({error}): it was edited or is of another version") from None
    # As JSON has them.
    now = json.loads(json.dumps(decided_by))
    if isinstance(record.decided_by.get("train"), dict):
        # Settings that came later had no effect then.
        record = replace(
            record, decided_by={**record.decided_by, "train": {**asdict(TrainSettings()), **record.decided_by["train"]}}
        )
    changed = [key for key in {**record.decided_by, **now} if record.decided_by.get(key) != now.get(key)]
    if all(key in may_grow and now[key] > record.decided_by[key] for key in changed):
        return replace(record, finished=record.finished and not changed)
    told = "; ".join(_change(key, record.decided_by.get(key), now.get(key)) for key in changed)
    raise FolderError(f"{folder} was made with {told}: use the same settings, or another folder")


def _change(key: str, before: Any, now: Any) -> str:
    if isinstance(before, dict) and isinstance(now, dict):
        inner = [
            _change(f"{key}.{name}", before.get(name), now.get(name))
            for name in {**before, **now}
            if before.get(name) != now.get(name)
        ]
        return "; ".join(inner)
    return f"{key} = {before!r}, not {now!r}"


def write_record(folder: Path, record: StageRecord) -> None:
    atomic_write(folder / STAGE, (json.dumps(asdict(record), indent=2) + "\n").encode())
