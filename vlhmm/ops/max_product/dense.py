"""Max-product when every position takes the one tile, on a GPU: what is allocated, and how the work is tiled."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn.functional import pad

from vlhmm.ops import waiting
from vlhmm.ops.max_product import kernel
from vlhmm.ops.max_product.kept import KeptScores
from vlhmm.ops.recursion.factors import Factors
from vlhmm.ops.recursion.tilings import meet
from vlhmm.ops.sizes import cdiv, power_of_2


@dataclass(frozen=True)
class Tiling:
    """A program makes the scores of `rows` sequences x 4 `width` states, four source states at a time; `split` groups of threads
    share the source states."""

    rows: int
    in_thread: int
    """Rows that one thread has."""
    width: int
    """Above half of the rows of a thread: else the scores that threads share pass through shared memory."""
    split: int
    """A share is a multiple of four source states: so is `columns` of four times this."""
    num_warps: int

    @property
    def columns(self) -> int:
        return 4 * self.width


def tiling_for(states: int) -> Tiling:
    """Eight parts of up to 512 states: with two hundred sequences nearly as many programs as an H200 has multiprocessors."""
    width = min(128, max(16, power_of_2(states) // 32))
    warps = 8 if width <= 32 else 16
    return Tiling(rows=16, in_thread=8, width=width, split=16 * warps // width, num_warps=warps)


@dataclass(frozen=True)
class Moves:
    """The tile in the order in which the kernel reads it, for a tiling: made once for an HMM that stays as it is."""

    tiling: Tiling
    tile: Float[Tensor, "parts fours columns 4"]


def moves(log_tile: Float[Tensor, "K K"], tiling: Tiling | None = None) -> Moves:
    states = log_tile.shape[0]
    tiling = tiling or tiling_for(states)
    parts = cdiv(states, tiling.columns)
    padded = parts * tiling.columns
    tile = pad(log_tile, (0, padded - states, 0, padded - states), value=-torch.inf)
    return Moves(tiling, tile.view(padded // 4, 4, parts, tiling.columns).permute(2, 0, 3, 1).contiguous())


def max_product(
    factors: Factors, keep_backtrace: bool, *, persistent: bool | None = None, tiling: Tiling | None = None
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"], KeptScores | None]:
    """As the reference, with scores in place of back-pointers. `persistent`: see `best_scores`."""
    size, length, states = factors.log_emission.shape
    return best_scores(
        moves(factors.log_tiles[0], tiling),
        factors.log_emission.contiguous().view(-1, states),
        torch.arange(size * length, device=factors.lengths.device).view(size, length),
        factors.log_inits.contiguous(),
        factors.init_of.contiguous(),
        factors.log_previous,
        factors.lengths,
        keep_backtrace,
        persistent=persistent,
    )


def best_scores(
    moves: Moves,
    log_rows: Float[Tensor, "N K"],
    row_of: Int[Tensor, "B T"],
    log_inits: Float[Tensor, "I K"],
    init_of: Int[Tensor, "B T"],
    log_previous: Float[Tensor, "B K"],
    lengths: Int[Tensor, " B"],
    keep_backtrace: bool,
    *,
    persistent: bool | None = None,
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"], KeptScores | None]:
    """`max_product` where the log emission at position t of sequence b is row `row_of[b, t]` of `log_rows`.

    `persistent`: one kernel for all positions, else one for each (None: the first where all its programs run at once).
    """
    size, length = row_of.shape
    states, device, tiling = log_rows.shape[1], log_rows.device, moves.tiling
    parts = moves.tile.shape[0]
    padded = parts * tiling.columns
    row_tiles = cdiv(size, tiling.rows)
    programs = row_tiles * parts
    if persistent is None:
        # Triton's interpreter runs programs sequentially, so a grid barrier would never be passed.
        persistent = meet(programs, device)
    slots = length + 1 if keep_backtrace else 2
    scores = torch.empty(slots, row_tiles, padded, tiling.rows, device=device)
    peaks = torch.empty(length + 1, size, parts, device=device)
    # One barrier counter for each cache line, so that atomics on one do not contend with another (false sharing).
    arrived = torch.empty(row_tiles, 32, dtype=torch.int32, device=device)
    kernel.begin[(programs,)](
        *(log_previous.contiguous(), scores, peaks, arrived, size, states), ROWS=tiling.rows, COLUMNS=tiling.columns
    )
    options: dict[str, Any] = {"num_warps": tiling.num_warps}
    if persistent:
        options |= waiting.cooperative_options(device)
    for first in [0] if persistent else range(length):
        kernel.max_steps[(programs,)](
            *(scores, moves.tile, log_rows, row_of, log_inits, init_of, lengths, peaks, arrived),
            *(waiting.reports(device), waiting.MAX_POLLS),
            *(size, length, states, slots, first, length if persistent else first + 1),
            PARTS=power_of_2(parts),
            ROWS=tiling.rows,
            IN_THREAD=tiling.in_thread,
            WIDTH=tiling.width,
            SPLIT=tiling.split,
            PERSISTENT=persistent,
            OPERATION=waiting.MAX_PRODUCT,
            **options,
        )
    gains = torch.empty(size, length, device=device)
    log_best = torch.empty(size, states, device=device)
    kernel.finish[(programs,)](
        *(scores, peaks, lengths, gains, log_best, size, length, states, slots),
        PARTS=power_of_2(parts),
        ROWS=tiling.rows,
        COLUMNS=tiling.columns,
    )
    return gains, log_best, KeptScores(scores, moves.tile) if keep_backtrace else None


def trace(
    init_of: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], backtrace: KeptScores, last_slot: Int[Tensor, " B"]
) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """The best path that ends in `last_slot`, -1 past the length, and its slot before position 0."""
    _, row_tiles, padded, rows = backtrace.scores.shape
    size, length = init_of.shape
    path = torch.empty(size, length, dtype=torch.int64, device=lengths.device)
    first_slot = torch.empty_like(last_slot)
    kernel.trace_path[(size,)](
        *(backtrace.scores, backtrace.tile, init_of.contiguous(), lengths, last_slot.contiguous()),
        *(path, first_slot, length, row_tiles, padded),
        ROWS=rows,
        COLUMNS=backtrace.tile.shape[2],
        BLOCK=min(2048, power_of_2(padded)),
        num_warps=4,
    )
    return path, first_slot
