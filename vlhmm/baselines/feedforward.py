"""The feed-forward n-gram model: two hidden layers over the embeddings of the last words."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlhmm.baselines.layers import After, Scored, State, dropout, embed, kaiming_uniform, word_log_probs
from vlhmm.training.baseline_settings import FeedForwardSettings


class FeedForward(nn.Module):
    """softmax(E relu(V relu(W [e_{t-n+1}; ...; e_{t-1}]))); E are the embeddings."""

    protocol = "the last words carried over every token, EOS like any other"

    def __init__(self, settings: FeedForwardSettings, num_words: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        self.settings = settings
        self.embedding = nn.Parameter(torch.empty(num_words, settings.dim))
        self.context = nn.Linear((settings.order - 1) * settings.dim, settings.dim)
        self.hidden = nn.Linear(settings.dim, settings.dim)
        kaiming_uniform(self, generator)

    @property
    def num_words(self) -> int:
        return self.embedding.shape[0]

    def start_state(self, batch_size: int) -> State:
        """No words before the text."""
        return (torch.full((batch_size, self.settings.order - 1), -1, device=self.embedding.device),)

    def forward(self, tokens: Int[Tensor, "B T"], state: State, noise: torch.Generator | None) -> Scored:
        words = torch.cat([state[0], tokens], dim=1)
        num_before = self.settings.order - 1
        embedded = embed(self.embedding, words[:, :-1])
        # (B, T, H, n - 1): the words before each position, oldest first.
        before = embedded.unfold(1, num_before, 1).transpose(2, 3).flatten(2)
        hidden = dropout(F.relu(self.context(before)), self.settings.dropout, noise)
        hidden = dropout(F.relu(self.hidden(hidden)), self.settings.dropout, noise)
        return Scored(word_log_probs(hidden, self.embedding, None, tokens), (words[:, -num_before:],))

    def advance(self, state: State) -> tuple[Float[Tensor, "B H"], After]:
        """What the next word is predicted from, without dropout, and the state by which it goes on."""
        (words,) = state
        hidden = F.relu(self.context(embed(self.embedding, words).flatten(1)))
        return F.relu(self.hidden(hidden)), lambda word: (torch.cat([words[:, 1:], word[:, None]], dim=1),)

    def next_logits(self, features: Float[Tensor, "B H"]) -> Float[Tensor, "B X"]:
        return F.linear(features, self.embedding)
