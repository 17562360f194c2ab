"""AWD-LSTM (Merity et al., 2017): an LSTM with dropout of weights, of whole words and of features."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlhmm.baselines.layers import Scored, State, embed, kept, shifted, word_log_probs
from vlhmm.baselines.settings import AWDLSTMSettings


class AWDLSTM(nn.Module):
    protocol = "hidden state carried over every token"

    def __init__(self, settings: AWDLSTMSettings, num_words: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = nn.Parameter(torch.empty(num_words, settings.embedding_dim))
        self.bias = nn.Parameter(torch.empty(num_words))
        widths = [settings.embedding_dim, *[settings.hidden_dim] * (settings.num_layers - 1), settings.embedding_dim]
        self.layers = nn.ModuleList(nn.LSTM(narrow, wide, batch_first=True) for narrow, wide in pairwise(widths))
        _initialise(self, generator)

    @property
    def num_words(self) -> int:
        return self.embedding.shape[0]

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
    for layer in model.lstms:
        bound = 1 / math.sqrt(layer.hidden_size)
        for parameter in layer.parameters():
            parameter.uniform_(-bound, bound, generator=generator)
