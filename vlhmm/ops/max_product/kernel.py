"""Max-product on a GPU when every position takes the one tile: a dense HMM. `dense.py` calls these kernels.

No matrix unit takes maxima, so each pair of states costs an addition and a maximum on the plain ones: nothing else may
stand in the loop. The index of the maximum would double its work; instead all scores are kept, and the way back seeks the
predecessor of the one state a position that is on the path. For the same reason scores and tile are stored in the order in
which the loop reads them, padded with -inf: its addresses are constants, and it has no masks.

    scores  (slot, row tile, state, ROWS)     tile  (part, source state, COLUMNS)

As in the recursion, a score is written raw beside its maximum over each tile of states, and its reader subtracts.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.recursion.kernel import grid_barrier


@triton.jit(do_not_specialize=["first_step", "end_step"])
@no_type_check
def max_steps(
    scores,
    tile,
    log_emission,
    log_inits,
    init_of,
    lengths,
    peaks,
    arrived,
    size,
    num_positions,
    states,
    slots,
    first_step,
    end_step,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    UNROLL: tl.constexpr,
    PERSISTENT: tl.constexpr,
):
    """Step t makes the scores of position t from those before it; past the length they are carried over."""
    parts = tl.cdiv(states, COLUMNS)
    padded = parts * COLUMNS
    row_tiles = tl.cdiv(size, ROWS)
    row_tile_size = tl.cast(padded, tl.int64) * ROWS
    # One stage: the reads of a step must not be moved before the barrier that makes them valid.
    for t in tl.range(first_step, end_step, num_stages=1):
        for index in tl.range(tl.program_id(0), row_tiles * parts, tl.num_programs(0), num_stages=1):
            part = index // row_tiles
            row_tile = index % row_tiles
            own_rows = tl.arange(0, ROWS)
            own_columns = tl.arange(0, COLUMNS)
            rows = row_tile * ROWS + own_rows
            columns = part * COLUMNS + own_columns
            in_batch = rows < size
            in_tile = in_batch[:, None] & (columns < states)[None, :]
            length = tl.load(lengths + rows, mask=in_batch, other=0)
            every_part = tl.arange(0, PARTS)
            peak = tl.max(
                tl.load(
                    peaks + (t * tl.cast(size, tl.int64) + rows[:, None]) * parts + every_part[None, :],
                    mask=in_batch[:, None] & (every_part < parts)[None, :],
                    other=float("-inf"),
                ),
                1,
            )
            alive = peak > float("-inf")
            # Scores that were carried over past the length are relative to their best already.
            shift = tl.where(alive & (t <= length), peak, 0.0)
            within = t < length
            init = tl.load(init_of + rows.to(tl.int64) * num_positions + t, mask=in_batch, other=0)
            begins = init >= 0
            before = scores + ((t % slots) * row_tiles + row_tile) * row_tile_size
            following = scores + (((t + 1) % slots) * row_tiles + row_tile) * row_tile_size
            best = tl.full((ROWS, COLUMNS), float("-inf"), dtype=tl.float32)
            before_at = before + own_rows[:, None]
            tile_at = tile + part * tl.cast(padded, tl.int64) * COLUMNS + own_columns[None, :]
            for _ in range(0, tl.max((within & (init < 0)).to(tl.int32), 0) * padded, UNROLL):
                for source in tl.static_range(UNROLL):
                    best = tl.maximum(best, tl.load(before_at + source * ROWS) + tl.load(tile_at + source * COLUMNS))
                before_at += UNROLL * ROWS
                tile_at += UNROLL * COLUMNS
            begun = tl.load(
                log_inits + init[:, None].to(tl.int64) * states + columns[None, :],
                mask=in_tile & begins[:, None],
                other=float("-inf"),
            )
            emission_at = (rows[:, None].to(tl.int64) * num_positions + t) * states + columns[None, :]
            emission = tl.load(log_emission + emission_at, mask=in_tile, other=float("-inf"))
            score = tl.where(begins[:, None], begun, best - shift[:, None]) + emission
            # What has once become impossible stays so, also when the states begin anew.
            score = tl.where(alive[:, None], score, float("-inf"))
            own = columns[None, :].to(tl.int64) * ROWS + own_rows[:, None]
            carried = tl.load(before + own, mask=in_tile & (~within)[:, None], other=float("-inf")) - shift[:, None]
            # The padding is written as well: the next step reads it.
            tl.store(following + own, tl.where(within[:, None], score, carried))
            peak_at = ((t + 1) * tl.cast(size, tl.int64) + rows) * parts + part
            tl.store(peaks + peak_at, tl.max(score, 1), mask=in_batch)
        if PERSISTENT:
            grid_barrier(arrived, (t + 1) * tl.num_programs(0))


@triton.jit
@no_type_check
def trace_path(
    scores,
    tile,
    init_of,
    lengths,
    last_slot,
    path,
    first_slot,
    num_positions,
    row_tiles,
    padded,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """A program follows one sequence from its last state back; of equal predecessors it takes the first."""
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    here = tl.load(last_slot + row).to(tl.int64)
    per_position = tl.cast(row, tl.int64) * num_positions
    for step in tl.range(0, num_positions, num_stages=1):
        t = num_positions - 1 - step
        within = t < length
        tl.store(path + per_position + t, tl.where(within, here, -1))
        moves = tl.load(init_of + per_position + t) < 0
        score_at = scores + ((t * row_tiles + row // ROWS) * tl.cast(padded, tl.int64)) * ROWS + row % ROWS
        tile_at = tile + (here // COLUMNS) * padded * COLUMNS + here % COLUMNS
        best = float("-inf")
        before = tl.cast(0, tl.int64)
        for first in range(0, tl.where(within, padded, 0), BLOCK):
            source = first + tl.arange(0, BLOCK).to(tl.int64)
            score = tl.load(score_at + source * ROWS, mask=source < padded, other=float("-inf"))
            move = tl.load(tile_at + source * COLUMNS, mask=(source < padded) & moves, other=float("-inf"))
            score += tl.where(moves, move, 0.0)
            block_best, block_before = tl.max(score, 0, return_indices=True)
            better = block_best > best
            before = tl.where(better, first + block_before.to(tl.int64), before)
            best = tl.where(better, block_best, best)
        here = tl.where(within, before, here)
    tl.store(first_slot + row, here)
