"""All of latent variable distillation, from a teacher and a text to a trained HMM.

Three different portions of the training text: on the first the teacher's vectors are clustered; on the second log p(x, z) is
climbed, z the nearest clusters; on the rest log p(x), with the same optimizer and one schedule over both.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.data import Corpus, Tokens
from vlhmm.data.windows import Epoch
from vlhmm.lvd.assign import ClusterEvent, StateClusters, StateLabeller, check_clustering, find_states
from vlhmm.lvd.estimate import PathCounts, check_free, counts_to_logits
from vlhmm.lvd.phase import JointStep, PathReader
from vlhmm.lvd.settings import LVDSettings
from vlhmm.lvd.teachers import VectorTeacher
from vlhmm.lvd.vectors import VectorsEvent, check_teacher
from vlhmm.models import Model
from vlhmm.run_folder import RunFolder
from vlhmm.train import LOG_STEPS, SAVE_SECONDS, Event, StepEvent, Stopped, _Run, stop_signals, training
from vlhmm.train_settings import TrainSettings

CLUSTERS = "clusters.safetensors"
"""Where in a run folder the clusters lie."""


@dataclass(frozen=True)
class Initialised:
    """What `initialise_by_lvd` has done."""

    clusters: StateClusters
    joint_loss: float
    """-log p(x, z) in nats per token at the last step; NaN after counting."""
    tokens: int
    """Of p(x, z)."""


LVDEvent = VectorsEvent | ClusterEvent | Event


def portions(corpus: Corpus, settings: LVDSettings) -> tuple[Tokens, Corpus]:
    """The text that is clustered, and the corpus that is left for training."""
    train, wanted = corpus.train, settings.cluster_tokens
    limit = len(train) - 1 if settings.set_aside else len(train)
    if wanted > limit:
        raise ValueError(
            f"cluster_tokens is {wanted:,}, but the training text has {len(train):,} tokens: cluster fewer of them"
        )
    if not settings.set_aside:
        return _part(train, 0, wanted), corpus
    cut = len(train) - wanted
    note = f"{corpus.note}; " if corpus.note else ""
    rest = Corpus.from_splits(
        corpus.name,
        corpus.tokenizer,
        _part(train, 0, cut),
        corpus.valid,
        corpus.test,
        f"{note}the last {wanted:,} training tokens are set aside",
    )
    return _part(train, cut, len(train)), rest


def initialise_by_lvd(
    model: Model,
    corpus: Corpus,
    teacher: VectorTeacher,
    lvd: LVDSettings | None = None,
    settings: TrainSettings | None = None,
) -> Initialised:
    """Clusters the teacher's vectors, then leaves `model` with the weights that p(x, z) gives it; p(x) is left to `train`.

    `settings` are those of the training it begins: batches, rates and schedule are theirs.
    """
    plan = _checked(model, corpus, teacher, lvd or LVDSettings(), settings or TrainSettings())
    clusters: StateClusters | None = None
    for event in plan.clusters():
        if isinstance(event, StateClusters):
            clusters = event
    assert clusters is not None
    run, loss = plan.run(clusters, None), math.nan
    for done in _joint_phase(plan, run):
        if isinstance(done, StepEvent):
            loss = done.loss
    return Initialised(clusters, loss, run.tokens_seen)


def train_by_lvd(
    model: Model,
    corpus: Corpus,
    teacher: VectorTeacher,
    lvd: LVDSettings | None = None,
    settings: TrainSettings | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
) -> Stopped:
    """`train`, whose first steps climb log p(x, z); whoever wants to watch iterates over `lvd_training` instead."""
    for event in lvd_training(model, corpus, teacher, lvd, settings, out=out, resume=resume, max_seconds=max_seconds):
        if isinstance(event, Stopped):
            return event
    raise AssertionError("training always ends with Stopped")


def lvd_training(
    model: Model,
    corpus: Corpus,
    teacher: VectorTeacher,
    lvd: LVDSettings | None = None,
    settings: TrainSettings | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
) -> Iterator[LVDEvent]:
    """All of it, an event at a time: vectors, clusters, p(x, z), p(x); the last event is `Stopped`.

    With `out` it can be stopped in either phase of training and resumed; the clusters are kept there too.
    """
    if resume and out is None:
        raise ValueError("resume needs the folder to resume from: give out=")
    begun = time.monotonic()
    plan = _checked(model, corpus, teacher, lvd or LVDSettings(), settings or TrainSettings())
    with ExitStack() as stack:
        # p(x) goes on from a folder's state, as any run does that was stopped; without `out` the folder is a passing one.
        path = Path(out) if out is not None else Path(stack.enter_context(tempfile.TemporaryDirectory()))
        with RunFolder(path, resume) as folder, stop_signals() as stop_asked:

            def reason_to_stop() -> Literal["time", "interrupted"] | None:
                if stop_asked.is_set():
                    return "interrupted"
                return "time" if max_seconds is not None and time.monotonic() - begun >= max_seconds else None

            for event in _until_joint_ends(plan, folder, begun, reason_to_stop):
                yield event
                if isinstance(event, Stopped):
                    return
        left = None if max_seconds is None else max(0.0, max_seconds - (time.monotonic() - begun))
        yield from training(model, plan.rest, plan.settings, out=path, resume=True, max_seconds=left)


@dataclass(frozen=True, eq=False)
class _Plan:
    """What has been looked at before the teacher reads a word."""

    model: Model
    teacher: VectorTeacher
    lvd: LVDSettings
    settings: TrainSettings
    text: Tokens
    """To be clustered."""
    rest: Corpus
    """To be trained on."""
    joint_steps: int

    @property
    def about(self) -> str:
        """What decides the clusters."""
        values = {**asdict(self.lvd), "teacher": self.teacher.name, "window": self.settings.window}
        return json.dumps({**values, "corpus": self.rest.hash})

    def clusters(self) -> Iterator[VectorsEvent | ClusterEvent | StateClusters]:
        return find_states(
            self.model.support,
            self.text,
            self.teacher,
            self.lvd.vectors,
            self.lvd.clustering,
            window=self.settings.window,
            single_word=self.rest.tokenizer.eos_id if self.lvd.eos_state else None,
            generator=torch.Generator().manual_seed(self.lvd.seed),
        )

    def run(self, clusters: StateClusters, folder: RunFolder | None) -> _Run:
        """A run of training whose steps climb log p(x, z)."""
        run = _Run(self.model, self.rest, self.settings, folder)
        label = StateLabeller(self.teacher, clusters, self.model.support, self.lvd.vectors)
        run.stepper = JointStep(self.model, self.settings, label)
        return run


def _checked(model: Model, corpus: Corpus, teacher: VectorTeacher, lvd: LVDSettings, settings: TrainSettings) -> _Plan:
    """The plan, or the reason why it cannot be carried out."""
    support, eos = model.support, corpus.tokenizer.eos_id
    if corpus.tokenizer.vocab_size != support.num_words:
        raise ValueError(
            f"the corpus has {corpus.tokenizer.vocab_size} words, but the model has {support.num_words}: build the model on this corpus"
        )
    if lvd.eos_state and eos is None:
        raise ValueError("eos_state keeps a state for EOS, but the tokenizer has none: leave it out")
    check_teacher(teacher, lvd.vectors, support.num_words, settings.window)
    if lvd.estimation == "counts":
        check_free(model)
    text, rest = portions(corpus, lvd)
    num_vectors = len(text) // settings.window * (settings.window - 1)
    check_clustering(support, eos if lvd.eos_state else None, num_vectors)
    return _Plan(model, teacher, lvd, settings, text, rest, _joint_steps(rest, lvd, settings))


def _joint_steps(rest: Corpus, lvd: LVDSettings, settings: TrainSettings) -> int:
    first = Epoch(rest.train, settings.windows, settings.batch_size, settings.window, settings.seed, 0)
    first.check()
    num_steps, per_step = settings.epochs * first.num_windows, settings.batch_size * settings.window
    steps = max(1, round(lvd.joint_tokens / per_step))
    if steps > num_steps:
        raise ValueError(
            f"joint_tokens is {lvd.joint_tokens:,}, but training reads {num_steps * per_step:,} tokens in all, and those of "
            "p(x, z) count in them: make it smaller, or train for more epochs"
        )
    return steps


def _until_joint_ends(
    plan: _Plan, folder: RunFolder, begun: float, reason_to_stop: Callable[[], Literal["time", "interrupted"] | None]
) -> Iterator[LVDEvent]:
    """Clusters and p(x, z), or what is left of them; `folder` then holds the state that p(x) goes on from."""
    saved, clusters = folder.load_state(), None
    for event in _clusters_in(folder.path / CLUSTERS, plan, begun_before=saved is not None):
        if isinstance(event, StateClusters):
            clusters = event
        else:
            yield event
    assert clusters is not None
    if saved is not None and saved[1]["step"] >= plan.joint_steps:
        return
    run = plan.run(clusters, folder)
    if saved is not None:
        run.restore()
    saved_at = time.monotonic()
    # Counts are no part of the state: stopped while they are made, they are made again.
    counting = plan.lvd.estimation == "counts"
    for done in _joint_phase(plan, run):
        yield done
        reason = reason_to_stop() if isinstance(done, StepEvent) and done.step < plan.joint_steps else None
        if not counting and (reason or time.monotonic() - saved_at > SAVE_SECONDS):
            run.save()
            saved_at = time.monotonic()
        if reason:
            yield Stopped(reason, run.step, run.num_steps, run.best_perplexity, time.monotonic() - begun)
            return
    run.save()


def _clusters_in(
    path: Path, plan: _Plan, *, begun_before: bool
) -> Iterator[VectorsEvent | ClusterEvent | StateClusters]:
    """Those of a file, or those that are made and written there."""
    if path.exists():
        clusters, about = StateClusters.load(path)
        if about != plan.about:
            raise ValueError(
                f"{path} was made with other settings, another teacher or another text: resume with the same ones"
            )
        yield clusters
        return
    if begun_before:
        raise ValueError(f"{path} is missing: the run in this folder was begun another way, choose another folder")
    for event in plan.clusters():
        if isinstance(event, StateClusters):
            event.save(path, plan.about)
        yield event


def _joint_phase(plan: _Plan, run: _Run) -> Iterator[Event]:
    """The steps of p(x, z) that `run` has not made yet, in windows of its own epochs."""
    if plan.lvd.estimation == "counts":
        yield from _by_counts(plan, run)
    else:
        yield from _by_gradient(plan, run)


def _by_gradient(plan: _Plan, run: _Run) -> Iterator[Event]:
    # A GPU works ahead of us; asking it for every step's loss would make it wait.
    loss_steps = LOG_STEPS if run.device.type == "cuda" else 1
    loss, losses, step = math.nan, list[float](), _joint_step(run)
    for tokens in _windows(plan, run):
        run.train_step(tokens)
        if run.step % loss_steps == 0 or run.step in (1, plan.joint_steps):
            step.label.require_sound()
            loss = run.loss()
            losses.append(loss)
        yield StepEvent(run.step, run.num_steps, loss, run.tokens_seen)
        if run.step % LOG_STEPS == 0:
            if run.folder is not None:
                run.folder.log({**run.step_record(math.fsum(losses) / len(losses)), "objective": "p(x, z)"})
            losses.clear()
        if run.check_due():
            check = run.check()
            yield check
            if run.folder is not None:
                run.folder.log({"kind": "check", **asdict(check)})


def _by_counts(plan: _Plan, run: _Run) -> Iterator[Event]:
    support, label = run.model.support, _joint_step(run).label
    counts, read = PathCounts.none(support), PathReader(label)
    for tokens in _windows(plan, run):
        fresh = plan.settings.windows == "independent" or run.step % run.steps_per_epoch == 0
        paths = read(tokens.to(run.device), fresh)
        counts.add(support, paths.tokens, paths.states, run.model.reset_token, first_given=paths.first_given)
        _joint_step(run).leave_belief(paths.tokens[:, -1])
        run.step += 1
        yield StepEvent(run.step, run.num_steps, math.nan, run.tokens_seen)
    label.require_sound()
    counts_to_logits(run.model, counts, plan.lvd.pseudocount)
    run.stepper.averaged.load_state_dict(run.model.state_dict())
    run.stepper.count = run.step


def _joint_step(run: _Run) -> JointStep:
    assert isinstance(run.stepper, JointStep)
    return run.stepper


def _windows(plan: _Plan, run: _Run) -> Iterator[Int[Tensor, "B T"]]:
    """Those that are left of p(x, z); whoever takes one makes a step of it."""
    while run.step < plan.joint_steps:
        epoch, first = divmod(run.step, run.steps_per_epoch)
        yield from islice(run.epoch(epoch).windows(first), plan.joint_steps - run.step)


def _part(tokens: Tokens, begin: int, end: int) -> Tokens:
    """Tokens begin, ..., end - 1; a document that is cut is two."""
    inner = tokens.offsets[(tokens.offsets > begin) & (tokens.offsets < end)]
    return Tokens(tokens.ids[begin:end], np.concatenate([[begin], inner, [end]]).astype(np.int64) - begin)
