"""What the blocked recursion runs on: every position has a tile of its own, made of two groups' features or cut from a table."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.recursion import Factors
from vlhmm.ops.transition_tiles import TransitionOperands
from vlhmm.support import Support


@dataclass(frozen=True)
class BlockedFactors:
    """The factors of p(x, z) at every position, the tiles not yet made.

    The state at position t begins from row `init_of[b, t]` of `log_inits` where that is not negative, else it moves from
    the K states of group `source_group[b, t]` to those of `target_group[b, t]`, where group g holds the states g K, ...,
    g K + K - 1, or those of row g of `states_of_group`, which may overlap. There may be more source states than targets: the
    states of the previous dropout subset, over which a belief enters at position 0, are appended to the others.
    """

    log_previous: Float[Tensor, "B K"]
    """All -inf: the past is impossible, and so is all that follows."""
    log_inits: Float[Tensor, "I K"]
    init_of: Int[Tensor, "B T"]
    transition: TransitionOperands
    source_group: Int[Tensor, "B T"]
    """Any valid group where the state begins anew or past the length; `target_group` likewise."""
    target_group: Int[Tensor, "B T"]
    log_emission: Float[Tensor, "B T K"]
    lengths: Int[Tensor, " B"]
    states_of_group: Int[Tensor, "G K"] | None = None
    """Only of a softmax transition, which needs no more of a state than its features."""

    @property
    def num_states(self) -> int:
        """K, the states of a group."""
        return self.log_emission.shape[2]

    def with_tiles(self) -> Factors:
        """The same factors with each position's log tile made: (B T, K, K) numbers."""
        source, target = (self._support(states) for states in self.transition.shape)
        tile_of = torch.arange(self.source_group.numel(), device=self.source_group.device)
        return Factors(
            self.log_previous,
            self.log_inits,
            self.init_of,
            self.transition.log_tiles(source, self.source_group.flatten(), target, self.target_group.flatten()),
            tile_of.view_as(self.source_group),
            self.log_emission,
            self.lengths,
        )

    def _support(self, num_states: int) -> Support:
        if self.states_of_group is not None:
            return Support(self.states_of_group[:, 0], self.states_of_group, num_states, partition=False)
        states = torch.arange(num_states, device=self.lengths.device).view(-1, self.num_states)
        return Support(states[:, 0], states, num_states, partition=True)
