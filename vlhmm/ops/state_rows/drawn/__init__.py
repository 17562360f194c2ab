"""The states of the largest keys in every block: random keys make a draw without replacement of them."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.state_rows.drawn import reference

__all__ = ["drawn_states", "drawn_states_by_kernel"]

MOST_STATES = 1 << 13
"""States of a block: one program holds all of their keys."""


def drawn_states(
    keys: Float[Tensor, "M K"], count: int, into: Int[Tensor, "M count"] | None = None
) -> Int[Tensor, "M count"]:
    """The numbers of the `count` states with the largest keys of each block, ascending; block m holds m K, ..., m K + K - 1.

    Keys are not negative. Of equal keys any may be taken, but `count` are. `into`: where they are written.
    """
    if _kernel_takes(keys) and (into is None or (into.device == keys.device and into.is_contiguous())):
        return drawn_states_by_kernel(keys, count, into)
    drawn = reference.drawn_states(keys, count)
    return drawn if into is None else into.copy_(drawn)


def drawn_states_by_kernel(
    keys: Float[Tensor, "M K"], count: int, into: Int[Tensor, "M count"] | None = None
) -> Int[Tensor, "M count"]:
    """`drawn_states` in one kernel, of float32; of equal keys the first are taken."""
    # Triton is needed here alone.
    from vlhmm.ops.state_rows.drawn import launch

    drawn = torch.empty(keys.shape[0], count, dtype=torch.int64, device=keys.device) if into is None else into
    launch.draw(keys.contiguous(), drawn)
    return drawn


def _kernel_takes(keys: Tensor) -> bool:
    return (
        keys.is_cuda
        and keys.dtype == torch.float32
        and keys.shape[1] <= MOST_STATES
        and torch.cuda.get_device_capability(keys.device) >= (8, 0)
        and find_spec("triton") is not None
    )
