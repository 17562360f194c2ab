"""Max-product on a GPU when every position takes the one tile: a dense HMM. `dense.py` calls these kernels.

Tensor cores have no max-plus product, so each pair of states costs an addition and a maximum on the ordinary (CUDA) cores: the inner
loop must hold nothing else. The index of the maximum would double its work; instead all scores are kept, and the backtrace seeks the
predecessor of the one state a position that is on the path. For the same reason scores and tile are stored in the order in
which the loop reads them, padded with -inf: its addresses are constants, and it has no masks.

    scores  (slot, row tile, state, ROWS)     tile  (part, source state / 4, 4 WIDTH, source state % 4)

A thread has up to 16 rows x 4 scores in its registers: four source states cost it 16 reads of scores that its neighbours share and
4 of the tile, 16 bytes each. It reads those of the next four before it needs them: a multiprocessor has registers for so few threads that
they could not hide the memory's latency otherwise. SPLIT groups of threads take a share of the source states each. Every thread reads
what it needs by itself, and nothing passes through shared memory, only where a tensor of scores has fewer entries than there are
threads: hence halves of the rows.

As in the recursion, a score is written raw beside its maximum over each tile of states, and its reader subtracts. A position needs
the scores of the same sequences only, so a program waits for those that own the other states of them. One whose wait
reaches its bound writes infinite scores, see `ops.waiting`: a maximum ignores NaN.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.waiting.kernel import wait_for_count


@triton.jit
@no_type_check
def arrive(arrived):
    """What any thread of the program has written is visible to every program that sees the count."""
    tl.debug_barrier()
    tl.atomic_add(arrived, 1, sem="release", scope="gpu")


@triton.jit
@no_type_check
def read_peaks(peaks, t, rows, size, parts, PARTS: tl.constexpr):
    """(ROWS, PARTS): the best score before position t among each part of the states."""
    part = tl.arange(0, PARTS)
    at = (t * tl.cast(size, tl.int64) + rows[:, None]) * parts + part[None, :]
    return tl.load(peaks + at, mask=(rows < size)[:, None] & (part < parts)[None, :], other=float("-inf"))


@triton.jit
@no_type_check
def begin(
    log_previous,
    scores,
    peaks,
    arrived,
    size,
    states,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The scores before position 0, in the order of the others; no program has arrived."""
    parts = tl.cdiv(states, COLUMNS)
    part = tl.program_id(0) % parts
    row_tile = tl.program_id(0) // parts
    own_rows = tl.arange(0, ROWS)
    rows = row_tile * ROWS + own_rows
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    in_batch = rows < size
    previous = tl.load(
        log_previous + rows[:, None].to(tl.int64) * states + columns[None, :],
        mask=in_batch[:, None] & (columns < states)[None, :],
        other=float("-inf"),
    )
    own = (row_tile * tl.cast(parts * COLUMNS, tl.int64) + columns[None, :]) * ROWS + own_rows[:, None]
    tl.store(scores + own, previous)
    tl.store(peaks + rows * parts + part, tl.max(previous, 1), mask=in_batch)
    tl.store(arrived + row_tile * 32, 0)


@triton.jit
@no_type_check
def read_before(at, HALF: tl.constexpr, ROWS: tl.constexpr):
    """The scores of four source states, in halves of a thread's rows."""
    return (
        tl.load(at),
        tl.load(at + HALF),
        tl.load(at + ROWS),
        tl.load(at + (ROWS + HALF)),
        tl.load(at + 2 * ROWS),
        tl.load(at + (2 * ROWS + HALF)),
        tl.load(at + 3 * ROWS),
        tl.load(at + (3 * ROWS + HALF)),
    )


@triton.jit
@no_type_check
def of_each(moves):
    """Those of each of the four source states, which lie side by side."""
    GROUPS: tl.constexpr = moves.shape[0]
    WIDTH: tl.constexpr = moves.shape[2]
    even, odd = tl.split(tl.reshape(moves, (GROUPS, 1, WIDTH, 2, 2)))
    move_0, move_2 = tl.split(even)
    move_1, move_3 = tl.split(odd)
    return move_0, move_1, move_2, move_3


@triton.jit
@no_type_check
def read_moves(at, WIDTH: tl.constexpr):
    """From four source states into a column of each quarter."""
    return tl.load(at), tl.load(at + 4 * WIDTH), tl.load(at + 8 * WIDTH), tl.load(at + 12 * WIDTH)


@triton.jit
@no_type_check
def better(best, low, high, move_0, move_1, move_2, move_3):
    low_0, low_1, low_2, low_3, high_0, high_1, high_2, high_3 = best
    return (
        tl.maximum(low_0, low + move_0),
        tl.maximum(low_1, low + move_1),
        tl.maximum(low_2, low + move_2),
        tl.maximum(low_3, low + move_3),
        tl.maximum(high_0, high + move_0),
        tl.maximum(high_1, high + move_1),
        tl.maximum(high_2, high + move_2),
        tl.maximum(high_3, high + move_3),
    )


