"""What the blocked recursion runs on: every position has a tile of its own, made of two groups' features."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.recursion import Factors
from vlhmm.tables import BlockFactoredTransition, SoftmaxTransition, Support


@dataclass(frozen=True)
class BlockedFactors:
    """The factors of p(x, z) at every position, the tiles not yet made.

    The state at position t begins from row `init_of[b, t]` of `log_inits` where that is not negative, else it moves from
    the K states of group `source_group[b, t]` to those of `target_group[b, t]`, where group g holds the states g K, ...,
    g K + K - 1. Sources may number more than targets: states of another draw, from which a belief enters at position 0,
    stand behind the others.
    """

    log_previous: Float[Tensor, "B K"]
    """All -inf: the past is impossible, and so is all that follows."""
    log_inits: Float[Tensor, "I K"]
    init_of: Int[Tensor, "B T"]
    transition: SoftmaxTransition | BlockFactoredTransition
    source_group: Int[Tensor, "B T"]
    """Any valid group where the state begins anew or past the length; `target_group` likewise."""
    target_group: Int[Tensor, "B T"]
    log_emission: Float[Tensor, "B T K"]
    lengths: Int[Tensor, " B"]

    @property
    def num_states(self) -> int:
        """K, the states of a group."""
        return self.log_emission.shape[2]

    @property
    def block_factored(self) -> bool:
        return isinstance(self.transition, BlockFactoredTransition)

    @property
    def row_term(self) -> Float[Tensor, ...]:
        """What a row of the transition has beside its features: log_block (Z, M) or log_normalizer (Z,)."""
        if isinstance(self.transition, BlockFactoredTransition):
            return self.transition.log_block
        return self.transition.log_normalizer

    def with_tiles(self) -> Factors:
        """The same factors with each position's log tile made: (B T, K, K) numbers."""
        source, target = (self._support(side) for side in (self.transition.out, self.transition.into))
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

    def _support(self, features: Float[Tensor, "Z H"]) -> Support:
        states = torch.arange(features.shape[0], device=features.device).view(-1, self.num_states)
        return Support(states[:, 0], states, features.shape[0], partition=True)
