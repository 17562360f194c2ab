"""The training of HMMs whose recipe has stages: a teacher of the same text, its samples, their mixture with the text, fine-tuning.

Teachers, samples and the training on the mixture are made once and linked into the rows that agree on what decides them.
"""

from __future__ import annotations

import time
from collections.abc import Generator
from dataclasses import asdict, replace
from pathlib import Path

import torch
from filelock import FileLock

from experiments.hmm_training import name_of, shared_blocks, watched
from experiments.measure import Measured
from experiments.row_events import SAVE_SECONDS, Place, RowStopped, Training, TrainingEvent, Working
from vlhmm.data import Corpus
from vlhmm.distillation.stage_records import MIXTURE, SAMPLES, TEACHER, StageEvent, Taught
from vlhmm.distillation.stages import teaching, told_of_stages
from vlhmm.distillation.teacher_stages import teacher_and_samples
from vlhmm.progress import Note, Progress
from vlhmm.training.gradient import training
from vlhmm.training.presets import Recipe
from vlhmm.training.stage_settings import PretrainedSettings, teacher_values


def train_staged(
    recipe: Recipe, corpus: Corpus, device: torch.device, place: Place, max_seconds: float | None
) -> Training:
    """All stages, each of which goes on where it stopped."""
    assert recipe.stages is not None
    begun = time.monotonic()
    blocks = yield from shared_blocks(recipe, corpus, place.blocks)

    def left() -> float | None:
        return None if max_seconds is None else max(0.0, max_seconds - (time.monotonic() - begun))

    shared = _link_shared(recipe, corpus, device, place)
    # Rows side by side wait for the one that makes them.
    with FileLock(shared.with_suffix(".lock")):
        taught = yield from _as_row_events(
            teacher_and_samples(recipe.stages, corpus, place.folder, device, recipe.train.seed, left())
        )
    if taught.stopped is None:
        model = recipe.make_model(corpus, blocks).to(device)
        with FileLock((place.folder / MIXTURE).resolve().with_suffix(".lock")):
            taught = yield from _as_row_events(
                teaching(recipe, corpus, blocks, model, place.folder, max_seconds=left())
            )
    if taught.stopped is not None:
        stopped = taught.stopped
        yield RowStopped("time" if stopped.reason == "time" else "interrupted", stopped.step, stopped.num_steps)
        return None
    finetuning = recipe.stages.finetune
    events = training(
        model,
        corpus,
        finetuning,
        out=place.folder,
        resume=True,
        max_seconds=left(),
        save_seconds=SAVE_SECONDS,
        before=told_of_stages(recipe, taught),
    )
    own = replace(recipe, train=finetuning)
    trained = yield from watched(events, model, own, corpus, place.folder, time.monotonic())
    if trained is None:
        return None
    seconds = trained.seconds + sum(record.seconds for record in taught.records)
    return replace(trained, seconds=seconds, others=[*trained.others, *_of_stages(taught, seconds)])


def _link_shared(recipe: Recipe, corpus: Corpus, device: torch.device, place: Place) -> Path:
    """The row's folders of teacher, samples and mixture become links; what decides each names the folder that they lead to."""
    assert recipe.stages is not None
    stages = recipe.stages
    teacher = {"teacher": teacher_values(stages.teacher), "seed": recipe.train.seed, "corpus": corpus.hash}
    # How often the real text stands among them is no matter of the samples.
    drawn = {**asdict(stages.samples), "real_copies": 0, "device": device.type}
    shared = place.runs / "taught" / name_of(teacher)
    trained = {name: values for name, values in recipe.to_dict().items() if name in ("blocks", "model", "train")}
    mixed = {**trained, "samples": {**drawn, "real_copies": stages.samples.real_copies}}
    folders = {SAMPLES: shared / f"{SAMPLES}-{name_of(drawn)}", MIXTURE: shared / f"{MIXTURE}-{name_of(mixed)}"}
    if not isinstance(stages.teacher, PretrainedSettings):
        folders[TEACHER] = shared / TEACHER
    place.folder.mkdir(parents=True, exist_ok=True)
    for name, folder in folders.items():
        folder.mkdir(parents=True, exist_ok=True)
        link = place.folder / name
        if not link.exists():
            link.symlink_to(folder.absolute(), target_is_directory=True)
    return shared


def _as_row_events(events: Generator[StageEvent, None, Taught]) -> Generator[TrainingEvent, None, Taught]:
    while True:
        try:
            event = next(events)
        except StopIteration as stop:
            taught: Taught = stop.value
            return taught
        match event:
            case Progress():
                yield Working(event.what, event.done, event.total)
            case Note():
                yield Working(event.text)
            case _:
                yield event


def _of_stages(taught: Taught, seconds: float) -> list[Measured]:
    found = {record.name: record.valid_perplexity for record in taught.records}
    names = {TEACHER: "teacher_valid", SAMPLES: "samples_by_teacher", MIXTURE: "mixture_valid"}
    measured = [Measured(names[name], value) for name, value in found.items() if value is not None]
    return [*measured, Measured("total_seconds", seconds, "all stages, where they were made")]
