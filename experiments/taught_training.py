"""The training of HMMs that a teacher begins; teachers and clusters of their vectors are made once and shared by rows."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, replace
from typing import Any

import torch
from filelock import FileLock
from torch import nn

from experiments.hmm_training import name_of, shared_blocks, watched
from experiments.row_events import SAVE_SECONDS, Place, RowStopped, Training, TrainingEvent, Working
from experiments.row_settings import DECODER, TaughtHMM, TeacherSettings
from vlhmm.data import Corpus, Tokens
from vlhmm.distillation.decoder import (
    Decoder,
    DecoderSettings,
    DecoderTraining,
    TrainedDecoder,
    decoder_training,
    is_decoder_folder,
    load_decoder,
)
from vlhmm.distillation.lvd import (
    ClusterEvent,
    LVDEvent,
    LVDSettings,
    PretrainedTeacher,
    StateClusters,
    VectorsEvent,
    VectorTeacher,
    find_states,
    load_vector_teacher,
    lvd_training,
    portions,
)
from vlhmm.distillation.teachers import load_teacher
from vlhmm.models import body_settings, load_body, set_state_embeddings, set_word_embeddings
from vlhmm.support import Support
from vlhmm.training.gradient import training
from vlhmm.training.presets import Recipe
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import LOG_STEPS, CheckEvent, Event, StepEvent


def train_taught(
    settings: TaughtHMM,
    corpus: Corpus,
    whole: Corpus,
    device: torch.device,
    place: Place,
    max_seconds: float | None,
) -> Training:
    """`corpus` is the row's text; `whole` all of the table's, on which a decoder of our own is trained."""
    begun = time.monotonic()
    deadline = None if max_seconds is None else begun + max_seconds
    taught_by, lvd, recipe = settings.teacher, settings.lvd, settings.recipe
    teacher: VectorTeacher | None = None
    if taught_by.name == DECODER:
        decoder = yield from shared_decoder(taught_by, recipe.train, whole, device, place, deadline)
        if decoder is None:
            return None
        teacher = decoder
    elif taught_by.needs_clusters or taught_by.output:
        teacher = load_vector_teacher(taught_by.name, corpus.tokenizer, device)
    if taught_by.body:
        body = _language_model(teacher, taught_by, device)
        recipe = replace(recipe, model=replace(recipe.model, **body_settings(body)))
    text, rest = portions(corpus, lvd) if taught_by.needs_clusters else (corpus.train, corpus)
    # Of the text that is trained on, so that a row without a teacher has the same.
    blocks = yield from shared_blocks(recipe, rest, place.blocks)
    model = recipe.make_model(corpus, blocks).to(device)
    clusters: StateClusters | None = None
    if taught_by.needs_clusters:
        assert teacher is not None
        clusters = yield from shared_clusters(settings, recipe, model.support, text, rest, teacher, place, deadline)
        if clusters is None:
            return None
    if taught_by.body:
        load_body(model, body, centred=taught_by.centred)
    if taught_by.centroids:
        assert clusters is not None
        set_state_embeddings(model, clusters.of_states(model.support))
    if taught_by.output:
        assert isinstance(teacher, Decoder | PretrainedTeacher)
        set_word_embeddings(model, teacher.output_matrix())
    left = _seconds_until(deadline)
    if taught_by.lvd:
        assert teacher is not None
        told = lvd_training(
            model,
            corpus,
            teacher,
            lvd,
            recipe.train,
            clusters=clusters,
            out=place.folder,
            resume=True,
            max_seconds=left,
            save_seconds=SAVE_SECONDS,
            save_at_end=not place.passing,
        )
        return (yield from watched(_as_row_events(told), model, recipe, rest, place.folder, begun))
    events = training(
        model,
        rest,
        recipe.train,
        out=place.folder,
        resume=True,
        max_seconds=left,
        save_seconds=SAVE_SECONDS,
        save_at_end=not place.passing,
    )
    return (yield from watched(events, model, recipe, rest, place.folder, begun))


def shared_decoder(
    settings: TeacherSettings,
    train: TrainSettings,
    whole: Corpus,
    device: torch.device,
    place: Place,
    deadline: float | None,
) -> Generator[TrainingEvent, None, Decoder | None]:
    """The decoder that the settings describe, trained once for all rows; None if that was interrupted, or time ran out."""
    shape = DecoderSettings(dim=settings.dim, layers=settings.layers, heads=settings.heads)
    how = DecoderTraining(
        tokens=settings.tokens,
        learning_rate=settings.learning_rate,
        batch_size=train.batch_size,
        window=train.window,
        checks=1,
        seed=settings.seed,
    )
    if not settings.tokens:
        generator = torch.Generator().manual_seed(settings.seed)
        tokenizer = whole.tokenizer
        decoder = Decoder(shape, tokenizer.vocab_size, tokenizer.eos_id or 0, generator, "untrained decoder")
        return decoder.to(device).requires_grad_(False).eval()
    folder = place.teachers / name_of({"decoder": asdict(shape), "training": asdict(how), "corpus": whole.hash})
    place.teachers.mkdir(parents=True, exist_ok=True)
    with FileLock(folder.with_suffix(".lock")):
        if not is_decoder_folder(folder):
            step, num_steps = 0, 0
            left = _seconds_until(deadline)
            for event in decoder_training(whole, shape, how, out=folder, resume=True, max_seconds=left, device=device):
                if isinstance(event, StepEvent):
                    step, num_steps = event.step, event.num_steps
                    if step % LOG_STEPS == 0:
                        yield Working(f"teacher, loss {event.loss:.3f}", step, num_steps)
                elif isinstance(event, CheckEvent):
                    yield Working(f"teacher, valid perplexity {event.valid_perplexity:,.1f}", step, num_steps)
                elif isinstance(event, TrainedDecoder) and event.reason != "finished":
                    yield RowStopped(event.reason, step, num_steps)
                    return None
    return load_decoder(folder, device)[0]


def shared_clusters(
    settings: TaughtHMM,
    recipe: Recipe,
    support: Support,
    text: Tokens,
    rest: Corpus,
    teacher: VectorTeacher,
    place: Place,
    deadline: float | None,
) -> Generator[TrainingEvent, None, StateClusters | None]:
    """The clusters of the teacher's vectors of `text`, found once for all rows that agree on what decides them; None if time
    ran out: they are then found from the beginning the next time."""
    lvd, window = settings.lvd, recipe.train.window
    decided_by = {
        "teacher": _of_the_vectors(settings.teacher, recipe.train),
        "lvd": _of_the_clusters(lvd),
        "blocks": {**asdict(recipe.blocks), "reset": None, "seed": recipe.train.seed if support.num_groups > 1 else 0},
        "states": support.states_per_word,
        "window": window,
        "text": text.digest(),
        "corpus": rest.hash,
    }
    path = place.clusters / f"{name_of(decided_by)}.safetensors"
    place.clusters.mkdir(parents=True, exist_ok=True)
    with FileLock(path.with_suffix(".lock")):
        if path.exists():
            return StateClusters.load(path)[0]
        clusters: StateClusters | None = None
        single_word = rest.tokenizer.eos_id if lvd.eos_state else None
        generator = torch.Generator().manual_seed(lvd.seed)
        for event in find_states(
            support,
            text,
            teacher,
            lvd.vectors,
            lvd.clustering,
            window=window,
            single_word=single_word,
            generator=generator,
        ):
            if isinstance(event, StateClusters):
                clusters = event
            else:
                working = _working(event)
                yield working
                if _seconds_until(deadline) == 0:
                    yield RowStopped("time", working.done, working.total or 0)
                    return None
        assert clusters is not None
        clusters.save(path, name_of(decided_by))
        return clusters


def _seconds_until(deadline: float | None) -> float | None:
    return None if deadline is None else max(0.0, deadline - time.monotonic())


def _of_the_vectors(teacher: TeacherSettings, train: TrainSettings) -> dict[str, Any]:
    """What decides its vectors; what it gives to an HMM does not."""
    if teacher.name != DECODER:
        return {"name": teacher.name}
    given = ("lvd", "body", "centred", "centroids", "output")
    values = {name: value for name, value in asdict(teacher).items() if name not in given}
    return {**values, "batch_size": train.batch_size}


def _of_the_clusters(lvd: LVDSettings) -> dict[str, Any]:
    later = ("joint_tokens", "estimation", "pseudocount")
    return {name: value for name, value in asdict(lvd).items() if name not in later}


def _language_model(teacher: VectorTeacher | None, settings: TeacherSettings, device: torch.device) -> nn.Module:
    """The one whose layers are taken over; its vocabulary does not matter."""
    if isinstance(teacher, Decoder):
        return teacher
    model: nn.Module = load_teacher(settings.name, device).model
    return model


def _as_row_events(events: Iterator[LVDEvent]) -> Iterator[Event | Working]:
    for event in events:
        yield _working(event) if isinstance(event, VectorsEvent | ClusterEvent) else event


def _working(event: VectorsEvent | ClusterEvent) -> Working:
    if isinstance(event, VectorsEvent):
        return Working("vectors of the teacher", event.tokens, event.total)
    passes = event.kmeans.iterations
    return Working("k-means of its vectors", event.block * passes + event.kmeans.iteration, event.num_blocks * passes)
