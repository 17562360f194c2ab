"""The first two stages of a training: a teacher of the same text, and the text that it writes."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Generator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch

from vlhmm.baselines.folder import ABOUT, is_baseline_folder, load_baseline, save_baseline
from vlhmm.baselines.training import TrainedBaseline, train_baseline
from vlhmm.data import Corpus
from vlhmm.data.corpus import MANIFEST
from vlhmm.data.json_file import read_json_object
from vlhmm.distillation.lvd.teachers import require_vocabulary
from vlhmm.distillation.stage_records import (
    SAMPLES,
    TEACHER,
    StageEvent,
    StageRecord,
    Taught,
    read_record,
    write_record,
)
from vlhmm.distillation.teachers import load_teacher
from vlhmm.distillation.teachers.continuations import (
    TEACHER as RATED,
)
from vlhmm.distillation.teachers.continuations import (
    ContinuationSettings,
    Continues,
    baseline_writer,
    draw_continuations,
    language_model_writer,
)
from vlhmm.distributed import ALONE, World, any_rank, first_does, first_yields
from vlhmm.interrupts import stop_signals
from vlhmm.progress import Note, Progress, duration
from vlhmm.tensor_file import FolderError
from vlhmm.training.run_folder import STATE
from vlhmm.training.stage_settings import PretrainedSettings, SampledText, Stages, teacher_values
from vlhmm.training.trainer import CheckEvent, Reason, StepEvent, Stopped


def teacher_and_samples(
    stages: Stages,
    corpus: Corpus,
    out: Path,
    device: torch.device,
    seed: int,
    max_seconds: float | None = None,
    here: World = ALONE,
) -> Generator[StageEvent, None, Taught]:
    """Make the first two stages where they are not finished: the teacher, and the text that it writes.

    Args:
        stages: Their settings.
        corpus: The real text.
        out: The folder of the run.
        device: Where they are made.
        seed: Decides both.
        max_seconds: Stop after that time; None: no limit.
        here: The ranks. The first trains the teacher; all draw from it.

    Yields:
        How far each stage is.

    Returns:
        A record of each stage, that of the samples last, and why it was stopped if it was.
    """
    begun = time.monotonic()
    teacher, stopped = yield from first_yields(
        lambda: _teacher(stages, corpus, out / TEACHER, device, seed, max_seconds), here, "the teacher"
    )
    records = [] if teacher.record is None else [teacher.record]
    if stopped is not None:
        return Taught(tuple(records), stopped)
    left = None if max_seconds is None else max(0.0, max_seconds - (time.monotonic() - begun))
    samples, stopped = yield from _samples(teacher, stages.samples, corpus, out / SAMPLES, device, seed, left, here)
    return Taught((*records, samples), stopped)


@dataclass(frozen=True)
class _Teacher:
    identity: str
    """SHA-256 of a baseline's settings and weights, or the name of a language model."""
    folder: Path | None
    """None: a language model."""
    record: StageRecord | None
    """None: it was trained elsewhere."""


def _teacher(
    stages: Stages, corpus: Corpus, folder: Path, device: torch.device, seed: int, max_seconds: float | None
) -> Generator[StageEvent, None, tuple[_Teacher, Stopped | None]]:
    settings = stages.teacher
    if isinstance(settings, PretrainedSettings):
        given = Path(settings.model)
        if not is_baseline_folder(given):
            return _Teacher(settings.model, None, None), None
        return _Teacher(_baseline_hash(given, corpus), given, None), None
    decided_by = {"settings": teacher_values(settings), "seed": seed, "corpus": corpus.hash}
    record = read_record(folder, TEACHER, decided_by)
    if record.finished:
        yield Note(f"{TEACHER}: finished before, in {folder}")
        return _Teacher(_baseline_hash(folder, corpus), folder, record), None
    begun, trained, last = time.monotonic(), None, (0, 0, 0)
    events = train_baseline(
        settings, corpus, device=device, seed=seed, max_seconds=max_seconds, out=folder, resume=True
    )
    for event in events:
        match event:
            case StepEvent(step, num_steps, loss, seen):
                last = step, num_steps, seen
                yield Progress("training the teacher", step, num_steps, "tokens", seen, f"loss {loss:.3f}")
            case CheckEvent():
                yield Note(
                    f"{TEACHER}: step {event.step:,} of {event.num_steps:,}, valid {event.valid_perplexity:,.1f}"
                )
            case TrainedBaseline():
                trained = event
    assert trained is not None
    step, num_steps, seen = last
    record = replace(record, seconds=record.seconds + time.monotonic() - begun, tokens=seen)
    reason = trained.reason
    if reason == "time" or reason == "interrupted":
        write_record(folder, record)
        teacher = _Teacher("", folder, record)
        return teacher, Stopped(reason, step, num_steps, trained.best_valid, record.seconds)
    about = {**decided_by, "valid_perplexity": trained.best_valid, "seconds": record.seconds, "epochs": trained.epochs}
    save_baseline(folder, trained.scorer.model, corpus.tokenizer.hash, about)
    record = replace(record, finished=True, valid_perplexity=trained.best_valid)
    write_record(folder, record)
    # Deleted: the training state is several times as large as the model, and no longer needed.
    (folder / STATE).unlink(missing_ok=True)
    yield Note(f"{TEACHER}: valid {trained.best_valid:,.1f} after {duration(record.seconds)}, in {folder}")
    return _Teacher(_baseline_hash(folder, corpus), folder, record), None


