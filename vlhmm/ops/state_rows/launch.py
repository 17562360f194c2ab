"""How the kernels of rows by state are called. Nothing here synchronises host and device, so a CUDA graph can hold it all."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.sizes import block_size, cdiv
from vlhmm.ops.state_rows import kernel

TILE_NUMBERS = 1 << 11
"""What one program moves: 16 numbers a thread, in 4 warps."""
MAX_COLUMNS = 512
"""Columns of a program."""


def gather(
    per_state: Float[Tensor, "Z H"],
    states: Int[Tensor, " n"],
    num_first: int,
    per_block: Float[Tensor, "M H"] | None = None,
) -> tuple[Float[Tensor, "n W"], Int[Tensor, " Z"]]:
    """The rows of `states`, with those of their blocks to the left, and the place of each of the first; for other states
    it is uninitialised."""
    num_states, width = per_state.shape
    states_per_block = 1 if per_block is None else num_states // per_block.shape[0]
    row_width = width if per_block is None else 2 * width
    rows = torch.empty(states.shape[0], row_width, dtype=per_state.dtype, device=per_state.device)
    place = torch.empty(num_states, dtype=torch.int32, device=per_state.device)
    grid, tile = _tiled(states.shape[0], width)
    sizes = num_states, states_per_block, states.shape[0], num_first, width
    kernel.copy_rows[grid](per_state, per_block, states, rows, place, *sizes, **tile, num_warps=4)
    return rows, place


def spread(
    grad: Float[Tensor, "n W"] | None,
    grad_first: Float[Tensor, "m W"] | None,
    states: Int[Tensor, " n"],
    place: Int[Tensor, " Z"],
    num_first: int,
    left: int = 0,
) -> Float[Tensor, "Z H"]:
    """For each state the sum of its rows of both gradients, one of which is given, without so many columns to the left."""
    num_states = place.shape[0]
    (row_width,) = {each.shape[1] for each in (grad, grad_first) if each is not None}
    width = row_width - left
    grad, grad_first = (None if each is None else each.contiguous()[:, left:] for each in (grad, grad_first))
    per_state = torch.empty(num_states, width, dtype=torch.float32, device=place.device)
    grid, tile = _tiled(num_states, width)
    sizes = num_states, num_first, width, row_width
    kernel.write_rows[grid](grad, grad_first, states, place, per_state, *sizes, **tile, num_warps=4)
    _add_others(per_state, grad, states, num_states, num_first, row_width)
    return per_state


def block_sums(
    grad: Float[Tensor, "n W"] | None,
    grad_first: Float[Tensor, "m W"] | None,
    states: Int[Tensor, " n"],
    num_states: int,
    num_first: int,
    num_blocks: int,
) -> Float[Tensor, "M H"]:
    """For each block the sum of its states' rows of both gradients, of the left half of the columns."""
    (row_width,) = {each.shape[1] for each in (grad, grad_first) if each is not None}
    width = row_width // 2
    grad, grad_first = (None if each is None else each.contiguous() for each in (grad, grad_first))
    per_block = torch.empty(num_blocks, width, dtype=torch.float32, device=states.device)
    # Narrow tiles, so that few blocks still have enough programs to occupy the GPU.
    columns = 32
    kernel.sum_rows[(num_blocks, cdiv(width, columns))](
        *(grad, grad_first, per_block, num_first // num_blocks, width, row_width),
        ROWS=TILE_NUMBERS // columns,
        BLOCK_H=columns,
        num_warps=4,
    )
    _add_others(per_block, grad, states, num_states, num_first, row_width)
    return per_block


def _add_others(
    table: Float[Tensor, "rows H"],
    grad: Float[Tensor, "n _"] | None,
    states: Int[Tensor, " n"],
    num_states: int,
    num_first: int,
    row_width: int,
) -> None:
    """What the rows behind the first add to the gradient of a table of states, or of their blocks."""
    num_others, (num_rows, width) = states.shape[0] - num_first, table.shape
    if grad is None or num_others == 0:
        return
    grid, tile = _tiled(num_others, width)
    sizes = num_states, num_states // num_rows, num_others, width, row_width
    kernel.add_rows[grid](grad[num_first:], states[num_first:], table, *sizes, **tile, num_warps=4)


def _tiled(num_rows: int, width: int) -> tuple[tuple[int, int], dict[str, int]]:
    """The programs, and how many rows and columns each of them takes."""
    columns = block_size(width, MAX_COLUMNS)
    rows = TILE_NUMBERS // columns
    return (cdiv(num_rows, rows), cdiv(width, columns)), {"ROWS": rows, "BLOCK_H": columns}
