"""Loops over time for sixteen sequences at once: each stands in a lane of a vector, and all take a position together.

A single sequence is bound by latency: each position depends on the normaliser of the one before. Here a SIMD vector holds the same
state of sixteen sequences, so sums over states need no horizontal reduction, and the products of a position stay in registers: eight
columns of the transition times the messages of all lanes. A block without a result (underflow, probability zero, invalid token) keeps
its status: `exact` then computes or reports it.

Arrays are flat. `messages` (T, Z, 16): state z of lane l at position t is number (t Z + z) 16 + l. The rows of `emissions` are filled up to
a multiple of 16 states. A transition is packed: eight columns side by side, (columns / 8, Z, 8), so that it is read as it lies.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from vlhmm.compiled import compiled
from vlhmm.ops.small_dense.vectors import (
    WIDTH,
    load,
    over,
    plus,
    plus_product,
    smaller,
    spread,
    store,
    times,
    transpose,
    where_positive,
    zeros,
)

OK = 0
LANES, COLUMNS = WIDTH, 8
CHUNK = 8
"""Positions whose counts are added up in one product."""

exact = compiled()
inlined = compiled(inline=True)


@inlined
@no_type_check
def push(packed, states, messages, at, pushed):
    """pushed = the messages from `at` on times a packed transition."""
    place = 0
    for first in range(0, states, COLUMNS):
        sum_0 = sum_1 = sum_2 = sum_3 = sum_4 = sum_5 = sum_6 = sum_7 = zeros(messages)
        for source in range(at, at + states * LANES, LANES):
            mass = load(messages, source)
            sum_0 = plus_product(sum_0, spread(packed, place), mass)
            sum_1 = plus_product(sum_1, spread(packed, place + 1), mass)
            sum_2 = plus_product(sum_2, spread(packed, place + 2), mass)
            sum_3 = plus_product(sum_3, spread(packed, place + 3), mass)
            sum_4 = plus_product(sum_4, spread(packed, place + 4), mass)
            sum_5 = plus_product(sum_5, spread(packed, place + 5), mass)
            sum_6 = plus_product(sum_6, spread(packed, place + 6), mass)
            sum_7 = plus_product(sum_7, spread(packed, place + 7), mass)
            place += COLUMNS
        target = first * LANES
        store(pushed, target, sum_0)
        store(pushed, target + LANES, sum_1)
        store(pushed, target + 2 * LANES, sum_2)
        store(pushed, target + 3 * LANES, sum_3)
        store(pushed, target + 4 * LANES, sum_4)
        store(pushed, target + 5 * LANES, sum_5)
        store(pushed, target + 6 * LANES, sum_6)
        store(pushed, target + 7 * LANES, sum_7)


@exact
@no_type_check
def add_products(left, right, block_step, row_step, count, states, target):
    """target[z, y] += the sum of left[n, z] right[n, y] over `count` rows; rows of the target have a whole number of vectors.

    Sixteen columns of row n begin at `row_step` n; the next sixteen are `block_step` further.
    """
    width = (states + WIDTH - 1) // WIDTH * WIDTH
    for row in range(0, states, COLUMNS):
        left_at = row // WIDTH * block_step + row % WIDTH
        for first in range(0, states, WIDTH):
            right_at = first // WIDTH * block_step - left_at
            sum_0 = sum_1 = sum_2 = sum_3 = sum_4 = sum_5 = sum_6 = sum_7 = zeros(target)
            for at in range(left_at, left_at + count * row_step, row_step):
                values = load(right, right_at + at)
                sum_0 = plus_product(sum_0, spread(left, at), values)
                sum_1 = plus_product(sum_1, spread(left, at + 1), values)
                sum_2 = plus_product(sum_2, spread(left, at + 2), values)
                sum_3 = plus_product(sum_3, spread(left, at + 3), values)
                sum_4 = plus_product(sum_4, spread(left, at + 4), values)
                sum_5 = plus_product(sum_5, spread(left, at + 5), values)
                sum_6 = plus_product(sum_6, spread(left, at + 6), values)
                sum_7 = plus_product(sum_7, spread(left, at + 7), values)
            place = row * width + first
            store(target, place, plus(load(target, place), sum_0))
            place += width
            store(target, place, plus(load(target, place), sum_1))
            place += width
            store(target, place, plus(load(target, place), sum_2))
            place += width
            store(target, place, plus(load(target, place), sum_3))
            place += width
            store(target, place, plus(load(target, place), sum_4))
            place += width
            store(target, place, plus(load(target, place), sum_5))
            place += width
            store(target, place, plus(load(target, place), sum_6))
            place += width
            store(target, place, plus(load(target, place), sum_7))


@exact
@no_type_check
def read_block(text, first, last, words, block, odd):
    """The tokens of a block, (T, 16), the number `words` where a lane has none; -1 where one is out of range, else the longest length.

    `odd` (T,): whether some lane restarts from the start distribution at this position, or has ended.
    """
    tokens, lengths, reset, _ = text
    positions = tokens.shape[1]
    longest = 0
    for n in range(first, last):
        length = length_of(lengths, sequence_of(text, n), positions)
        if length < 1 or length > positions:
            return -1
        longest = max(longest, length)
    odd[:longest] = last - first < LANES
    block[: longest * LANES] = words
    for n in range(first, last):
        b = sequence_of(text, n)
        length = length_of(lengths, b, positions)
        for t in range(length):
            token = tokens[b, t]
            if token < 0 or token >= words:
                return -1
            block[t * LANES + n - first] = token
            if token == reset and t + 1 < length:
                odd[t + 1] = True
        odd[length:longest] = True
    return longest


@inlined
@no_type_check
def length_of(lengths, b, positions):
    """No lengths: all are as long as the batch."""
    return lengths[b] if lengths.shape[0] > 0 else positions


@inlined
@no_type_check
def sequence_of(text, n):
    """The sequence that stands at a place in the order; no order: as they are."""
    return text[3][n] if text[3].shape[0] > 0 else n


@inlined
@no_type_check
def gather(rows, width, block, at, row_at, lane_at, gathered):
    """The rows of the tokens from `at` on, state by state, for all lanes."""
    for lane in range(LANES):
        row_at[lane] = block[at + lane] * width
    for z in range(0, width, LANES):
        transpose(rows, row_at, z, gathered, lane_at, z * LANES)


@inlined
@no_type_check
def emit(pushed, emitted, states, messages, at, lows):
    """messages = pushed * emitted: its sums over states, and the smallest number above zero (1 where there is none)."""
    total = zeros(messages)
    one = spread(lows, 0)
    least = one
    for place in range(0, states * LANES, LANES):
        value = times(load(pushed, place), load(emitted, place))
        store(messages, at + place, value)
        total = plus(total, value)
        least = smaller(where_positive(value, value, one), least)
    return total, least


@exact
@no_type_check
def filter_block(tables, text, block, odd, longest, messages, keep, totals, room):
    """p(z_t | x_<=t) of all positions, or where they are not to be kept of the last one, and what the joint with x_t summed to; False: underflow, or impossible."""
    start, packed, _, emissions, least_emission, limits, width = tables
    pushed, emitted, row_at, lane_at, lows = room
    states, words = start.shape[0], least_emission.shape[0] - 1
    least_start, precise = limits[1], limits[3]
    # For the underflow check: a bound on the smallest product of possible factors, and the smallest normaliser.
    bound, low_total = spread(limits, 0), spread(limits, 0)
    least = bound
    for t in range(longest):
        gather(emissions, width, block, t * LANES, row_at, lane_at, emitted)
        if t == 0:
            for z in range(states):
                store(pushed, z * LANES, spread(start, z))
        else:
            push(packed, states, messages, (t - 1) * states * LANES if keep else 0, pushed)
        if t > 0 and odd[t]:
            for lane in range(LANES):
                if block[(t - 1) * LANES + lane] == text[2]:
                    for z in range(states):
                        pushed[z * LANES + lane] = start[z]
                    if not least_start * least_emission[block[t * LANES + lane]] >= precise:
                        return False
        for lane in range(LANES):
            lows[LANES + lane] = least_emission[block[t * LANES + lane]]
        least = times(times(least, spread(limits, 1 if t == 0 else 2)), load(lows, LANES))
        bound = smaller(least, bound)
        at = t * states * LANES if keep else 0
        total, least = emit(pushed, emitted, states, messages, at, limits)
        low_total = smaller(total, low_total)
        scale = over(spread(limits, 0), total)
        least = times(least, scale)
        store(totals, t * LANES, total)
        for place in range(at, at + states * LANES, LANES):
            store(messages, place, times(load(messages, place), scale))
    store(lows, LANES, bound)
    store(lows, 2 * LANES, low_total)
    for lane in range(LANES):
        if block[lane] < words and not (lows[LANES + lane] >= precise and lows[2 * LANES + lane] > 0):
            return False
    return True


@exact
@no_type_check
def room_for(start, width):
    """Scratch of a block: pushed, emitted, rows of tokens, places of lanes, and numbers of lanes."""
    lane_at = np.arange(LANES) * LANES
    pushed, emitted = np.empty((width + COLUMNS) * LANES, start.dtype), np.empty(width * LANES, start.dtype)
    return pushed, emitted, np.empty(LANES, np.int64), lane_at, np.ones(3 * LANES, start.dtype)


@exact
@no_type_check
def put_log_probs(text, first, last, peaks, block, totals, log_probs, log_prob):
    """The logs of the sums of a block, 0 past the length, where there is room for them, and their sums."""
    tokens, lengths, _, _ = text
    for n in range(first, last):
        b, total = sequence_of(text, n), 0.0
        length = length_of(lengths, b, tokens.shape[1])
        for t in range(length):
            place = t * LANES + n - first
            value = np.log(totals[place]) + peaks[block[place]]
            total += value
            if log_probs.shape[0] > 0:
                log_probs[b, t] = value
        if log_probs.shape[0] > 0:
            log_probs[b, length:] = 0
        log_prob[b] = total


@exact
@no_type_check
def forward(tables, text, peaks, log_probs, log_prob, status, first, last):
    """log p(x_t | x_<t), 0 past the length, where there is room for it, and log p(x): whether all sequences have an answer."""
    start, width, answered = tables[0], tables[6], True
    positions = text[0].shape[1]
    room = room_for(start, width)
    block, odd = np.empty(positions * LANES, np.int64), np.empty(positions, np.bool_)
    messages, totals = np.empty(start.shape[0] * LANES, start.dtype), np.empty(positions * LANES, start.dtype)
    for at in range(first, last, LANES):
        end = min(at + LANES, last)
        longest = read_block(text, at, end, peaks.shape[0] - 1, block, odd)
        if longest < 0 or not filter_block(tables, text, block, odd, longest, messages, False, totals, room):
            answered = False
            continue
        put_log_probs(text, at, end, peaks, block, totals, log_probs, log_prob)
        for n in range(at, end):
            status[sequence_of(text, n)] = OK
    return answered


@exact
@no_type_check
def smooth(tables, text, peaks, log_probs, log_prob, probs, start_counts, move_counts, status, first, last):
    """p(z_t | x), 0 past the length; counts of start are added up and, where `move_counts` (Z, width) has entries, of moves over the moves."""
    start, width = tables[0], tables[6]
    tokens, _, reset, _ = text
    positions, states = tokens.shape[1], start.shape[0]
    counted, answered = move_counts.shape[0] > 0, True
    room = room_for(start, width)
    block, odd = np.empty(positions * LANES, np.int64), np.empty(positions, np.bool_)
    messages = np.empty((positions * states + LANES) * LANES, start.dtype)
    totals = np.empty(positions * LANES, start.dtype)
    ahead, back = np.empty((width + COLUMNS) * LANES, start.dtype), np.empty((width + COLUMNS) * LANES, start.dtype)
    rows, rows_at = np.empty(LANES * width, start.dtype), np.arange(LANES) * width
    before, after = np.empty((2, CHUNK * LANES * width), start.dtype)
    for at in range(first, last, LANES):
        end = min(at + LANES, last)
        longest = read_block(text, at, end, peaks.shape[0] - 1, block, odd)
        if longest < 0 or not filter_block(tables, text, block, odd, longest, messages, True, totals, room):
            answered = False
            continue
        if log_prob.shape[0] > 0:
            put_log_probs(text, at, end, peaks, block, totals, log_probs, log_prob)
        for n in range(at, end):
            probs[sequence_of(text, n), longest:] = 0
        back[:] = 1
        filled = 0
        for t in range(longest - 1, -1, -1):
            here = t * states * LANES
            put_probs(text, at, end, t, messages, here, back, ahead, rows, rows_at, room, probs, start_counts)
            if t == 0:
                break
            look_ahead(tables, block, t, messages, here, back, totals, room, ahead)
            if odd[t]:
                for lane in range(LANES):
                    if begins_or_ended(block, t, lane, reset, peaks.shape[0] - 1):
                        for z in range(states):
                            ahead[z * LANES + lane] = 0
            push(tables[2], states, ahead, 0, back)
            for place in range(0, states * LANES, LANES):
                reached = load(messages, here - states * LANES + place)
                store(back, place, where_positive(reached, load(back, place), zeros(back)))
            if odd[t]:
                for lane in range(LANES):
                    if begins_or_ended(block, t, lane, reset, peaks.shape[0] - 1):
                        for z in range(states):
                            back[z * LANES + lane] = 1
            if counted:
                for z in range(0, width, LANES):
                    place = (z * CHUNK + filled * LANES) * LANES
                    transpose(messages, room[3], here - states * LANES + z * LANES, before, room[3], place)
                    transpose(ahead, room[3], z * LANES, after, room[3], place)
                filled += 1
                if filled == CHUNK:
                    add_products(before, after, CHUNK * LANES * LANES, LANES, filled * LANES, states, move_counts)
                    filled = 0
        if filled > 0:
            add_products(before, after, CHUNK * LANES * LANES, LANES, filled * LANES, states, move_counts)
        for n in range(at, end):
            status[sequence_of(text, n)] = OK
    return answered


@inlined
@no_type_check
def begins_or_ended(block, t, lane, reset, words):
    return block[t * LANES + lane] == words or block[(t - 1) * LANES + lane] == reset


@exact
@no_type_check
def look_ahead(tables, block, t, messages, here, back, totals, room, ahead):
    """ahead = p(x_t | z_t) back / p(x_t | x_<t) of states that were reached."""
    states, width = tables[0].shape[0], tables[6]
    gather(tables[3], width, block, t * LANES, room[2], room[3], room[1])
    scale = over(spread(tables[5], 0), load(totals, t * LANES))
    for place in range(0, states * LANES, LANES):
        value = times(times(load(room[1], place), load(back, place)), scale)
        store(ahead, place, where_positive(load(messages, here + place), value, zeros(ahead)))


@exact
@no_type_check
def put_probs(text, first, last, t, messages, here, back, joint, rows, rows_at, room, probs, start_counts):
    """probs = messages * back of the sequences that reach position t; where states restart they are added to the counts of start."""
    tokens, lengths, reset, _ = text
    states = start_counts.shape[0]
    for place in range(0, states * LANES, LANES):
        store(joint, place, times(load(messages, here + place), load(back, place)))
    for z in range(0, states, LANES):
        transpose(joint, room[3], z * LANES, rows, rows_at, z)
    for n in range(first, last):
        b, row = sequence_of(text, n), rows_at[n - first]
        if t >= length_of(lengths, b, tokens.shape[1]):
            for z in range(states):
                probs[b, t, z] = 0
            continue
        for z in range(states):
            probs[b, t, z] = rows[row + z]
        if t == 0 or tokens[b, t - 1] == reset:
            for z in range(states):
                start_counts[z] += rows[row + z]
