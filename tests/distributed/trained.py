"""Trainings that give the same numbers on any number of ranks: test_distributed_training.py compares them with one process."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from models.small_models import VARIANTS, small_model
from tiny import tiny_corpus

from vlhmm import Corpus, Model
from vlhmm.cluster import one_block
from vlhmm.data import Tokens
from vlhmm.data.splits import SplitBatch
from vlhmm.data.vocabulary import BPELearner
from vlhmm.distributed import World
from vlhmm.models import scalar_hmm
from vlhmm.support import blocked_support
from vlhmm.training.em import EMSettings, em_training
from vlhmm.training.gradient import training
from vlhmm.training.joint_phase import JointPhase
from vlhmm.training.settings import TrainSettings
from vlhmm.training.trainer import CheckEvent, Event, StepEvent

CORPUS = tiny_corpus(24)
WORDS = CORPUS.tokenizer.vocab_size
SUPPORT = blocked_support(torch.arange(WORDS) % 4, 4, 5)
# Uneven on four ranks.
QUICK = TrainSettings(
    epochs=1, batch_size=6, window=8, checks_per_epoch=1, state_dropout=0.4, clip=0.5, learning_rate=0.05
)
SETTINGS = {
    "average": replace(QUICK, ema=0.9, weight_decay=0.1),
    "independent windows": replace(QUICK, windows="independent", state_dropout=0.0),
    "plateau": replace(
        QUICK, epochs=3, schedule="plateau", patience=1, decay=9.0, learning_rate=0.4, min_rate=0.1, checks_per_epoch=3
    ),
    "annealed dropout": replace(QUICK, epochs=2, state_dropout=0.8, state_dropout_end=0.2),
    "columns": replace(QUICK, dropout="columns"),
    "frozen embeddings": replace(QUICK, freeze_embeddings=0.5),
    "token dropout": replace(QUICK, token_dropout=0.3),
    "token dropout, rows of unequal number": replace(QUICK, token_dropout=0.3, batch_size=5),
}
COUNTED = {
    "full": EMSettings(iterations=2, batch_size=6, window=8),
    "mini-batches": EMSettings(iterations=2, batch_size=6, window=8, batches_per_step=2, rate=0.5),
}


@dataclass(frozen=True)
class FirstOfWord:
    """Gives every token the first state that emits it."""

    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        return SUPPORT.states_of(tokens)[..., 0]

    def require_sound(self) -> None:
        pass


def model(variant: str = "neural softmax", reset_token: int | None = None) -> Model:
    return small_model(variant, SUPPORT, reset_token=reset_token)


def numbers(events: Any) -> list[float]:
    """All losses and perplexities that a training tells."""
    found = []
    for event in events:
        if isinstance(event, StepEvent):
            found.append(event.loss)
        if isinstance(event, CheckEvent):
            found.append(event.valid_perplexity)
    return found


def weights(trained: Model) -> torch.Tensor:
    return torch.cat([parameter.detach().double().flatten() for parameter in trained.parameters()])


def gradient_events(trained: Model, settings: TrainSettings, here: World, **options: Any) -> Iterator[Event]:
    return training(trained, CORPUS, settings, here=here, **options)


def gradient(variant: str, settings: TrainSettings, here: World, **options: Any) -> torch.Tensor:
    trained = model(variant, CORPUS.tokenizer.eos_id if variant == "linear softmax" else None)
    found = numbers(gradient_events(trained, settings, here, **options))
    return torch.cat([torch.tensor(found, dtype=torch.float64), weights(trained)])


def counted(settings: EMSettings, here: World) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    trained = scalar_hmm(one_block(WORDS), 6, init_scale=0.5, generator=generator).double()
    found = numbers(em_training(trained, CORPUS, settings, here=here))
    return torch.cat([torch.tensor(found, dtype=torch.float64), weights(trained)])


def subwords(here: World) -> torch.Tensor:
    """Of a text whose merges are undone at random, anew in every epoch."""
    learner = BPELearner(2, 280)
    text = "the lowest of the low is lower than the newest"
    learner.add(SplitBatch("train", 20 * [text]))
    tokenizer = learner.tokenizer()
    tokens = Tokens.from_documents([tokenizer.encode(text) for _ in range(20)], tokenizer.vocab_size)
    corpus = Corpus.from_splits("subwords", tokenizer, tokens, tokens, tokens)
    support = blocked_support(torch.arange(tokenizer.vocab_size) % 4, 4, 5)
    trained = small_model("neural softmax", support)
    found = numbers(training(trained, corpus, replace(QUICK, epochs=2, subword_dropout=0.3), here=here))
    return torch.cat([torch.tensor(found, dtype=torch.float64), weights(trained)])


def states_given(here: World) -> torch.Tensor:
    per_step = QUICK.batch_size * QUICK.window
    return gradient("neural softmax", QUICK, here, joint=JointPhase(FirstOfWord(), 2 * per_step))


TRAININGS: dict[str, Callable[[World], torch.Tensor]] = {
    **{variant: partial(gradient, variant, QUICK) for variant in VARIANTS},
    **{name: partial(gradient, "neural softmax", settings) for name, settings in SETTINGS.items()},
    "subword dropout": subwords,
    "states given": states_given,
    **{name: partial(counted, settings) for name, settings in COUNTED.items()},
}
"""What each tells, and its last weights."""
