"""The LSTM of a few layers, its output weights tied to its embeddings."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlhmm.baselines.layers import (
    After,
    Scored,
    State,
    dropout,
    embed,
    kaiming_uniform,
    lstm_step,
    shifted,
    word_log_probs,
)
from vlhmm.training.baseline_settings import LSTMSettings


class LSTM(nn.Module):
    protocol = "hidden state carried over every token"

    def __init__(self, settings: LSTMSettings, num_words: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = nn.Parameter(torch.empty(num_words, settings.dim))
        # One module a layer: dropout between them is ours, so that it comes from the given generator.
        self.layers = nn.ModuleList(
            nn.LSTM(settings.dim, settings.dim, batch_first=True) for _ in range(settings.num_layers)
        )
        if settings.initialisation == "paper":
            kaiming_uniform(self, generator)
        else:
            self._draw_as_pytorch(generator)

    @torch.no_grad()
    def _draw_as_pytorch(self, generator: torch.Generator | None) -> None:
        """The distributions of `nn.Embedding` and `nn.LSTM`, from the given generator."""
        self.embedding.normal_(generator=generator)
        bound = self.settings.dim**-0.5
        for parameter in self.layers.parameters():
            parameter.uniform_(-bound, bound, generator=generator)

    @property
    def num_words(self) -> int:
        return self.embedding.shape[0]

    def start_state(self, batch_size: int) -> State:
        """No word before the text, all cells at 0."""
        cells = self.embedding.new_zeros(self.settings.num_layers, batch_size, self.settings.dim)
        return torch.full((batch_size,), -1, device=cells.device), cells, cells.clone()

    def forward(self, tokens: Int[Tensor, "B T"], state: State, noise: torch.Generator | None) -> Scored:
        last, hidden, cell = state
        values = embed(self.embedding, shifted(last, tokens))
        hiddens, cells = [], []
        for index, layer in enumerate(self.layers):
            values = dropout(values, self.settings.dropout, noise)
            values, (h, c) = layer(values, (hidden[index : index + 1], cell[index : index + 1]))
            hiddens.append(h)
            cells.append(c)
        values = dropout(values, self.settings.dropout, noise)
        return Scored(
            word_log_probs(values, self.embedding, None, tokens), (tokens[:, -1], torch.cat(hiddens), torch.cat(cells))
        )

    def advance(self, state: State) -> tuple[Float[Tensor, "B H"], After]:
        """What the next word is predicted from, without dropout, and the state by which it goes on."""
        last, hidden, cell = state
        values = embed(self.embedding, last)
        hiddens, cells = [], []
        for index, layer in enumerate(self.layers):
            assert isinstance(layer, nn.LSTM)
            values, c = lstm_step(values, layer, hidden[index], cell[index])
            hiddens.append(values)
            cells.append(c)
        return values, lambda word: (word, torch.stack(hiddens), torch.stack(cells))

    def next_logits(self, features: Float[Tensor, "B H"]) -> Float[Tensor, "B X"]:
        return F.linear(features, self.embedding)
