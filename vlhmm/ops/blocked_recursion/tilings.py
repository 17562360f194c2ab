"""How the work of the blocked recursion is tiled on a GPU: the sizes of the pieces that its kernels take."""

from __future__ import annotations

from dataclasses import dataclass

from vlhmm.ops.sizes import power_of_2
from vlhmm.precision import Precision

MAX_STATES = 1024
"""The most states of a group: a row of a tile is held whole by one program."""

# Register budget of one program for a tile: 64 numbers a thread, in 8 warps.
TILE_NUMBERS = 1 << 14


@dataclass(frozen=True)
class Tiling:
    """Sizes of the pieces, fixed by the number of states and the precision: there is no autotuning at run time."""

    states: int
    """K rounded up to a power of two."""
    tile_rows: int
    tile_width: int
    tile_warps: int
    tile_stages: int
    forward_rows: int
    """Rows of a tile that a step of the recursion takes at once."""
    forward_warps: int
    forward_stages: int
    """One more than the pieces of tiles that are on their way while a step computes."""
    forward_parts: int
    """Columns of a step's vector as an operand of matrix units; 0 where these are not used. Three are filled, but with
    fewer than 16 no tile is read where it lies."""
    backward_columns: int
    backward_warps: int
    backward_stages: int
    backward_parts: int
    sum_rows: int
    sum_inner: int
    sum_width: int
    sum_two: bool
    """Whether a program makes two products of that width with one tile."""
    sum_warps: int
    sum_stages: int
    sum_programs: int
    """About so many programs share the positions: one or two for each of a Hopper's 132 multiprocessors."""


def tiling_for(num_states: int, precision: Precision) -> Tiling:
    if num_states > MAX_STATES:
        raise ValueError(
            f"a group has {num_states} states, but the GPU kernels of the blocked recursion take at most "
            f"{MAX_STATES}; use more blocks, or the dense recursion"
        )
    states = max(16, power_of_2(num_states))
    rows = max(16, min(states, TILE_NUMBERS // states))
    # Three stages of (rows + states) x width operands within 227 KB of shared memory.
    width = 64 if states <= 256 else 32
    warps = 4 if states < 64 else 8
    match precision:
        case "bf16":
            # The fastest on one H200 of those tried at 64, 128 and 256 states of 16 x 32 tokens, at 128 also of 32 x 64.
            tile_sizes = {"tile_rows": rows, "tile_width": width, "tile_warps": warps, "tile_stages": 3}
            if states == 256:
                tile_sizes["tile_rows"] = 128
            if states == 512:
                # With fewer than 64 rows the tensor cores of a Hopper GPU (wgmma) cannot read operands from shared memory.
                tile_sizes |= {"tile_rows": 64, "tile_width": 32, "tile_stages": 4}
            if states <= 64:
                tile_sizes |= {"tile_width": 32, "tile_warps": 4, "tile_stages": 4}
            sum_sizes = {"sum_rows": min(states, 128), "sum_inner": min(states, 64), "sum_width": 128, "sum_warps": 8}
            if states <= 64:
                sum_sizes |= {"sum_width": 64, "sum_warps": 4}
            sum_sizes |= {"sum_stages": 5, "sum_programs": 264}
        case "tf32":
            tile_sizes = {"tile_rows": rows, "tile_width": width // 2, "tile_warps": warps, "tile_stages": 3}
            sum_sizes = {"sum_rows": min(states, 128), "sum_inner": min(states, 64), "sum_width": 128, "sum_stages": 2}
            sum_sizes |= {"sum_warps": warps, "sum_programs": 132}
        case "highest":
            # No tensor cores: float32 products hold their operands in registers, so tiles are small (register pressure).
            tile_sizes = {"tile_rows": min(rows, 32), "tile_width": 16, "tile_warps": warps, "tile_stages": 2}
            sum_sizes = {"sum_rows": min(states, 64), "sum_inner": min(states, 32), "sum_width": 64, "sum_stages": 1}
            sum_sizes |= {"sum_warps": warps, "sum_programs": 132}
    # Pieces in float32 are 64 KB, of which shared memory has room for two beside the rest.
    forward_sizes = {"forward_rows": rows, "forward_warps": min(warps, 4), "forward_stages": 3, "forward_parts": 0}
    backward_sizes = {"backward_columns": rows, "backward_warps": warps, "backward_stages": 3, "backward_parts": 0}
    if precision == "bf16" and 64 <= states <= 512:
        # Tensor cores (wgmma) need four warps to read 64 rows of a tile from shared memory, which holds one chunk for each
        # pipeline stage. The fastest of those tried; with 1,024 states chunks have too few rows for that.
        piece, stages, step_warps = {64: (64, 3, 4), 128: (128, 4, 4), 256: (128, 3, 8), 512: (64, 3, 8)}[states]
        forward_sizes = {"forward_rows": piece, "forward_stages": stages, "forward_warps": step_warps}
        backward_sizes = {"backward_columns": piece, "backward_stages": stages, "backward_warps": step_warps}
        forward_sizes["forward_parts"] = backward_sizes["backward_parts"] = 16
        if states == 64:
            backward_sizes |= {"backward_warps": 2, "backward_stages": 5, "backward_parts": 8}
    elif states == 128:
        backward_sizes |= {"backward_columns": 64, "backward_warps": 4, "backward_stages": 5}
    elif states <= 64:
        forward_sizes |= {"forward_warps": 1, "forward_stages": 4}
        backward_sizes |= {"backward_warps": 2, "backward_stages": 4}
    return Tiling(
        states=states, **tile_sizes, **forward_sizes, **backward_sizes, **sum_sizes, sum_two=precision == "bf16"
    )
