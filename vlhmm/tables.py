"""The frozen records that inference reads: all that a hidden Markov model is once its numbers are known.

Letters for axes: B batch, T time, Z states, X words, G groups of states, K states of a word, U distinct tiles, H width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.precision import Precision
from vlhmm.records import convert, mapped
from vlhmm.support import Support, blocked_support, cloned_support, dense_support, uniform_support
from vlhmm.transitions import BlockFactoredTransition, SoftmaxTransition, TableTransition, Transition

__all__ = [
    "Belief",
    "BlockFactoredTransition",
    "SoftmaxTransition",
    "Support",
    "TableTransition",
    "Tables",
    "Transition",
    "blocked_support",
    "cloned_support",
    "dense_support",
    "uniform_support",
]


@dataclass(frozen=True)
class Tables:
    """One hidden Markov model: all that inference needs."""

    support: Support
    log_start: Float[Tensor, " Z"]
    transition: Transition
    log_emission: Float[Tensor, "rows K"]
    """log p(x | z) for the K states z that can emit x: no cell is stored that cannot be used. A row for every word."""
    reset_token: int | None = None
    """After this token the next state is drawn from the start distribution; None: states are carried over every token."""
    precision: Precision = "bf16"
    by_position: bool = False
    """`log_emission` has a row for every position of the one text that the tables were made to score, instead of every word."""

    @property
    def num_states(self) -> int:
        return self.support.num_states

    @property
    def num_words(self) -> int:
        return self.support.num_words

    def emissions_of(self, words: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
        """log p(x | z) over the K states of each word."""
        rows = self.log_emission.index_select(0, words.flatten())
        return rows.view(*words.shape, -1)

    @property
    def dtype(self) -> torch.dtype:
        return self.log_emission.dtype

    @property
    def device(self) -> torch.device:
        return self.log_emission.device

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tables:
        return convert(self, device, dtype)

    def detach(self) -> Tables:
        """The same numbers, without a way back to the parameters they were made from."""
        return mapped(self, Tensor.detach)


@dataclass(frozen=True)
class Belief:
    """p(z_t | x_<=t) over the states that can emit the last token x_t: what the past says about the future."""

    token: Int[Tensor, " B"]
    log_probs: Float[Tensor, "B K"]
    """All -inf where the past has probability zero."""

    def of(self, sequences: Int[Tensor, " R"] | list[int] | slice) -> Belief:
        """That of these sequences alone."""
        return Belief(self.token[sequences], self.log_probs[sequences])

    @property
    def probs(self) -> Float[Tensor, "B K"]:
        return self.log_probs.exp()
