"""The scores that the kernels store for the backtrace; a module of its own, so that it can be imported without Triton."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class KeptScores:
    """What the backtrace needs, in the order in which the kernels read it."""

    scores: Float[Tensor, "S row_tiles padded rows"]
    """The scores before each position."""
    tile: Float[Tensor, "parts fours columns 4"]
