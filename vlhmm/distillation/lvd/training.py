"""All of latent variable distillation, from a teacher and a text to a trained HMM.

Three different portions of the training text: on the first the teacher's vectors are clustered; on the second log p(x, z) is
maximised, z the nearest clusters; on the rest log p(x), with the same optimizer and one schedule over both.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch

from vlhmm.data import Corpus, Tokens
from vlhmm.data.windows import Epoch
from vlhmm.distillation.lvd.assign import ClusterEvent, StateClusters, StateLabeller, check_clustering, find_states
from vlhmm.distillation.lvd.estimate import check_free, count_states
from vlhmm.distillation.lvd.settings import LVDSettings
from vlhmm.distillation.lvd.teachers import VectorTeacher
from vlhmm.distillation.lvd.vectors import VectorsEvent, check_teacher
from vlhmm.distributed import ALONE, World, broadcast_object
from vlhmm.models import Model
from vlhmm.support import Support
from vlhmm.training.gradient import training
from vlhmm.training.joint_phase import JointPhase, joint_steps
from vlhmm.training.run_folder import STATE, RunFolder
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import Event, relay

CLUSTERS = "clusters.safetensors"
"""Where in a run folder the clusters lie."""

LVDEvent = VectorsEvent | ClusterEvent | Event


def lvd_training(
    model: Model,
    corpus: Corpus,
    teacher: VectorTeacher,
    lvd: LVDSettings | None = None,
    settings: TrainSettings | None = None,
    *,
    clusters: StateClusters | None = None,
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    save_seconds: float = 0.0,
    save_at_end: bool = True,
) -> Iterator[LVDEvent]:
    """All of it, an event at a time: vectors, clusters, p(x, z), p(x); the last event is `Stopped`.

    `clusters`: those of an earlier run; the teacher then only labels what p(x, z) reads. With `out` training can be stopped
    and resumed; the clusters are kept there too. `save_seconds`, `save_at_end`: as for `training`.
    """
    if resume and out is None:
        raise ValueError("resume needs the folder to resume from: give out=")
    begun, settings = time.monotonic(), settings or TrainSettings()
    plan = LVDPlan.of(model.support, corpus, teacher, lvd or LVDSettings(), settings)
    if plan.counted is not None:
        check_free(model)
    found = plan.clustering(clusters, None if out is None else Path(out), resume=resume)
    clusters = yield from relay(found, StateClusters)
    label = plan.labeller(clusters)
    if plan.counted is not None and not (resume and out is not None and (Path(out) / STATE).exists()):
        yield from count_states(
            model,
            plan.counted,
            label,
            window=settings.window,
            carried=settings.windows == "carried",
            pseudocount=plan.settings.pseudocount,
        )
    left = None if max_seconds is None else max(0.0, max_seconds - (time.monotonic() - begun))
    yield from training(
        model,
        plan.rest,
        settings,
        joint=plan.joint(label),
        out=out,
        resume=resume,
        max_seconds=left,
        save_seconds=save_seconds,
        save_at_end=save_at_end,
    )


@dataclass(frozen=True, eq=False)
class LVDPlan:
    """A distillation that has been looked at before the teacher reads a word."""

    support: Support
    teacher: VectorTeacher
    settings: LVDSettings
    window: int
    text: Tokens
    """To be clustered."""
    counted: Tokens | None
    """To be counted, where p(x, z) has its maximum in closed form."""
    rest: Corpus
    """To be trained on."""

    @classmethod
    def of(
        cls, support: Support, corpus: Corpus, teacher: VectorTeacher, settings: LVDSettings, train: TrainSettings
    ) -> LVDPlan:
        """The plan, or the reason why it cannot be carried out."""
        eos = corpus.tokenizer.eos_id
        if corpus.tokenizer.vocab_size != support.num_words:
            raise ValueError(
                f"the corpus has {corpus.tokenizer.vocab_size} words, but the model has {support.num_words}: build the model on this corpus"
            )
        if settings.eos_state and eos is None:
            raise ValueError("eos_state keeps a state for EOS, but the tokenizer has none: leave it out")
        check_teacher(teacher, settings.vectors, support.num_words, train.window)
        text, rest = portions(corpus, settings)
        num_vectors = len(text) // train.window * (train.window - 1)
        check_clustering(support, eos if settings.eos_state else None, num_vectors)
        counted = None
        if settings.estimation == "counts":
            counted, rest = _cut_off(rest, settings.joint_tokens, "joint_tokens", set_aside=settings.set_aside)
        epoch = Epoch(rest.train, train.windows, train.batch_size, train.window, train.seed, 0)
        epoch.check()
        if counted is None:
            joint_steps(settings.joint_tokens, train, train.epochs * epoch.num_windows)
        return cls(support, teacher, settings, train.window, text, counted, rest)

    @property
    def about(self) -> str:
        """What decides the clusters, and how long they are used."""
        values = {**asdict(self.settings), "teacher": self.teacher.name, "window": self.window}
        return json.dumps({**values, "corpus": self.rest.hash})

    def clustering(
        self, given: StateClusters | None, out: Path | None, *, resume: bool, here: World = ALONE
    ) -> Iterator[VectorsEvent | ClusterEvent | StateClusters]:
        """The clusters given, those that `out` holds, or new ones, an event at a time; the last one is `StateClusters`.

        They are left in `out`, if there is one.
        """
        with nullcontext() if out is None else RunFolder(out, resume, here) as folder:
            kept = None if out is None else out / CLUSTERS
            if folder is not None and kept is not None and folder.resume and folder.holds(CLUSTERS):
                clusters, about = broadcast_object(
                    StateClusters.load(kept) if here.is_first else (None, ""), here, "reading clusters"
                )
                assert clusters is not None
                if about != self.about:
                    raise ValueError(
                        f"{kept} was made with other settings, another teacher or another text: resume with the same ones"
                    )
                yield clusters
                return
            if folder is not None and folder.holds(STATE):
                raise ValueError(
                    f"{kept} is missing: the run in {out} was started with other options: choose another folder"
                )
            for event in self._found(here) if given is None else [given]:
                if isinstance(event, StateClusters) and folder is not None and kept is not None:
                    folder.write(partial(event.save, kept, self.about))
                yield event

    def _found(self, here: World) -> Iterator[VectorsEvent | ClusterEvent | StateClusters]:
        return find_states(
            self.support,
            self.text,
            self.teacher,
            self.settings.vectors,
            self.settings.clustering,
            window=self.window,
            single_word=self.rest.tokenizer.eos_id if self.settings.eos_state else None,
            generator=torch.Generator().manual_seed(self.settings.seed),
            here=here,
        )

    def labeller(self, clusters: StateClusters) -> StateLabeller:
        found, wanted = tuple(clusters.used.shape), (self.support.num_groups, self.support.states_per_word)
        if found != wanted:
            raise ValueError(
                f"the clusters are {found[1]} in each of {found[0]} blocks, but the model has {wanted[1]} states in each of "
                f"{wanted[0]}: cluster for this model"
            )
        return StateLabeller(self.teacher, clusters, self.support, self.settings.vectors)

    def joint(self, label: StateLabeller) -> JointPhase | None:
        """What training begins with; nothing, where p(x, z) was counted."""
        return None if self.counted is not None else JointPhase(label, self.settings.joint_tokens, self.about)


def portions(corpus: Corpus, settings: LVDSettings) -> tuple[Tokens, Corpus]:
    """The text that is clustered, and the corpus that is left for training."""
    return _cut_off(corpus, settings.cluster_tokens, "cluster_tokens", set_aside=settings.set_aside)


def _cut_off(corpus: Corpus, wanted: int, name: str, *, set_aside: bool) -> tuple[Tokens, Corpus]:
    """The last tokens of the training text, and the corpus without them; not set aside: the first, and the corpus as it is."""
    train = corpus.train
    limit = len(train) - 1 if set_aside else len(train)
    if wanted > limit:
        raise ValueError(f"{name} is {wanted:,}, but the training text has {len(train):,} tokens: take fewer of them")
    if not set_aside:
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


def _part(tokens: Tokens, begin: int, end: int) -> Tokens:
    """Tokens begin, ..., end - 1; a document that is cut is two."""
    inner = tokens.offsets[(tokens.offsets > begin) & (tokens.offsets < end)]
    return Tokens(tokens.ids[begin:end], np.concatenate([[begin], inner, [end]]).astype(np.int64) - begin)
