"""The states of the largest keys in every block: random keys make a draw without replacement of them."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops import dispatch
from vlhmm.ops.state_rows.drawn import reference

__all__ = ["drawn_states", "drawn_states_by_kernel"]


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
    # Imported here, so that the CPU path does not need Triton.
    from vlhmm.ops.state_rows.drawn import launch

    drawn = torch.empty(keys.shape[0], count, dtype=torch.int64, device=keys.device) if into is None else into
    launch.draw(keys.contiguous(), drawn)
    return drawn


def _kernel_takes(keys: Tensor) -> bool:
    return dispatch.DRAWN_STATES.run(keys.dtype, keys.device, size=keys.shape[1])
