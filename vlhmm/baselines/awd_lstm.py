"""AWD-LSTM (Merity et al., 2017): an LSTM with dropout of weights, of whole words and of features."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from typing import Final

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlhmm.baselines.layers import After, Scored, State, embed, kept, lstm_step, shifted, word_log_probs
from vlhmm.training.baseline_settings import AWDLSTMSettings

ALIGNED: Final = 8
"""Hidden layers are filled up to a multiple of so many units by such whose weights are 0. They are always 0 and have no
gradient, so they stay so; but tensor cores read such rows, and 1,152 units take half the time of 1,150."""


class AWDLSTM(nn.Module):
    protocol = "hidden state carried over every token"

    def __init__(self, settings: AWDLSTMSettings, num_words: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = nn.Parameter(torch.empty(num_words, settings.embedding_dim))
        self.bias = nn.Parameter(torch.empty(num_words))
        hidden = -(-settings.hidden_dim // ALIGNED) * ALIGNED
        widths = [settings.embedding_dim, *[hidden] * (settings.num_layers - 1), settings.embedding_dim]
        self.layers = nn.ModuleList(nn.LSTM(narrow, wide, batch_first=True) for narrow, wide in pairwise(widths))
        _initialise(self, generator)

    @property
    def num_words(self) -> int:
        return self.embedding.shape[0]

    @property
    def num_parameters(self) -> int:
        """Without those of units that only fill up."""
        return sum(int(real.sum()) for real in self._real_parts().values())

    @property
    def lstms(self) -> list[nn.LSTM]:
        return [layer for layer in self.layers if isinstance(layer, nn.LSTM)]

    def start_state(self, batch_size: int) -> State:
        """No word before the text; then hidden state and cell of each layer, all 0."""
        last = torch.full((batch_size,), -1, device=self.embedding.device)
        cells = [self.embedding.new_zeros(1, batch_size, layer.hidden_size) for layer in self.lstms for _ in ("h", "c")]
        return last, *cells

    def forward(self, tokens: Int[Tensor, "B T"], state: State, noise: torch.Generator | None) -> Scored:
        settings = self.settings
        words = shifted(state[0], tokens)
        values = embed(self.embedding, words)
        if noise is not None and settings.embedding_dropout:
            whole_words = kept(values, (self.num_words,), settings.embedding_dropout, noise)
            values = values * whole_words[words.clamp(min=0)][..., None]
        values = _locked_dropout(values, settings.input_dropout, noise)
        cells: list[Tensor] = []
        for index, layer in enumerate(self.lstms):
            if index:
                values = _locked_dropout(values, settings.hidden_dropout, noise)
            values, (h, c) = layer(values, (state[1 + 2 * index], state[2 + 2 * index]))
            cells += [h, c]
        dropped = _locked_dropout(values, settings.output_dropout, noise)
        penalty = settings.activation_penalty * dropped.square().mean()
        if tokens.shape[1] > 1:
            penalty = penalty + settings.change_penalty * (values[:, 1:] - values[:, :-1]).square().mean()
        log_probs = word_log_probs(dropped, self.embedding, self.bias, tokens)
        return Scored(log_probs, (tokens[:, -1], *cells), penalty)

    def advance(self, state: State) -> tuple[Float[Tensor, "B H"], After]:
        """What the next word is predicted from, without dropout, and the state by which it goes on."""
        values = embed(self.embedding, state[0])
        cells: list[Tensor] = []
        for index, layer in enumerate(self.lstms):
            values, cell = lstm_step(values, layer, state[1 + 2 * index][0], state[2 + 2 * index][0])
            cells += [values[None], cell[None]]
        return values, lambda word: (word, *cells)

    def next_logits(self, features: Float[Tensor, "B H"]) -> Float[Tensor, "B X"]:
        return F.linear(features, self.embedding, self.bias)

    def _real_parts(self) -> dict[str, Bool[Tensor, ...]]:
        """For each parameter, by its name: which of its entries belong to units that are there."""
        dim = self.settings.embedding_dim
        parts = {name: torch.ones(parameter.shape, dtype=torch.bool) for name, parameter in self.named_parameters()}
        for index, layer in enumerate(self.lstms):
            units = torch.arange(layer.hidden_size) < (
                dim if index + 1 == len(self.lstms) else self.settings.hidden_dim
            )
            inputs = torch.arange(layer.input_size) < (dim if index == 0 else self.settings.hidden_dim)
            # The weights of the four gates lie one below the other.
            gates = units.repeat(4)
            prefix = f"layers.{index}."
            parts[f"{prefix}weight_ih_l0"] = gates[:, None] & inputs
            parts[f"{prefix}weight_hh_l0"] = gates[:, None] & units
            parts[f"{prefix}bias_ih_l0"] = parts[f"{prefix}bias_hh_l0"] = gates
        return parts

    @contextmanager
    def dropped_weights(self, noise: torch.Generator) -> Iterator[None]:
        """Around a forward and backward pass: weights from hidden to hidden are dropped, and so is their gradient.

        In place: cuDNN wants all weights of a layer in one piece of memory, so they are set there and put back.
        """
        weights = [layer.get_parameter("weight_hh_l0") for layer in self.lstms]
        with torch.no_grad():
            whole = [weight.clone() for weight in weights]
            masks = [kept(weight, tuple(weight.shape), self.settings.weight_dropout, noise) for weight in weights]
            for weight, mask in zip(weights, masks, strict=True):
                weight.mul_(mask)
        try:
            yield
        finally:
            with torch.no_grad():
                for weight, before, mask in zip(weights, whole, masks, strict=True):
                    weight.copy_(before)
                    if weight.grad is not None:
                        weight.grad.mul_(mask)


def _locked_dropout(
    values: Float[Tensor, "B T H"], rate: float, noise: torch.Generator | None
) -> Float[Tensor, "B T H"]:
    """The same features are dropped at every position of a window."""
    if noise is None or rate == 0:
        return values
    return values * kept(values, (values.shape[0], 1, values.shape[2]), rate, noise)


@torch.no_grad()
def _initialise(model: AWDLSTM, generator: torch.Generator | None) -> None:
    model.embedding.uniform_(-0.1, 0.1, generator=generator)
    model.bias.zero_()
    real = model._real_parts()
    for index, layer in enumerate(model.lstms):
        last = index + 1 == len(model.lstms)
        bound = 1 / math.sqrt(model.settings.embedding_dim if last else model.settings.hidden_dim)
        for name, parameter in layer.named_parameters():
            parameter.uniform_(-bound, bound, generator=generator)
            parameter.mul_(real[f"layers.{index}.{name}"])