@triton.jit
@no_type_check
def better_of_four(best, before, moves):
    """The best so far, or by way of one of four source states."""
    low_0, high_0, low_1, high_1, low_2, high_2, low_3, high_3 = before
    into_0, into_1, into_2, into_3 = moves
    move_00, move_10, move_20, move_30 = of_each(into_0)
    move_01, move_11, move_21, move_31 = of_each(into_1)
    move_02, move_12, move_22, move_32 = of_each(into_2)
    move_03, move_13, move_23, move_33 = of_each(into_3)
    best = better(best, low_0, high_0, move_00, move_01, move_02, move_03)
    best = better(best, low_1, high_1, move_10, move_11, move_12, move_13)
    best = better(best, low_2, high_2, move_20, move_21, move_22, move_23)
    return better(best, low_3, high_3, move_30, move_31, move_32, move_33)


@triton.jit
@no_type_check
def together(best, SPLIT: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """(ROWS, COLUMNS): the best of all shares of the source states."""
    low_0, low_1, low_2, low_3, high_0, high_1, high_2, high_3 = best
    low = tl.join(tl.join(low_0, low_2), tl.join(low_1, low_3))
    every = tl.join(low, tl.join(tl.join(high_0, high_2), tl.join(high_1, high_3)))
    HALF: tl.constexpr = every.shape[1]
    every = tl.reshape(every, (SPLIT, ROWS // (2 * HALF), HALF, COLUMNS // 4, 2, 2, 2))
    # From (rows of a thread, half row, column of a quarter, quarter / 2, quarter % 2, half).
    return tl.reshape(tl.permute(tl.max(every, 0), (0, 5, 1, 3, 4, 2)), (ROWS, COLUMNS))


@triton.jit(do_not_specialize=["polls_left", "first_step", "end_step"])
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
    reports,
    polls_left,
    size,
    num_positions,
    states,
    slots,
    first_step,
    end_step,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    IN_THREAD: tl.constexpr,
    WIDTH: tl.constexpr,
    SPLIT: tl.constexpr,
    PERSISTENT: tl.constexpr,
    OPERATION: tl.constexpr,
):
    """Step t makes the scores of position t from those before it; past the length they are carried over."""
    COLUMNS: tl.constexpr = 4 * WIDTH
    HALF: tl.constexpr = IN_THREAD // 2
    GROUPS: tl.constexpr = SPLIT * (ROWS // IN_THREAD)
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
    by_row = part * tl.cast(COLUMNS * ROWS, tl.int64) + own_rows[:, None] * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    group = tl.arange(0, GROUPS)
    first_source = group // (ROWS // IN_THREAD) * share
    first_row = group % (ROWS // IN_THREAD) * IN_THREAD
    before_in = (first_source * ROWS + first_row)[:, None, None] + tl.arange(0, HALF)[None, :, None]
    tile_in = (first_source * COLUMNS)[:, None, None, None] + tl.arange(0, WIDTH)[None, None, :, None] * 4
    tile_in += tl.arange(0, 4)[None, None, None, :]
    tile_in += part * tl.cast(padded, tl.int64) * COLUMNS
    length = tl.load(lengths + rows, mask=in_batch, other=0)
    # num_stages=1: software pipelining would move the loads of a step before the barrier that makes them valid.
    for t in tl.range(first_step, end_step, num_stages=1):
        per_position = rows.to(tl.int64) * num_positions + t
        within = t < length
        # Loads that do not depend on other programs are issued before the barrier, whose wait hides their latency.
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
        sources = tl.max((within & (init < 0)).to(tl.int32), 0) * share
        before = scores + ((t % slots) * row_tiles + row_tile) * row_tile_size
        following = scores + (((t + 1) % slots) * row_tiles + row_tile) * row_tile_size
        before_at = before + before_in
        tile_at = tile + tile_in
        moves = read_moves(tile_at, WIDTH)
        if PERSISTENT:
            polls_left = wait_for_count(arrived + row_tile * 32, t * parts, polls_left, reports, OPERATION, t)
        peak_of_part = read_peaks(peaks, t, rows, size, parts, PARTS)
        ahead = read_before(before_at, HALF, ROWS)
        none = tl.full((GROUPS, HALF, WIDTH), float("-inf"), dtype=tl.float32)
        best = (none, none, none, none, none, none, none, none)
        for source in range(0, sources, 4):
            # The prefetch of the last iteration repeats the same addresses: those behind are out of bounds.
            forward = tl.where(source + 4 < share, 4, 0)
            before_at += forward * ROWS
            tile_at += forward * COLUMNS
            best = better_of_four(best, ahead, moves)
            moves = read_moves(tile_at, WIDTH)
            ahead = read_before(before_at, HALF, ROWS)
        peak = tl.max(peak_of_part, 1)
        alive = peak > float("-inf")
        # Scores carried over past the length are already normalised by their maximum.
        shift = tl.where(alive & (t <= length), peak, 0.0)
        # A change of register layout by way of memory: each thread continues with its own scores, in the layout of the emissions.
        # Otherwise all threads would repeat the same work.
        tl.store(following + by_row, together(best, SPLIT, ROWS, COLUMNS))
        tl.debug_barrier()
        score = tl.load(following + by_row)
        tl.debug_barrier()
        score = tl.where(begins[:, None], begun, score - shift[:, None]) + emission
        # A sequence of probability zero stays impossible, also after a restart from an initial row.
        score = tl.where(alive[:, None], score, float("-inf"))
        if PERSISTENT:
            score = tl.where(polls_left > 0, score, float("inf"))
        carried = tl.load(before + own, mask=in_tile & (~within)[:, None], other=float("-inf")) - shift[:, None]
        # Padding is stored too: the loads of the next step have no mask.
        tl.store(following + own, tl.where(within[:, None], score, carried))
        next_peak_at = ((t + 1) * tl.cast(size, tl.int64) + rows) * parts + part
        tl.store(peaks + next_peak_at, tl.max(score, 1), mask=in_batch)
        if PERSISTENT:
            arrive(arrived + row_tile * 32)


@triton.jit
@no_type_check
def finish(
    scores,
    peaks,
    lengths,
    gains,
    log_best,
    size,
    num_positions,
    states,
    slots,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """The gain at each position, 0 past the length, and the last scores relative to their best."""
    parts = tl.cdiv(states, COLUMNS)
    part = tl.program_id(0) % parts
    row_tile = tl.program_id(0) // parts
    own_rows = tl.arange(0, ROWS)
    rows = row_tile * ROWS + own_rows
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    in_batch = rows < size
    in_tile = in_batch[:, None] & (columns < states)[None, :]
    length = tl.load(lengths + rows, mask=in_batch, other=0)
    # A program has some of its sequences' positions.
    for t in range(part, num_positions, parts):
        gain = tl.max(read_peaks(peaks, t + 1, rows, size, parts, PARTS), 1)
        tl.store(gains + rows.to(tl.int64) * num_positions + t, tl.where(t < length, gain, 0.0), mask=in_batch)
    peak = tl.max(read_peaks(peaks, num_positions, rows, size, parts, PARTS), 1)
    # Past the length they are so already.
    shift = tl.where((length == num_positions) & (peak > float("-inf")), peak, 0.0)
    last_tile = (num_positions % slots) * tl.cdiv(size, ROWS) + row_tile
    own = (last_tile * tl.cast(parts * COLUMNS, tl.int64) + columns[None, :]) * ROWS + own_rows[:, None]
    last = tl.load(scores + own, mask=in_tile, other=float("-inf")) - shift[:, None]
    tl.store(log_best + rows[:, None].to(tl.int64) * states + columns[None, :], last, mask=in_tile)


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
    init = tl.load(init_of + per_position + num_positions - 1)
    for step in tl.range(0, num_positions, num_stages=1):
        t = num_positions - 1 - step
        within = t < length
        tl.store(path + per_position + t, tl.where(within, here, -1))
        moves = init < 0
        # Prefetched one step ahead, which hides the latency.
        init = tl.load(init_of + per_position + tl.maximum(t - 1, 0))
        score_at = scores + ((t * row_tiles + row // ROWS) * tl.cast(padded, tl.int64)) * ROWS + row % ROWS
        tile_at = tile + (here // COLUMNS) * padded * COLUMNS + here % COLUMNS * 4
        best = float("-inf")
        before = tl.cast(0, tl.int64)
        for first in range(0, tl.where(within, padded, 0), BLOCK):
            source = first + tl.arange(0, BLOCK).to(tl.int64)
            score = tl.load(score_at + source * ROWS, mask=source < padded, other=float("-inf"))
            # Loaded also where there is no transition: testing that first would add a dependent load.
            move_at = tile_at + source // 4 * (4 * COLUMNS) + source % 4
            move = tl.load(move_at, mask=source < padded, other=float("-inf"))
            score += tl.where(moves, move, 0.0)
            block_best, block_before = tl.max(score, 0, return_indices=True)
            better = block_best > best
            before = tl.where(better, first + block_before.to(tl.int64), before)
            best = tl.where(better, block_best, best)
        here = tl.where(within, before, here)
    tl.store(first_slot + row, here)
