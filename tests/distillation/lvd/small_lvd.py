"""What the tests of distillation share: a decoder trained on the tiny corpus, settings, and teachers that are broken."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vlhmm import Corpus, Model
from vlhmm.distillation.decoder import Decoder, DecoderSettings, DecoderTraining, train_decoder
from vlhmm.distillation.lvd import LVDPlan, LVDSettings, StateClusters, VectorTeacher, count_states
from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.training.gradient import training
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import StepEvent

LVD = LVDSettings(cluster_tokens=640, joint_tokens=512, iterations=8)
TRAIN = TrainSettings(
    learning_rate=0.05, epochs=1, batch_size=4, window=16, windows="independent", state_dropout=0.0, checks_per_epoch=1
)


def small_teacher(corpus: Corpus, tokens: int = 6_000) -> Decoder:
    settings = DecoderSettings(dim=16, layers=2, heads=2)
    training = DecoderTraining(tokens=tokens, learning_rate=1e-2, batch_size=8, window=16, checks=1)
    return train_decoder(corpus, settings, training)


def valid_perplexity(model: Model, corpus: Corpus) -> float:
    return evaluate(HMMScorer(model.tables().detach()), corpus.valid).perplexity


def initialise(
    model: Model, corpus: Corpus, teacher: VectorTeacher, lvd: LVDSettings, settings: TrainSettings
) -> StateClusters:
    """Leaves the model with the weights that p(x, z) gives it, before p(x) takes over."""
    plan = LVDPlan.of(model.support, corpus, teacher, lvd, settings)
    clusters = list(plan.clustering(None, None, resume=False))[-1]
    assert isinstance(clusters, StateClusters)
    label = plan.labeller(clusters)
    if plan.counted is not None:
        list(count_states(model, plan.counted, label, window=settings.window, pseudocount=lvd.pseudocount))
        return clusters
    for event in training(model, plan.rest, settings, joint=plan.joint(label)):
        if isinstance(event, StepEvent) and event.tokens >= lvd.joint_tokens:
            return clusters
    raise AssertionError("p(x, z) never ended")


@dataclass(frozen=True)
class Blocks:
    """Words in blocks, as models take them."""

    block_of_word: NDArray[np.int64]
    num_blocks: int


@dataclass(frozen=True)
class TableTeacher:
    """Every token has one vector, whatever its context; the first place has zeros."""

    table: Tensor
    name: str = "table"
    num_layers: int = 1
    longest: int = 1000
    sees_ahead: bool = False

    @property
    def num_words(self) -> int:
        return self.table.shape[0]

    @property
    def device(self) -> torch.device:
        return self.table.device

    def hidden(self, tokens: Tensor, layer: int) -> Tensor:
        first = torch.zeros(tokens.shape[0], 1, self.table.shape[1])
        return torch.cat([first, self.table[tokens]], dim=1)
