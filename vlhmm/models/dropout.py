"""State dropout: which states of each block a window uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Kept:
    """The states that a window uses."""

    states: Int[Tensor, "M K"]
    """State numbers, ascending within each block."""


def kept_per_block(states_per_block: int, dropout: float) -> int:
    """round((1 - dropout) K), at least 1."""
    if not 0 <= dropout < 1:
        raise ValueError(f"state dropout is {dropout}, but must be at least 0 and less than 1")
    return max(1, round((1 - dropout) * states_per_block))


def draw_kept(
    num_blocks: int,
    states_per_block: int,
    dropout: float,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> Kept | None:
    """Equally many states of each block, uniformly without replacement; None: all are kept.

    Drawn on the generator's device and then moved to `device`.
    """
    kept = kept_per_block(states_per_block, dropout)
    if kept == states_per_block:
        return None
    # Gumbel top-k with equal weights: any independent continuous keys order the states in the same way.
    keys = torch.rand(num_blocks, states_per_block, generator=generator, device=generator.device if generator else None)
    within_block = keys.topk(kept, dim=1).indices.sort(dim=1).values
    first_of_block = torch.arange(num_blocks, device=keys.device)[:, None] * states_per_block
    return Kept((within_block + first_of_block).to(device=device))