def _baseline_hash(folder: Path, corpus: Corpus) -> str:
    """Of a baseline's description, which names the SHA-256 of its weights; refused where its tokens are others."""
    values = read_json_object(folder / ABOUT)
    if values.get("tokenizer") != corpus.tokenizer.hash:
        raise FolderError(
            f"{folder} holds a teacher of tokenizer {str(values.get('tokenizer'))[:12]}, but the corpus has "
            f"{corpus.tokenizer.hash[:12]}: train one on this corpus"
        )
    decided_by = [values.get("kind"), values.get("settings"), values.get("files")]
    return hashlib.sha256(json.dumps(decided_by, sort_keys=True).encode()).hexdigest()


def _samples(
    teacher: _Teacher,
    wanted: SampledText,
    corpus: Corpus,
    folder: Path,
    device: torch.device,
    seed: int,
    max_seconds: float | None,
    here: World,
) -> Generator[StageEvent, None, tuple[StageRecord, Stopped | None]]:
    settings = ContinuationSettings(
        teacher.identity,
        corpus.hash,
        wanted.length,
        wanted.prefix,
        wanted.temperature,
        wanted.batch_size,
        seed,
        device.type,
        wanted.context,
        wanted.per_prefix,
    )
    decided_by = {**settings.to_dict(), "tokens": wanted.tokens}
    record, written = first_does(
        lambda: (read_record(folder, SAMPLES, decided_by, may_grow=("tokens",)), (folder / MANIFEST).is_file()),
        here,
        f"reading {folder}",
    )
    if record.finished and written:
        yield Note(f"{SAMPLES}: finished before, in {folder}")
        return record, None

    def load() -> Continues:
        if teacher.folder is not None:
            return baseline_writer(load_baseline(teacher.folder, device).model, settings)
        loaded = load_teacher(teacher.identity, device)
        require_vocabulary(loaded.name, loaded.tokenizer, corpus.tokenizer)
        return language_model_writer(loaded, settings)

    begun, reason, event = time.monotonic(), None, None
    with stop_signals() as asked:
        drawing = draw_continuations(folder, settings, wanted.tokens, load, corpus, here)
        for event in drawing:
            yield Progress(
                f"drawing {wanted.tokens:,} tokens",
                event.num_tokens,
                wanted.tokens,
                "tokens",
                event.new_tokens,
                f"perplexity {event.perplexity:,.1f} by the teacher",
            )
            reason = _stop_reason(asked.is_set(), begun, max_seconds, here)
            if reason is not None and event.num_tokens < wanted.tokens:
                drawing.close()
                break
            reason = None
    seconds = record.seconds + time.monotonic() - begun
    drawn = 0 if event is None else event.num_tokens
    record = replace(record, decided_by=decided_by, seconds=seconds, tokens=drawn or record.tokens)
    if reason is not None:
        first_does(partial(write_record, folder, record), here, f"writing {folder}")
        per_batch = wanted.batch_size * wanted.per_prefix * wanted.length
        return record, Stopped(reason, drawn // per_batch, -(-wanted.tokens // per_batch), math.inf, seconds)
    rated = first_does(lambda: read_json_object(folder / RATED), here, f"reading {folder}")
    record = replace(record, finished=True, tokens=int(rated["tokens"]), valid_perplexity=float(rated["perplexity"]))
    first_does(partial(write_record, folder, record), here, f"writing {folder}")
    yield Note(
        f"{SAMPLES}: {record.tokens:,} tokens in {duration(seconds)}, perplexity {record.valid_perplexity:,.1f} by the teacher"
    )
    return record, None


def _stop_reason(asked: bool, begun: float, max_seconds: float | None, here: World) -> Reason | None:
    late = max_seconds is not None and time.monotonic() - begun >= max_seconds
    asked, late = any_rank([asked, late], here, "drawing samples")
    if asked:
        return "interrupted"
    return "time" if late else None
