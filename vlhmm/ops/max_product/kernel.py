"""Max-product on a GPU when every position takes the one tile: a dense HMM. `dense.py` calls these kernels.

No matrix unit takes maxima, so each pair of states costs an addition and a maximum on the plain ones: nothing else may
stand in the loop. The index of the maximum would double its work; instead all scores are kept, and the way back seeks the
predecessor of the one state a position that is on the path. For the same reason scores and tile are stored in the order in
which the loop reads them, padded with -inf: its addresses are constants, and it has no masks.

    scores  (slot, row tile, state, ROWS)     tile  (part, source state, 4 WIDTH)

A thread has ROWS x 4 scores in its registers: a source state costs it ROWS / 4 reads of scores that its neighbours share and 4 of
the tile. SPLIT groups of threads take a share of the source states each. Every thread reads what it needs by itself, and nothing
passes through shared memory, only where a tensor has fewer entries than there are threads: hence halves of the rows, quarters of the
columns.

As in the recursion, a score is written raw beside its maximum over each tile of states, and its reader subtracts. A position needs
the scores of the same sequences only, so a program waits for those that own the other states of them.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def arrive(arrived):
    """What any thread of the program has written is there for whoever sees the count."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release", scope="gpu")


@triton.jit
@no_type_check
def wait(arrived, target):
    while tl.atomic_add(arrived, 0, sem="acquire", scope="gpu") < target:
        pass
    tl.debug_barrier()


@triton.jit
@no_type_check
def side_by_side(best_0, best_1, best_2, best_3, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The best of all shares of the source states, of four columns each, as (ROWS, COLUMNS)."""
    left = tl.join(tl.max(best_0, 0), tl.max(best_1, 0))
    right = tl.join(tl.max(best_2, 0), tl.max(best_3, 0))
    return tl.reshape(tl.permute(tl.join(left, right), (0, 3, 2, 1)), (ROWS, COLUMNS))


@triton.jit(do_not_specialize=["first_step", "end_step"])
@no_type_check
def max_steps(
    scores,
    tile,
    log_rows,
    row_of,
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
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    UNROLL: tl.constexpr,
    PERSISTENT: tl.constexpr,
):
    """Step t makes the scores of position t from those before it; past the length they are carried over."""
    COLUMNS: tl.constexpr = 4 * WIDTH
    HALF: tl.constexpr = ROWS // 2
    parts = tl.cdiv(states, COLUMNS)
    padded = parts * COLUMNS
    share = padded // SPLIT
    row_tiles = tl.cdiv(size, ROWS)
    row_tile_size = tl.cast(padded, tl.int64) * ROWS
    part = tl.program_id(0) % parts
    row_tile = tl.program_id(0) // parts
    own_rows = tl.arange(0, ROWS)
    rows = row_tile * ROWS + own_rows
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    in_batch = rows < size
    in_tile = in_batch[:, None] & (columns < states)[None, :]
    own = columns[None, :].to(tl.int64) * ROWS + own_rows[:, None]
    first_source = tl.arange(0, SPLIT)[:, None, None] * share
    before_in = first_source * ROWS + tl.arange(0, HALF)[None, :, None]
    tile_in = first_source * COLUMNS + tl.arange(0, WIDTH)[None, None, :]
    tile_in += part * tl.cast(padded, tl.int64) * COLUMNS
    length = tl.load(lengths + rows, mask=in_batch, other=0)
    # One stage: the reads of a step must not be moved before the wait that makes them valid.
    for t in tl.range(first_step, end_step, num_stages=1):
        per_position = rows.to(tl.int64) * num_positions + t
        within = t < length
        # Read before the wait, which hides that of these.
        init = tl.load(init_of + per_position, mask=in_batch, other=0)
        begins = init >= 0
        row = tl.load(row_of + per_position, mask=within, other=0).to(tl.int64)
        emission_at = log_rows + row[:, None] * states + columns[None, :]
        emission = tl.load(emission_at, mask=in_tile & within[:, None], other=float("-inf"))
        begun = tl.load(
            log_inits + init[:, None].to(tl.int64) * states + columns[None, :],
            mask=in_tile & begins[:, None],
            other=float("-inf"),
        )
        before = scores + ((t % slots) * row_tiles + row_tile) * row_tile_size
        following = scores + (((t + 1) % slots) * row_tiles + row_tile) * row_tile_size
        if PERSISTENT:
            wait(arrived + row_tile * 32, t * parts)
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
        low_0 = tl.full((SPLIT, HALF, WIDTH), float("-inf"), dtype=tl.float32)
        low_1 = low_0
        low_2 = low_0
        low_3 = low_0
        high_0 = low_0
        high_1 = low_0
        high_2 = low_0
        high_3 = low_0
        before_at = before + before_in
        tile_at = tile + tile_in
        for _ in range(0, tl.max((within & (init < 0)).to(tl.int32), 0) * share, UNROLL):
            for source in tl.static_range(UNROLL):
                low = tl.load(before_at + source * ROWS)
                high = tl.load(before_at + (source * ROWS + HALF))
                move_0 = tl.load(tile_at + source * COLUMNS)
                move_1 = tl.load(tile_at + (source * COLUMNS + WIDTH))
                move_2 = tl.load(tile_at + (source * COLUMNS + 2 * WIDTH))
                move_3 = tl.load(tile_at + (source * COLUMNS + 3 * WIDTH))
                low_0 = tl.maximum(low_0, low + move_0)
                low_1 = tl.maximum(low_1, low + move_1)
                low_2 = tl.maximum(low_2, low + move_2)
                low_3 = tl.maximum(low_3, low + move_3)
                high_0 = tl.maximum(high_0, high + move_0)
                high_1 = tl.maximum(high_1, high + move_1)
                high_2 = tl.maximum(high_2, high + move_2)
                high_3 = tl.maximum(high_3, high + move_3)
            before_at += UNROLL * ROWS
            tile_at += UNROLL * COLUMNS
        low_rows = side_by_side(low_0, low_1, low_2, low_3, HALF, COLUMNS)
        high_rows = side_by_side(high_0, high_1, high_2, high_3, HALF, COLUMNS)
        best = tl.reshape(tl.permute(tl.join(low_rows, high_rows), (2, 0, 1)), (ROWS, COLUMNS))
        score = tl.where(begins[:, None], begun, best - shift[:, None]) + emission
        # What has once become impossible stays so, also when the states begin anew.
        score = tl.where(alive[:, None], score, float("-inf"))
        carried = tl.load(before + own, mask=in_tile & (~within)[:, None], other=float("-inf")) - shift[:, None]
        # The padding is written as well: the next step reads it.
        tl.store(following + own, tl.where(within[:, None], score, carried))
        peak_at = ((t + 1) * tl.cast(size, tl.int64) + rows) * parts + part
        tl.store(peaks + peak_at, tl.max(score, 1), mask=in_batch)
        if PERSISTENT:
            arrive(arrived + row_tile * 32)


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
