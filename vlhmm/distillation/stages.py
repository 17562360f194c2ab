"""The stages before an HMM is trained on a text alone: a teacher of the same text, the text that it writes, and a training on
that text mixed with the real one.

Each stage has a folder of its own in that of the run, with a `stage.json` that says what decides it. A stage that is finished
is skipped, also where its folder was copied or linked from another run; one that was begun goes on.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlhmm.baselines.folder import ABOUT, is_baseline_folder, load_baseline, save_baseline
from vlhmm.baselines.training import TrainedBaseline, train_baseline
from vlhmm.cluster import Blocks
from vlhmm.data import Corpus, Tokens, load_corpus
from vlhmm.data.atomic import atomic_write
from vlhmm.data.corpus import MANIFEST
from vlhmm.data.json_file import read_json_object
from vlhmm.distillation.lvd.teachers import require_vocabulary
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
from vlhmm.models import Model
from vlhmm.progress import Note, Progress, duration
from vlhmm.tensor_file import FolderError
from vlhmm.training.checkpoint import load_model
from vlhmm.training.gradient import training
from vlhmm.training.presets import Recipe
from vlhmm.training.run_folder import STATE
from vlhmm.training.settings import TrainSettings
from vlhmm.training.stage_settings import PretrainedSettings, SampledText, Stages, teacher_values
from vlhmm.training.trainer import CheckEvent, Reason, StepEvent, Stopped, relay

TEACHER, SAMPLES, MIXTURE = "teacher", "samples", "mixture"
"""Folders in that of the run, in the order in which they are made."""
FINETUNING = "finetuning"
"""The last stage, whose folder is that of the run itself."""
STAGE = "stage.json"
SAVE_SECONDS = 60.0

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


def teaching(
    recipe: Recipe,
    corpus: Corpus,
    blocks: Blocks,
    model: Model,
    out: Path,
    *,
    max_seconds: float | None = None,
    before: Mapping[str, Any] | None = None,
    here: World = ALONE,
) -> Generator[StageEvent, None, Taught]:
    """Make the stages of a recipe that are not finished, and leave the model with the weights of the last one.

    Args:
        recipe: The recipe, with stages.
        corpus: The real text.
        blocks: The blocks of the model.
        model: The model that the recipe makes, on its device.
        out: The folder of the run.
        max_seconds: Stop after that time; None: no limit.
        before: What the model's folder is to say of where its first weights come from; it decides the mixture's training.
        here: The ranks, which need one file system. The first trains the teacher; all draw from it, and train on the mixture.

    Yields:
        How far each stage is.

    Returns:
        A record of each stage, and why it was stopped if it was.
    """
    assert recipe.stages is not None
    begun, device = time.monotonic(), model.group_of_word.device
    taught = yield from teacher_and_samples(recipe.stages, corpus, out, device, recipe.train.seed, max_seconds, here)
    if taught.stopped is not None:
        return taught
    left = None if max_seconds is None else max(0.0, max_seconds - (time.monotonic() - begun))
    samples = taught.records[-1]
    mixed, stopped = yield from _mixture(recipe, samples, corpus, blocks, model, out, left, before or {}, here)
    return Taught((*taught.records, mixed), stopped)


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
    record = _read_record(folder, TEACHER, decided_by)
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
        _write_record(folder, record)
        teacher = _Teacher("", folder, record)
        return teacher, Stopped(reason, step, num_steps, trained.best_valid, record.seconds)
    about = {**decided_by, "valid_perplexity": trained.best_valid, "seconds": record.seconds, "epochs": trained.epochs}
    save_baseline(folder, trained.scorer.model, corpus.tokenizer.hash, about)
    record = replace(record, finished=True, valid_perplexity=trained.best_valid)
    _write_record(folder, record)
    # Several times as large as the model, and of no more use.
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
    )
    decided_by = {**asdict(settings), "tokens": wanted.tokens}
    record, written = first_does(
        lambda: (_read_record(folder, SAMPLES, decided_by, may_grow=("tokens",)), (folder / MANIFEST).is_file()),
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
        first_does(partial(_write_record, folder, record), here, f"writing {folder}")
        per_batch = wanted.batch_size * wanted.length
        return record, Stopped(reason, drawn // per_batch, -(-wanted.tokens // per_batch), math.inf, seconds)
    rated = first_does(lambda: read_json_object(folder / RATED), here, f"reading {folder}")
    record = replace(record, finished=True, tokens=int(rated["tokens"]), valid_perplexity=float(rated["perplexity"]))
    first_does(partial(_write_record, folder, record), here, f"writing {folder}")
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


def _mixture(
    recipe: Recipe,
    samples: StageRecord,
    corpus: Corpus,
    blocks: Blocks,
    model: Model,
    out: Path,
    max_seconds: float | None,
    start: Mapping[str, Any],
    here: World,
) -> Generator[StageEvent, None, tuple[StageRecord, Stopped | None]]:
    assert recipe.stages is not None
    folder, copies = out / MIXTURE, recipe.stages.samples.real_copies
    decided_by = {
        "samples": samples.decided_by,
        "real_copies": copies,
        "blocks": hashlib.sha256(blocks.block_of_word.astype("<i8").tobytes()).hexdigest(),
        "model": model.settings.to_dict(),
        "train": asdict(recipe.train),
        **start,
    }
    record = first_does(lambda: _read_record(folder, MIXTURE, decided_by), here, f"reading {folder}")
    if not record.finished:
        begun = time.monotonic()
        drawn = load_corpus(out / SAMPLES, verify=False)
        text = mixture(drawn.train, corpus.train, copies, recipe.stages.samples.length, recipe.train.seed)
        mixed = Corpus.from_splits(
            f"{corpus.name} with samples", corpus.tokenizer, text, corpus.valid, corpus.test, drawn.note
        )
        yield Note(
            f"{MIXTURE}: {len(text):,} tokens, {copies} times the real text among {len(drawn.train):,} of samples"
        )
        before = {**start, "samples": samples.decided_by}
        events = training(
            model,
            mixed,
            recipe.train,
            out=folder,
            resume=True,
            max_seconds=max_seconds,
            save_seconds=SAVE_SECONDS,
            before=before,
            here=here,
        )
        stopped = yield from relay(events, Stopped)
        record = replace(
            record,
            seconds=record.seconds + time.monotonic() - begun,
            tokens=stopped.step * recipe.train.batch_size * recipe.train.window,
            valid_perplexity=stopped.best_perplexity if math.isfinite(stopped.best_perplexity) else None,
            finished=stopped.reason == "finished",
        )
        first_does(partial(_write_record, folder, record), here, f"writing {folder}")
        if not record.finished:
            return record, stopped
        if here.is_first:
            (folder / STATE).unlink(missing_ok=True)
        yield Note(f"{MIXTURE}: valid {stopped.best_perplexity:,.1f} after {duration(record.seconds)}, in {folder}")
    else:
        yield Note(f"{MIXTURE}: finished before, in {folder}")
        # The first rank's weights are those of all where training begins.
        if here.is_first:
            model.load_state_dict(load_model(folder, model.group_of_word.device).model.state_dict())
    return record, None


def mixture(samples: Tokens, real: Tokens, copies: int, length: int, seed: int) -> Tokens:
    """Samples and so many copies of a real text, which is cut into stretches as long as a sample.

    Args:
        samples: A document a sample.
        real: The real text.
        copies: How often it stands among the samples.
        length: Tokens of a stretch; what does not fill one is left out of a copy, another part in each.
        seed: Decides where the stretches of each copy begin.

    Returns:
        The samples, and after them the stretches; training puts documents in random order.

    Example:
        >>> from vlhmm.data import Tokens
        >>> from vlhmm.distillation.stages import mixture
        >>> samples, real = (Tokens.from_documents([[word] * 4], vocab_size=2) for word in (0, 1))
        >>> mixture(samples, real, copies=3, length=2, seed=0).ids.tolist()
        [0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1]
    """
    ids = np.asarray(real.ids)
    length = min(length, len(ids))
    random = np.random.default_rng([seed, copies])
    kept = len(ids) // length * length
    # The end of the text is followed by its beginning.
    turned = [np.roll(ids, -int(random.integers(len(ids))))[:kept] for _ in range(copies)]
    begin = len(samples)
    ends = begin + np.arange(length, copies * kept + 1, length, dtype=np.int64)
    return Tokens(
        np.concatenate([np.asarray(samples.ids), *turned]), np.concatenate([np.asarray(samples.offsets), ends])
    )


def told_of_stages(recipe: Recipe, taught: Taught) -> dict[str, Any]:
    """What the model's folder says of the stages, and its card shows."""
    assert recipe.stages is not None
    found = {record.name: record for record in taught.records}
    return {
        TEACHER: {**teacher_values(recipe.stages.teacher), **_came_to(found.get(TEACHER))},
        SAMPLES: {**asdict(recipe.stages.samples), **_came_to(found[SAMPLES])},
        MIXTURE: {**asdict(recipe.train), **_came_to(found[MIXTURE])},
    }


def _came_to(record: StageRecord | None) -> dict[str, Any]:
    if record is None:
        return {}
    return {"seconds": round(record.seconds, 1), "tokens_in_all": record.tokens, "perplexity": record.valid_perplexity}


def _read_record(folder: Path, name: str, decided_by: dict[str, Any], *, may_grow: tuple[str, ...] = ()) -> StageRecord:
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


def _write_record(folder: Path, record: StageRecord) -> None:
    atomic_write(folder / STAGE, (json.dumps(asdict(record), indent=2) + "\n").encode())
