"""Max-product when every position takes the one tile, on a GPU: what is allocated, and how the work is cut."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from vlhmm.ops.max_product import kernel
from vlhmm.ops.max_product.kept import KeptScores
from vlhmm.ops.recursion.dense import multiprocessors, pieces, power_of_2
from vlhmm.ops.recursion.factors import Factors


@dataclass(frozen=True)
class Tiling:
    """A program makes the scores of `rows` sequences x `columns` states, `unroll` source states at a time."""

    rows: int
    columns: int
    num_warps: int
    unroll: int
    programs_at_once: int
    """How many of them share a multiprocessor: two hide each other's reads, where their registers suffice."""


# Smallest first. From the second on the compiler reads four columns at a time, so that of 2.4 instructions a pair of states
# two are the addition and the maximum. A row and a column of a tile hold at most as many numbers as there are threads, or
# nearly so: each thread then reads what it needs by itself, and nothing passes through shared memory.
# Measured on one H200: 512 states 3.9 ms with the first, 4,096 states 59 ms with the last; 16 x 32 took 7.0 and 32 x 128 109.
TILINGS = (
    Tiling(4, 128, 4, 16, 2),
    Tiling(8, 128, 4, 8, 2),
    Tiling(32, 256, 8, 16, 1),
)


def max_product(
    factors: Factors, keep_way: bool, *, persistent: bool = True, tiling: Tiling | None = None
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"], KeptScores | None]:
    """As the reference, with scores in place of back-pointers. `persistent=False` launches a kernel for every position."""
    size, length, states = factors.log_emission.shape
    device = factors.log_emission.device
    tiling = tiling or _tiling(size, states, multiprocessors(device))
    row_tiles, parts = pieces(size, tiling.rows), pieces(states, tiling.columns)
    padded = parts * tiling.columns
    more = padded - states
    tile = pad(factors.log_tiles[0], (0, more, 0, more), value=-torch.inf)
    tile = tile.view(padded, parts, tiling.columns).transpose(0, 1).contiguous()
    slots = length + 1 if keep_way else 2
    scores = torch.empty(slots, row_tiles, padded, tiling.rows, device=device)
    previous = pad(factors.log_previous, (0, more, 0, row_tiles * tiling.rows - size), value=-torch.inf)
    scores[0] = previous.view(row_tiles, tiling.rows, padded).transpose(1, 2)
    peaks = torch.empty(length + 1, size, parts, device=device)
    peaks[0] = factors.log_previous.amax(1, keepdim=True)
    arrived = torch.zeros(1, dtype=torch.int32, device=device)
    programs = row_tiles * parts
    options: dict[str, Any] = {"num_warps": tiling.num_warps}
    if persistent:
        # Programs that wait for one another must all run at once.
        programs = min(programs, tiling.programs_at_once * multiprocessors(device))
        if device.type == "cuda":
            options["launch_cooperative_grid"] = True
    for first in [0] if persistent else range(length):
        kernel.max_steps[(programs,)](
            *(scores, tile, factors.log_emission.contiguous(), factors.log_inits.contiguous()),
            *(factors.init_of.contiguous(), factors.lengths, peaks, arrived),
            *(size, length, states, slots, first, length if persistent else first + 1),
            PARTS=power_of_2(parts),
            ROWS=tiling.rows,
            COLUMNS=tiling.columns,
            UNROLL=tiling.unroll,
            PERSISTENT=persistent,
            **options,
        )
    gains = torch.where(factors.within(), peaks[1:].amax(2).T, 0.0)
    last = scores[length % slots].transpose(1, 2).reshape(-1, padded)[:size, :states]
    # Where the text fills all positions the last step's scores are raw.
    shift = torch.where((factors.lengths == length) & (gains[:, -1] > -torch.inf), gains[:, -1], 0.0)
    return gains, last - shift[:, None], KeptScores(scores, tile) if keep_way else None


def trace(
    factors: Factors, way: KeptScores, last_slot: Int[Tensor, " B"]
) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """The best path that ends in `last_slot`, -1 past the length, and its slot before position 0."""
    _, row_tiles, padded, rows = way.scores.shape
    size, length = factors.init_of.shape
    path, first_slot = torch.empty_like(factors.tile_of), torch.empty_like(last_slot)
    kernel.trace_path[(size,)](
        *(way.scores, way.tile, factors.init_of.contiguous(), factors.lengths, last_slot.contiguous()),
        *(path, first_slot, length, row_tiles, padded),
        ROWS=rows,
        COLUMNS=way.tile.shape[2],
        BLOCK=min(2048, power_of_2(padded)),
        num_warps=4,
    )
    return path, first_slot


def _tiling(size: int, states: int, multiprocessors: int) -> Tiling:
    """The smallest that needs no second round of programs, else the largest."""
    fitting = (
        one
        for one in TILINGS
        if pieces(size, one.rows) * pieces(states, one.columns) <= one.programs_at_once * multiprocessors
    )
    return next(fitting, TILINGS[-1])
