"""State dropout: which states a window uses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vlhmm.ops.state_rows.drawn import drawn_states
from vlhmm.support import Support


@dataclass(frozen=True)
class StateSubset:
    """The states that a training window uses, a subset of each block (state dropout).

    Example:
        >>> from vlhmm.models import StateSubset
        >>> StateSubset(torch.tensor([[0, 2], [4, 5]])).states.shape  # 2 states of each of 2 blocks
        torch.Size([2, 2])
    """

    states: Int[Tensor, "M K"]
    """State numbers, ascending within each block."""


@dataclass(frozen=True)
class ColumnMask:
    """A mask of the states that a training window may enter; all states keep their numbers.

    Example:
        >>> from vlhmm.models import ColumnMask
        >>> int(ColumnMask(torch.tensor([True, False, True])).live.sum())
        2
    """

    live: Bool[Tensor, " Z"]
    """Whether each state may be entered."""


def kept_per_block(states_per_block: int, dropout: float) -> int:
    """round((1 - dropout) K), at least 1."""
    _check_rate(dropout)
    return max(1, round((1 - dropout) * states_per_block))


def draw_kept(
    num_blocks: int,
    states_per_block: int,
    dropout: float,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    into: Int[Tensor, "M kept"] | None = None,
) -> StateSubset | None:
    """Equally many states of each block, uniformly without replacement; None: all are kept.

    Drawn on the generator's device and then moved to `device`, or to where `into` is.
    """
    kept = kept_per_block(states_per_block, dropout)
    if kept == states_per_block:
        return None
    # Gumbel top-k with equal weights: any independent continuous keys order the states in the same way.
    keys = torch.rand(num_blocks, states_per_block, generator=generator, device=generator.device if generator else None)
    if into is not None:
        return StateSubset(drawn_states(keys, kept, into))
    return StateSubset(drawn_states(keys, kept).to(device=device))


def draw_columns(
    support: Support,
    dropout: float,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
) -> ColumnMask | None:
    """Each state is alive with probability 1 - dropout, independently; None: all are.

    If that leaves a word without a state, one of its states, uniformly chosen, is kept: the word would have probability zero
    otherwise. Works for every support, and shapes do not depend on the draw.
    """
    _check_rate(dropout)
    if dropout == 0:
        return None
    keys = torch.rand(support.num_states, generator=generator, device=generator.device if generator else None)
    keys = keys.to(device=device)
    live = keys >= dropout
    # The state with the largest key of its group is always live: if any state of the group is live, that one is.
    largest = keys[support.states_of_group].argmax(dim=1, keepdim=True)
    return ColumnMask(live.index_fill(0, support.states_of_group.gather(1, largest).flatten(), True))


def _check_rate(dropout: float) -> None:
    if not 0 <= dropout < 1:
        raise ValueError(f"state dropout is {dropout}, but must be at least 0 and less than 1")
