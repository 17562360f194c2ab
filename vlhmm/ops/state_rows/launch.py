"""How the kernels of rows by state are called. Nothing here asks the device anything, so a CUDA graph can hold it all."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.sizes import pieces, power_of_2
from vlhmm.ops.state_rows import kernel

TILE_NUMBERS = 1 << 11
"""What one program moves: 16 numbers a thread, in 4 warps."""
WIDEST = 512
"""Columns of a program."""


def gather(
    per_state: Float[Tensor, "Z H"], states: Int[Tensor, " n"], num_first: int
) -> tuple[Float[Tensor, "n H"], Int[Tensor, " Z"]]:
    """The rows of `states`, and where each of the first stands; of other states it says anything."""
    num_states, width = per_state.shape
    rows = torch.empty(states.shape[0], width, dtype=per_state.dtype, device=per_state.device)
    place = torch.empty(num_states, dtype=torch.int32, device=per_state.device)
    grid, tile = _cut(states.shape[0], width)
    kernel.copy_rows[grid](
        per_state, states, rows, place, num_states, states.shape[0], num_first, width, **tile, num_warps=4
    )
    return rows, place


def spread(
    grad: Float[Tensor, "n H"] | None,
    grad_first: Float[Tensor, "m H"] | None,
    states: Int[Tensor, " n"],
    place: Int[Tensor, " Z"],
    num_first: int,
) -> Float[Tensor, "Z H"]:
    """For each state the sum of its rows of both gradients, one of which is given."""
    given = [each.contiguous() if each is not None else None for each in (grad, grad_first)]
    grad, grad_first = given
    (width,) = {each.shape[1] for each in given if each is not None}
    num_states = place.shape[0]
    per_state = torch.empty(num_states, width, dtype=torch.float32, device=place.device)
    grid, tile = _cut(num_states, width)
    kernel.write_rows[grid](
        grad, grad_first, states, place, per_state, num_states, num_first, width, **tile, num_warps=4
    )
    num_others = states.shape[0] - num_first
    if grad is not None and num_others > 0:
        grid, tile = _cut(num_others, width)
        others = grad[num_first:], states[num_first:]
        kernel.add_rows[grid](*others, per_state, num_states, num_others, width, **tile, num_warps=4)
    return per_state


def _cut(num_rows: int, width: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The programs, and how many rows and columns each of them takes."""
    columns = min(WIDEST, power_of_2(width))
    rows = TILE_NUMBERS // columns
    return (pieces(num_rows, rows), pieces(width, columns)), {"ROWS": rows, "BLOCK_H": columns}
