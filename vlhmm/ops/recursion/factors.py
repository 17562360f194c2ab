"""What the recursion runs on: the factors of p(x, z) at every position of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Factors:
    """The distinct log factors, and which of them stands at which position.

    The state at position t begins from row `init_of[b, t]` of `log_inits` where that is not negative, else it moves by tile
    `tile_of[b, t]` from the state before it; the state before position 0 has the message `log_previous`.
    """

    log_previous: Float[Tensor, "B K"]
    """All -inf: the past is impossible, and so is all that follows."""
    log_inits: Float[Tensor, "I K"]
    init_of: Int[Tensor, "B T"]
    log_tiles: Float[Tensor, "U K K"]
    tile_of: Int[Tensor, "B T"]
    """Any valid tile where the state begins anew."""
    log_emission: Float[Tensor, "B T K"]
    lengths: Int[Tensor, " B"]
    same_ahead: bool = False
    """All that may follow moves by these tiles too, so that what they outweigh may be missing from the last message."""

    @property
    def num_positions(self) -> int:
        return self.log_emission.shape[1]

    def within(self) -> Bool[Tensor, "B T"]:
        """Positions before the length."""
        return torch.arange(self.num_positions, device=self.lengths.device) < self.lengths[:, None]

    def begins_alive(self) -> Bool[Tensor, " B"]:
        return (self.log_previous > -torch.inf).any(1)

    def sequences(self, rows: Int[Tensor, " R"]) -> Factors:
        """The factors of some sequences of the batch."""
        return Factors(
            self.log_previous[rows],
            self.log_inits,
            self.init_of[rows],
            self.log_tiles,
            self.tile_of[rows],
            self.log_emission[rows],
            self.lengths[rows],
            self.same_ahead,
        )
