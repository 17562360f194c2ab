"""Max-product for sixteen sequences at once, as `lanes` has its arrays; scores are relative to the best one of their position."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from vlhmm.compiled import compiled
from vlhmm.ops.small_dense.lanes import COLUMNS, LANES, OK, length_of, read_block, room_for, sequence_of
from vlhmm.ops.small_dense.vectors import (
    WIDTH,
    larger,
    load,
    lowest,
    minus,
    plus,
    spread,
    store,
    transpose,
    where_positive,
    zeros,
)

FEW = 4
"""For so few states backpointers are stored and followed for all lanes at once: scores sought again lane by lane take half of the time."""

exact = compiled()
inlined = compiled(inline=True)
comparable = compiled({"nnan", "nsz"}, inline=True)


@inlined
@no_type_check
def push_best(packed, states, scores, at, pushed):
    """The same with additions in place of products, and the largest in place of sums."""
    place = 0
    for first in range(0, states, COLUMNS):
        best_0 = best_1 = best_2 = best_3 = best_4 = best_5 = best_6 = best_7 = lowest(scores)
        for source in range(at, at + states * LANES, LANES):
            score = load(scores, source)
            best_0 = larger(plus(score, spread(packed, place)), best_0)
            best_1 = larger(plus(score, spread(packed, place + 1)), best_1)
            best_2 = larger(plus(score, spread(packed, place + 2)), best_2)
            best_3 = larger(plus(score, spread(packed, place + 3)), best_3)
            best_4 = larger(plus(score, spread(packed, place + 4)), best_4)
            best_5 = larger(plus(score, spread(packed, place + 5)), best_5)
            best_6 = larger(plus(score, spread(packed, place + 6)), best_6)
            best_7 = larger(plus(score, spread(packed, place + 7)), best_7)
            place += COLUMNS
        target = first * LANES
        store(pushed, target, best_0)
        store(pushed, target + LANES, best_1)
        store(pushed, target + 2 * LANES, best_2)
        store(pushed, target + 3 * LANES, best_3)
        store(pushed, target + 4 * LANES, best_4)
        store(pushed, target + 5 * LANES, best_5)
        store(pushed, target + 6 * LANES, best_6)
        store(pushed, target + 7 * LANES, best_7)


@inlined
@no_type_check
def push_best_of_few(packed, states, scores, at, pushed, pointers, pointers_at, numbers):
    """`push_best` of at most FEW states, all in the first block of columns, with the first best source of each target."""
    for target in range(states):
        best, pointer = plus(load(scores, at), spread(packed, target)), zeros(scores)
        for source in range(1, states):
            score = plus(load(scores, at + source * LANES), spread(packed, source * COLUMNS + target))
            # The difference of two scores of -inf is NaN: not above 0.
            pointer = where_positive(minus(score, best), spread(numbers, source), pointer)
            best = larger(score, best)
        store(pushed, target * LANES, best)
        store(pointers, pointers_at + target * LANES, pointer)


@exact
@no_type_check
def best_scores(tables, text, block, odd, longest, scores, pointers, log_prob, room):
    """The scores of each position relative to the best one, and the log p(x, z) of the best path; False: some lane has none."""
    log_start, packed, _, log_emissions, width, words = tables
    pushed, emitted, row_at, lane_at, lows = room
    states = log_start.shape[0]
    numbers = np.arange(FEW).astype(scores.dtype)
    for t in range(longest):
        for lane in range(LANES):
            token = block[t * LANES + lane]
            # A remainder (integer division) would take as long as all the rest at few states.
            row_at[lane] = (token if token < words else 0) * width
        for z in range(0, width, LANES):
            transpose(log_emissions, row_at, z, emitted, lane_at, z * LANES)
        if t == 0:
            for z in range(states):
                store(pushed, z * LANES, spread(log_start, z))
        elif states <= FEW:
            before, at = (t - 1) * states * LANES, t * states * LANES
            push_best_of_few(packed, states, scores, before, pushed, pointers, at, numbers)
        else:
            push_best(packed, states, scores, (t - 1) * states * LANES, pushed)
        if t > 0 and odd[t]:
            for lane in range(LANES):
                if block[(t - 1) * LANES + lane] == text[2]:
                    for z in range(states):
                        pushed[z * LANES + lane] = log_start[z]
        best, at = lowest(scores), t * states * LANES
        for place in range(0, states * LANES, LANES):
            score = plus(load(pushed, place), load(emitted, place))
            store(scores, at + place, score)
            best = larger(score, best)
        for place in range(at, at + states * LANES, LANES):
            store(scores, place, minus(load(scores, place), best))
        store(lows, 0, best)
        for lane in range(LANES):
            if block[t * LANES + lane] < words:
                if not lows[lane] > -np.inf:
                    return False
                log_prob[lane] += lows[lane]
    return True


@comparable
@no_type_check
def best_of(scores, at, log_moves, row):
    """The first state of the largest score, or with a row of the moves the first that leads there best; -1: no row."""
    states = log_moves.shape[1]
    best, source = -np.inf, 0
    if row >= 0 and states >= 2 * WIDTH:
        # The largest by vectors, and then where it is.
        for z in range(states):
            best = max(best, scores[at + z] + log_moves[row, z])
        while scores[at + source] + log_moves[row, source] != best:
            source += 1
        return source
    for z in range(states):
        score = scores[at + z] + log_moves[row, z] if row >= 0 else scores[at + z]
        source = z if score > best else source
        best = score if score > best else best
    return source


@exact
@no_type_check
def follow(pointers, at, states, here, below):
    """The sources of the states `here`, all lanes at once; `below`: z - 1/2 of every state z."""
    source = load(pointers, at)
    for z in range(1, states):
        source = where_positive(minus(load(here, 0), spread(below, z)), load(pointers, at + z * LANES), source)
    store(here, 0, source)


@exact
@no_type_check
def best_paths(tables, text, paths, log_probs, status, first, last):
    """The best path, -1 past the length, and its log p(x, z). Of equal predecessors the first one counts."""
    log_start, _, log_moves_into, _, width, words = tables
    tokens, lengths, reset, _ = text
    positions, states = tokens.shape[1], log_start.shape[0]
    room = room_for(log_start, width)
    block, odd = np.empty(positions * LANES, np.int64), np.empty(positions, np.bool_)
    scores = np.empty((positions * states + LANES) * LANES, log_start.dtype)
    rows, rows_at = np.empty(LANES * width, log_start.dtype), np.arange(LANES) * width
    log_prob, answered = np.empty(LANES, np.float64), True
    pointers = np.empty(positions * states * LANES if states <= FEW else 0, log_start.dtype)
    here, number = np.zeros(LANES, log_start.dtype), np.empty(LANES, np.int64)
    below = (np.arange(FEW) - 0.5).astype(log_start.dtype)
    for at in range(first, last, LANES):
        end = min(at + LANES, last)
        for n in range(at, end):
            number[n - at] = sequence_of(text, n)
        longest = read_block(text, at, end, words, block, odd)
        log_prob[:] = 0
        if longest < 0 or not best_scores(tables, text, block, odd, longest, scores, pointers, log_prob, room):
            answered = False
            continue
        for t in range(longest - 1, -1, -1):
            if states <= FEW and t + 1 < longest and not odd[t + 1]:
                follow(pointers, (t + 1) * states * LANES, states, here, below)
                for lane in range(LANES):
                    paths[number[lane], t] = np.int64(here[lane])
                continue
            for z in range(0, states, LANES):
                transpose(scores, room[3], (t * states + z) * LANES, rows, rows_at, z)
            for lane in range(end - at):
                b = number[lane]
                length = length_of(lengths, b, positions)
                if t >= length:
                    continue
                anew = t == length - 1 or tokens[b, t] == reset
                state = best_of(rows, rows_at[lane], log_moves_into, -1 if anew else np.int64(here[lane]))
                here[lane] = state
                paths[b, t] = state
        for n in range(at, end):
            b = number[n - at]
            paths[b, length_of(lengths, b, positions) :] = -1
            log_probs[b], status[b] = log_prob[n - at], OK
    return answered
