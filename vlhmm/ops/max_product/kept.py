"""What the kernels keep for the backtrace; apart from them, so that it is known where they cannot run."""

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
