"""Neural baselines through the interface that perplexity asks for."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.baselines.awd_lstm import AWDLSTM
from vlhmm.baselines.buys_hmm import BuysHMM
from vlhmm.baselines.feedforward import FeedForward
from vlhmm.baselines.layers import State
from vlhmm.baselines.lstm import LSTM
from vlhmm.precision import float32_products
from vlhmm.training.baseline_settings import (
    AWDLSTMSettings,
    BaselineSettings,
    BuysHMMSettings,
    FeedForwardSettings,
    LSTMSettings,
)

Baseline = FeedForward | LSTM | BuysHMM | AWDLSTM


def build_baseline(settings: BaselineSettings, num_words: int, generator: torch.Generator | None = None) -> Baseline:
    """The model that `settings` describe, its weights drawn from `generator`."""
    match settings:
        case FeedForwardSettings():
            return FeedForward(settings, num_words, generator)
        case LSTMSettings():
            return LSTM(settings, num_words, generator)
        case BuysHMMSettings():
            return BuysHMM(settings, num_words, generator)
        case AWDLSTMSettings():
            return AWDLSTM(settings, num_words, generator)


def num_parameters(model: Baseline) -> int:
    if isinstance(model, AWDLSTM):
        return model.num_parameters
    return sum(parameter.numel() for parameter in model.parameters())


@dataclass(frozen=True)
class NeuralScorer:
    """Without dropout; the text may come in windows of any length, hidden state is carried from one to the next."""

    model: Baseline

    @property
    def num_words(self) -> int:
        return self.model.num_words

    @property
    def protocol(self) -> str:
        return self.model.protocol

    @torch.no_grad()
    def score_window(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], state: State | None
    ) -> tuple[Float[Tensor, "B T"], State]:
        device = next(self.model.parameters()).device
        before = self.model.start_state(tokens.shape[0]) if state is None else state
        # Another thread may train meanwhile, in tf32.
        with float32_products("highest", device):
            scored = self.model(tokens.to(device), before, None)
        return scored.token_log_probs, scored.state
