"""Loops over time for one sequence after the other, the states of a position in vectors of sixteen.

The normaliser of a position is applied at the next position, so that the reduction and its reciprocal are off the critical path. A
sequence without a result (underflow, probability zero, invalid token) keeps its status: `exact` then computes or reports it.

Arrays are flat, and rows over states are filled up to `width`, a multiple of 16: with 0 in the start and the transition, with anything
in the emissions.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from vlhmm.compiled import compiled
from vlhmm.ops.small_dense.best_lanes import best_of
from vlhmm.ops.small_dense.lanes import OK, add_products, length_of, sequence_of
from vlhmm.ops.small_dense.vectors import (
    WIDTH,
    everywhere,
    larger,
    largest_of,
    load,
    lowest,
    minus,
    plus,
    plus_product,
    smaller,
    smallest_of,
    spread,
    store,
    sum_of,
    times,
    where_positive,
    zeros,
)

CHUNK = 64
"""Positions whose counts are added up in one product."""

exact = compiled()
inlined = compiled(inline=True)


@inlined
@no_type_check
def push(moves, width, states, messages, at, pushed):
    """pushed = the message from `at` on times the transition."""
    wide = width - width % (4 * WIDTH)
    for first in range(0, wide, 4 * WIDTH):
        sum_0 = sum_1 = sum_2 = sum_3 = zeros(moves)
        other_0 = other_1 = other_2 = other_3 = zeros(moves)
        place = first
        for z in range(at, at + states - states % 2, 2):
            mass, place_1 = spread(messages, z), place + width
            sum_0 = plus_product(sum_0, mass, load(moves, place))
            sum_1 = plus_product(sum_1, mass, load(moves, place + WIDTH))
            sum_2 = plus_product(sum_2, mass, load(moves, place + 2 * WIDTH))
            sum_3 = plus_product(sum_3, mass, load(moves, place + 3 * WIDTH))
            mass = spread(messages, z + 1)
            other_0 = plus_product(other_0, mass, load(moves, place_1))
            other_1 = plus_product(other_1, mass, load(moves, place_1 + WIDTH))
            other_2 = plus_product(other_2, mass, load(moves, place_1 + 2 * WIDTH))
            other_3 = plus_product(other_3, mass, load(moves, place_1 + 3 * WIDTH))
            place = place_1 + width
        if states % 2:
            mass = spread(messages, at + states - 1)
            sum_0 = plus_product(sum_0, mass, load(moves, place))
            sum_1 = plus_product(sum_1, mass, load(moves, place + WIDTH))
            sum_2 = plus_product(sum_2, mass, load(moves, place + 2 * WIDTH))
            sum_3 = plus_product(sum_3, mass, load(moves, place + 3 * WIDTH))
        store(pushed, first, plus(sum_0, other_0))
        store(pushed, first + WIDTH, plus(sum_1, other_1))
        store(pushed, first + 2 * WIDTH, plus(sum_2, other_2))
        store(pushed, first + 3 * WIDTH, plus(sum_3, other_3))
    for first in range(wide, width, WIDTH):
        sum_0 = sum_1 = sum_2 = sum_3 = zeros(moves)
        place, whole = first, at + states - states % 4
        for z in range(at, whole, 4):
            sum_0 = plus_product(sum_0, spread(messages, z), load(moves, place))
            sum_1 = plus_product(sum_1, spread(messages, z + 1), load(moves, place + width))
            sum_2 = plus_product(sum_2, spread(messages, z + 2), load(moves, place + 2 * width))
            sum_3 = plus_product(sum_3, spread(messages, z + 3), load(moves, place + 3 * width))
            place += 4 * width
        for z in range(whole, at + states):
            sum_0 = plus_product(sum_0, spread(messages, z), load(moves, place))
            place += width
        store(pushed, first, plus(plus(sum_0, sum_1), plus(sum_2, sum_3)))


@inlined
@no_type_check
def push_best(moves, width, states, scores, at, pushed):
    """The same with additions in place of products, and the largest in place of sums."""
    for first in range(0, width, WIDTH):
        best_0 = best_1 = lowest(moves)
        place = first
        for z in range(at, at + states - states % 2, 2):
            best_0 = larger(plus(spread(scores, z), load(moves, place)), best_0)
            best_1 = larger(plus(spread(scores, z + 1), load(moves, place + width)), best_1)
            place += 2 * width
        if states % 2:
            best_0 = larger(plus(spread(scores, at + states - 1), load(moves, place)), best_0)
        store(pushed, first, larger(best_0, best_1))


@inlined
@no_type_check
def answered_before(status, b):
    """No status: there was no previous call."""
    return status.shape[0] > 0 and status[b] == OK


@exact
@no_type_check
def filter_sequence(b, tables, text, messages, keep, totals, pushed):
    """p(z_t | x_<=t) times totals[t], in two rows in turn unless all are to be kept, and the totals p(x_t | x_<t) over the largest p(x_t | z); False: no answer."""
    start, moves, _, emissions, least_emission, limits, width = tables
    tokens, lengths, reset, _ = text
    states, words = moves.shape[0] // width, least_emission.shape[0] - 1
    length = length_of(lengths, b, tokens.shape[1])
    if length < 1 or length > tokens.shape[1]:
        return False
    one = spread(limits, 0)
    scale, low, least, least_total = one, one, limits[0], limits[0]
    for t in range(length):
        token = tokens[b, t]
        if token < 0 or token >= words:
            return False
        emitted, total = token * width, zeros(start)
        target = t * width if keep else t % 2 * width
        least = min(least, least_emission[token])
        if t == 0 or tokens[b, t - 1] == reset:
            scale = one
            for z in range(0, width, WIDTH):
                store(pushed, z, load(start, z))
        else:
            push(moves, width, states, messages, target - width if keep else width - target, pushed)
        for z in range(0, width, WIDTH):
            value = times(times(load(pushed, z), load(emissions, emitted + z)), scale)
            store(messages, target + z, value)
            total = plus(total, value)
            low = smaller(where_positive(value, value, one), low)
        summed = sum_of(total)
        least_total = min(least_total, summed)
        totals[t] = summed
        scale = everywhere(start, limits[0] / summed)
    # The underflow check, by a lower bound: a product of possible factors is at least the product of the smallest ones.
    return smallest_of(low) * min(limits[1], limits[2]) * least >= limits[3] and least_total > 0


@exact
@no_type_check
def put_log_probs(b, text, peaks, totals, log_probs):
    """The logs of the totals, 0 past the length, where there is room for them: their sum."""
    tokens, lengths, _, _ = text
    length, log_prob = length_of(lengths, b, tokens.shape[1]), 0.0
    if log_probs.shape[0] == 0:
        for t in range(length):
            log_prob += np.log(totals[t]) + peaks[tokens[b, t]]
        return log_prob
    for t in range(length):
        log_probs[b, t] = np.log(totals[t]) + peaks[tokens[b, t]]
        log_prob += log_probs[b, t]
    log_probs[b, length:] = 0
    return log_prob


@exact
@no_type_check
def forward(tables, text, peaks, log_probs, log_prob, status, first, last):
    """log p(x_t | x_<t), 0 past the length, where there is room for it, and log p(x): whether all sequences have an answer."""
    start, width = tables[0], tables[6]
    messages, pushed = np.empty(2 * width, start.dtype), np.empty(width, start.dtype)
    totals = np.empty(text[0].shape[1], start.dtype)
    answered = True
    for n in range(first, last):
        b = sequence_of(text, n)
        if answered_before(status, b):
            continue
        if not filter_sequence(b, tables, text, messages, False, totals, pushed):
            answered = False
            continue
        log_prob[b] = put_log_probs(b, text, peaks, totals, log_probs)
        if status.shape[0] > 0:
            status[b] = OK
    return answered


@exact
@no_type_check
def smooth(tables, text, peaks, log_probs, log_prob, probs, start_counts, move_counts, status, first, last):
    """p(z_t | x), 0 past the length; counts of start are added up and, where `move_counts` has entries, of moves over the moves."""
    start, _, moves_back, emissions, _, limits, width = tables
    tokens, lengths, reset, _ = text
    positions, states, counted = tokens.shape[1], start_counts.shape[0], move_counts.shape[0] > 0
    messages, totals = np.empty(positions * width, start.dtype), np.empty(positions, start.dtype)
    ahead = np.empty((positions if counted else 1) * width, start.dtype)
    back, row, answered = np.empty(width, start.dtype), np.empty(width, start.dtype), True
    for n in range(first, last):
        b = sequence_of(text, n)
        if answered_before(status, b):
            continue
        if not filter_sequence(b, tables, text, messages, True, totals, back):
            answered = False
            continue
        if log_prob.shape[0] > 0:
            log_prob[b] = put_log_probs(b, text, peaks, totals, log_probs)
        length = length_of(lengths, b, positions)
        probs[b, length:] = 0
        back[:] = 1
        for t in range(length - 1, -1, -1):
            scale = everywhere(start, limits[0] / totals[t])
            at, ahead_at = t * width, t * width if counted else 0
            emitted = tokens[b, t] * width
            for z in range(0, width, WIDTH):
                message = times(load(messages, at + z), scale)
                store(messages, at + z, message)
                value = load(back, z)
                store(row, z, times(message, value))
                value = times(times(load(emissions, emitted + z), value), scale)
                # Unreached states are skipped: their backward message could overflow.
                store(ahead, ahead_at + z, where_positive(message, value, zeros(start)))
            for z in range(states):
                probs[b, t, z] = row[z]
            if t == 0 or tokens[b, t - 1] == reset:
                for z in range(states):
                    start_counts[z] += row[z]
                ahead[ahead_at : ahead_at + width] = 0
                back[:] = 1
                continue
            push(moves_back, width, states, ahead, ahead_at, back)
            for z in range(0, width, WIDTH):
                reached = load(messages, at - width + z)
                store(back, z, where_positive(reached, load(back, z), zeros(start)))
        if counted:
            for t in range(0, length - 1, CHUNK):
                left, right = messages[t * width :], ahead[(t + 1) * width :]
                add_products(left, right, WIDTH, width, min(CHUNK, length - 1 - t), states, move_counts)
        if status.shape[0] > 0:
            status[b] = OK
    return answered


@exact
@no_type_check
def best_paths(tables, text, paths, log_probs, status, first, last):
    """The best path, -1 past the length, and its log p(x, z). Of equal predecessors the first one counts."""
    log_start, log_moves, log_moves_into, log_emissions, width = tables
    tokens, lengths, reset, _ = text
    positions, states, words = tokens.shape[1], log_moves_into.shape[0], log_emissions.shape[0] // width
    scores, pushed = np.empty(positions * width, log_start.dtype), np.empty(width, log_start.dtype)
    answered = True
    for n in range(first, last):
        b = sequence_of(text, n)
        length, log_prob = length_of(lengths, b, positions), 0.0
        if answered_before(status, b):
            continue
        possible = 1 <= length <= positions
        for t in range(length if possible else 0):
            token = tokens[b, t]
            if token < 0 or token >= words:
                possible = False
                break
            best_score, at = lowest(log_start), t * width
            if t > 0 and tokens[b, t - 1] != reset:
                push_best(log_moves, width, states, scores, at - width, pushed)
            else:
                for z in range(0, width, WIDTH):
                    store(pushed, z, load(log_start, z))
            for z in range(0, width, WIDTH):
                score = plus(load(pushed, z), load(log_emissions, token * width + z))
                store(scores, at + z, score)
                best_score = larger(score, best_score)
            best = largest_of(best_score)
            if not best > -np.inf:
                possible = False
                break
            for z in range(at, at + width, WIDTH):
                store(scores, z, minus(load(scores, z), everywhere(log_start, best)))
            log_prob += best
        if not possible:
            answered = False
            continue
        paths[b, length:] = -1
        here = best_of(scores, (length - 1) * width, log_moves_into, -1)
        paths[b, length - 1] = here
        for t in range(length - 2, -1, -1):
            here = best_of(scores, t * width, log_moves_into, -1 if tokens[b, t] == reset else here)
            paths[b, t] = here
        log_probs[b] = log_prob
        if status.shape[0] > 0:
            status[b] = OK
    return answered
