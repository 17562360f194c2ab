"""The recursion of a dense HMM on a GPU when programs can hold the tile among them: `ops.recursion.dense` calls these kernels.

The mathematics is that of `ops.recursion.kernel` and `ops.recursion.backward.kernel`. A program owns ROWS sequences x COLUMNS states
at every position and keeps the SOURCES x COLUMNS part of the tile that leads there, so a position reads only the message of its
sequences: from the programs that own the other states of the same ones. Those alone are waited for.

There are no signals. The messages of each position lie in memory of their own, filled with NaN beforehand, as do their sums; a
reader reads again until all are numbers. A reader stops at its bound and writes NaN, see `ops.waiting`.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.recursion.backward.kernel import carried_back, reached_by
from vlhmm.ops.recursion.exponentials.kernel import SMALLEST_NORMAL, bounded, emission_weight
from vlhmm.ops.recursion.kernel import inverse_of, store_least
from vlhmm.ops.waiting.kernel import report


@triton.jit
@no_type_check
def own_tile(tile, columns, states, source_stride, column_stride, SOURCES: tl.constexpr):
    sources = tl.arange(0, SOURCES)
    at = sources[:, None].to(tl.int64) * source_stride + columns[None, :].to(tl.int64) * column_stride
    return tl.load(tile + at, mask=(sources < states)[:, None] & (columns < states)[None, :], other=0.0)


@triton.jit
@no_type_check
def read_message(message, rows, size, states, SOURCES: tl.constexpr):
    """Read anew each time, past the nearest cache."""
    sources = tl.arange(0, SOURCES)
    at = rows[:, None].to(tl.int64) * states + sources[None, :]
    return tl.load(message + at, mask=(rows < size)[:, None] & (sources < states)[None, :], other=0.0, volatile=True)


@triton.jit
@no_type_check
def read_sums(sums, rows, size, parts, PARTS: tl.constexpr):
    every_part = tl.arange(0, PARTS)
    at = rows[:, None].to(tl.int64) * parts + every_part[None, :]
    mask = (rows < size)[:, None] & (every_part < parts)[None, :]
    return tl.sum(tl.load(sums + at, mask=mask, other=0.0, volatile=True), 1)


@triton.jit
@no_type_check
def any_unwritten(message, total):
    """Whether a number is missing yet, with one answer for the whole program.

    Sums are few: where they have fewer entries than the program has threads, each warp reads all of them for itself, at a time
    of its own. Were each to decide by what it has read, some would leave a loop that the others stay in, whose barriers then meet
    others: the program goes wrong, or never ends. So what every thread has seen is put together over the message, of which each
    thread has a part of its own.
    """
    missing = tl.max((total != total).to(tl.int32), 0)
    return tl.max(tl.where(message == message, missing, 1)) > 0


@triton.jit
@no_type_check
def read_written(
    messages,
    sums,
    rows,
    size,
    states,
    parts,
    polls_left,
    reports,
    step,
    OPERATION: tl.constexpr,
    SOURCES: tl.constexpr,
    PARTS: tl.constexpr,
    PERSISTENT: tl.constexpr,
):
    """A message and its sum once all of it is written, and how many polls the next wait may take: 0 where this one has taken all."""
    message = read_message(messages, rows, size, states, SOURCES)
    total = read_sums(sums, rows, size, parts, PARTS)
    if PERSISTENT:
        polls = 0
        unwritten = any_unwritten(message, total)
        while unwritten & (polls < polls_left):
            message = read_message(messages, rows, size, states, SOURCES)
            total = read_sums(sums, rows, size, parts, PARTS)
            unwritten = any_unwritten(message, total)
            polls += 1
        if unwritten & (polls_left > 0):
            report(reports, OPERATION, step)
            polls_left = 0
    return message, total, polls_left


@triton.jit(do_not_specialize=["polls_left", "first_step", "end_step"])
@no_type_check
def forward_steps(
    operand,
    messages,
    tile,
    log_rows,
    peaks,
    row_of,
    inits,
    init_of,
    lengths,
    sums,
    lows,
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
    COLUMNS: tl.constexpr,
    SOURCES: tl.constexpr,
    KEEP: tl.constexpr,
    PERSISTENT: tl.constexpr,
    OPERATION: tl.constexpr,
):
    """Step t makes message t + 1, that of position t, from message t; the last message is divided by its sum at the end."""
    parts = tl.cdiv(states, COLUMNS)
    part = tl.program_id(0) % parts
    row_tile = tl.program_id(0) // parts
    rows = row_tile * ROWS + tl.arange(0, ROWS)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    in_batch = rows < size
    in_tile = in_batch[:, None] & (columns < states)[None, :]
    at = rows[:, None].to(tl.int64) * states + columns[None, :]
    slot_size = tl.cast(size, tl.int64) * states
    sums_size = tl.cast(size, tl.int64) * parts
    length = tl.load(lengths + rows, mask=in_batch, other=0)
    own = own_tile(tile, columns, states, states, 1, SOURCES)
    last = tl.load(messages + (first_step % slots) * slot_size + at, mask=in_tile, other=0.0)
    for t in tl.range(first_step, end_step, num_stages=1):
        per_position = rows.to(tl.int64) * num_positions + t
        within = t < length
        # Read before the wait, which hides that of these.
        weight = emission_weight(log_rows, peaks, row_of, per_position, columns, states, within, in_tile)
        init = tl.load(init_of + per_position, mask=in_batch, other=0)
        begins = init >= 0
        begun = tl.load(
            inits + init[:, None].to(tl.int64) * states + columns[None, :],
            mask=in_tile & begins[:, None],
            other=0.0,
        )
        message, total, polls_left = read_written(
            operand + t * slot_size,
            sums + t * sums_size,
            rows,
            size,
            states,
            parts,
            polls_left,
            reports,
            t,
            OPERATION,
            SOURCES,
            PARTS,
            PERSISTENT,
        )
        # The message before position 0 is taken as it is; one carried over past the length has been divided already.
        inverse = inverse_of(total, (t > 0) & (t <= length))
        predicted = tl.dot(message, own, input_precision="ieee") * inverse[:, None]
        # What has once become impossible stays so, also when the states begin anew.
        predicted = tl.where(begins[:, None], tl.where((total > 0)[:, None], begun, 0.0), predicted)
        if PERSISTENT:
            predicted = tl.where(polls_left > 0, predicted, float("nan"))
        joint = tl.where(within[:, None], predicted * weight, 0.0)
        # The others wait for these: first of all.
        tl.store(operand + (t + 1) * slot_size + at, bounded(joint).to(operand.dtype.element_ty), mask=in_tile)
        of_part = (t * tl.cast(size, tl.int64) + rows) * parts + part
        tl.store(sums + sums_size + of_part, bounded(tl.sum(joint, 1)), mask=in_batch)
        store_least(lows, of_part, sums_size * num_positions, joint, predicted, weight, in_batch)
        before = last * inverse[:, None]
        if KEEP:
            tl.store(messages + t * slot_size + at, before, mask=in_tile)
        # Past the length the last message is carried on.
        last = tl.where(within[:, None], joint, before)
        if not PERSISTENT:
            tl.store(messages + ((t + 1) % slots) * slot_size + at, last, mask=in_tile)
    if PERSISTENT or first_step == num_positions:
        _, total, polls_left = read_written(
            operand + end_step * slot_size,
            sums + end_step * sums_size,
            rows,
            size,
            states,
            parts,
            polls_left,
            reports,
            end_step,
            OPERATION,
            SOURCES,
            PARTS,
            PERSISTENT,
        )
        inverse = inverse_of(total, end_step <= length)
        tl.store(messages + (end_step % slots) * slot_size + at, last * inverse[:, None], mask=in_tile)


@triton.jit(do_not_specialize=["polls_left", "first_step", "end_step"])
@no_type_check
def backward_steps(
    ratio,
    messages,
    tile,
    log_rows,
    peaks,
    row_of,
    posterior,
    init_of,
    lengths,
    scale,
    token_cotangent,
    last_cotangent,
    last_cotangent_sum,
    sums,
    flow,
    reports,
    polls_left,
    size,
    num_positions,
    states,
    first_step,
    end_step,
    PARTS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    SOURCES: tl.constexpr,
    PERSISTENT: tl.constexpr,
    OPERATION: tl.constexpr,
    NONNEGATIVE: tl.constexpr,
):
    """Step s makes r and Q of position t = T - 1 - s from r of position t + 1; the last one the flow into log_previous.

    `ratio` and `sums` have one position more, T, of zeros.
    """
    parts = tl.cdiv(states, COLUMNS)
    part = tl.program_id(0) % parts
    row_tile = tl.program_id(0) // parts
    rows = row_tile * ROWS + tl.arange(0, ROWS)
    columns = part * COLUMNS + tl.arange(0, COLUMNS)
    in_batch = rows < size
    in_tile = in_batch[:, None] & (columns < states)[None, :]
    at = rows[:, None].to(tl.int64) * states + columns[None, :]
    slot_size = tl.cast(size, tl.int64) * states
    sums_size = tl.cast(size, tl.int64) * parts
    length = tl.load(lengths + rows, mask=in_batch, other=0)
    asked_of_last_sum = tl.load(last_cotangent_sum + rows, mask=in_batch, other=0.0)
    own = own_tile(tile, columns, states, 1, states, SOURCES)
    for step in tl.range(first_step, end_step, num_stages=1):
        t = num_positions - 1 - step
        per_position = rows.to(tl.int64) * num_positions + t
        here = in_batch & (t >= 0)
        within = (t < length) & here
        # Read before the wait, which hides that of these.
        next_moves = t + 1 < length
        next_moves = next_moves & (tl.load(init_of + per_position + 1, mask=next_moves, other=0) < 0)
        known = next_moves & (t + 2 < length)
        known = known & (tl.load(init_of + per_position + 2, mask=known, other=0) < 0)
        expected = tl.load(token_cotangent + per_position + 2, mask=known, other=0.0)
        message = tl.load(messages + (t + 1) * slot_size + at, mask=in_tile, other=0.0)
        weight = emission_weight(log_rows, peaks, row_of, per_position, columns, states, within, in_tile)
        ends = (t == length - 1) & here
        asked_of_last = tl.load(last_cotangent + at, mask=in_tile & ends[:, None] & (message > 0), other=0.0)
        asked_of_last = asked_of_last / tl.maximum(message, SMALLEST_NORMAL)
        flow_sum = tl.load(token_cotangent + per_position + 1, mask=next_moves & here, other=0.0)
        flow_sum += tl.where(ends, asked_of_last_sum, 0.0)
        asked = tl.load(token_cotangent + per_position, mask=within, other=0.0)
        total = tl.load(scale + per_position, mask=within, other=0.0)
        moves = within & (total > 0)
        moves = moves & (tl.load(init_of + per_position, mask=within, other=0) < 0)
        weight = weight / tl.where(moves, total, 1.0)[:, None]
        following, found, polls_left = read_written(
            ratio + (t + 1) * slot_size,
            sums + (t + 1) * sums_size,
            rows,
            size,
            states,
            parts,
            polls_left,
            reports,
            step,
            OPERATION,
            SOURCES,
            PARTS,
            PERSISTENT,
        )
        backed = tl.dot(following, own, input_precision="ieee")
        # What rounding took from the sum of F at t + 1, which ought to be what the token at t + 2 was asked.
        missing = tl.where(known, expected - found, 0.0)
        backed = tl.where(next_moves[:, None], backed + missing[:, None], 0.0)
        if PERSISTENT:
            backed = tl.where(polls_left > 0, backed, float("nan"))
        if t >= 0:
            backed = tl.where(ends[:, None], asked_of_last, backed)
            reached = reached_by(message, backed)
            carries = moves[:, None] & reached & (weight > 0)
            value = backed + (asked - flow_sum)[:, None]
            r = bounded(carried_back(value, weight, carries))
            # The others wait for these: first of all.
            tl.store(ratio + t * slot_size + at, r.to(ratio.dtype.element_ty), mask=in_tile)
            flow_here = bounded(tl.sum(tl.where(reached, message * backed, 0.0), 1))
            tl.store(sums + t * sums_size + rows.to(tl.int64) * parts + part, flow_here, mask=in_batch)
            # What flows back to a state that is not reached may be of any size.
            probability = tl.where(within[:, None] & reached, message * value, 0.0)
            if NONNEGATIVE:
                probability = tl.where(probability < 0, 0.0, probability)
            posterior_at = (rows[:, None].to(tl.int64) * num_positions + t) * states + columns[None, :]
            tl.store(posterior + posterior_at, probability, mask=in_tile)
        else:
            tl.store(flow + at, tl.where(reached_by(message, backed), message * backed, 0.0), mask=in_tile)
