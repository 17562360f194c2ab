"""The stages before an HMM is trained on a text alone: a teacher of the same text, the text that it writes, and a training on
that text mixed with the real one.

Each stage has a folder of its own in that of the run, with a `stage.json` that says what decides it. A stage that is finished
is skipped, also where its folder was copied or linked from another run; one that was begun goes on.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Generator, Mapping
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from vlhmm.cluster import Blocks
from vlhmm.data import Corpus, Tokens, load_corpus
from vlhmm.distillation.stage_records import (
    MIXTURE,
    SAMPLES,
    TEACHER,
    StageEvent,
    StageRecord,
    Taught,
    read_record,
    write_record,
)
from vlhmm.distillation.teacher_stages import teacher_and_samples
from vlhmm.distributed import ALONE, World, first_does
from vlhmm.models import Model
from vlhmm.progress import Note, duration
from vlhmm.training.checkpoint import load_model
from vlhmm.training.gradient import training
from vlhmm.training.presets import Recipe
from vlhmm.training.run_folder import STATE
from vlhmm.training.stage_settings import teacher_values
from vlhmm.training.trainer import Stopped, relay

SAVE_SECONDS = 60.0


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
    record = first_does(lambda: read_record(folder, MIXTURE, decided_by), here, f"reading {folder}")
    if not record.finished:
        begun = time.monotonic()
        drawn = load_corpus(out / SAMPLES, verify=False)
        wanted = recipe.stages.samples
        text = mixture(drawn.train, corpus.train, copies, wanted.context + wanted.length, recipe.train.seed)
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
        first_does(partial(write_record, folder, record), here, f"writing {folder}")
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
