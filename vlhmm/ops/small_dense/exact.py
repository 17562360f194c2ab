"""Loops over time with an error status for each sequence: the fallback where `lanes` and `alone` have no result. Also sampling.

Probabilities are scaled to sum to 1 at each position. A status, the larger the worse, says whether an answer holds:

    OK           it does
    IMPOSSIBLE   the sequence has probability zero
    UNDERFLOW    a probability that may matter is too small for its type
    WRONG        a token or a length is out of range
    TODO         not computed yet

`tables` of sum-product: p(z); p(y | z) in row z; the smallest number above zero of the second and of the first; p(x | z) in row x
over the row's largest, with a row more that is no word's, the smallest above zero of each row, the log of each row's largest, and the
smallest number that is rounded as any other. `text`: tokens (B, T), lengths (B,), of which none means that all are T long, the token
after which states begin anew (-1: none), and the order in which sequences are taken, none: as they are. A function serves the sequences `first` to `last` - 1 that have no answer yet, and returns
the worst status.
"""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from vlhmm.compiled import compiled

OK, IMPOSSIBLE, UNDERFLOW, WRONG, TODO = 0, 1, 2, 3, 4

# Fast-math flags: sums may be reassociated, else they could not be vectorised; NaN and infinities keep their meaning.
compiled_sums = compiled({"reassoc", "contract", "nsz"})
# All fast-math flags: for code without NaN and infinities.
compiled_finite = compiled(True)
# No fast-math: comparisons of max-product and of sampling must be evaluated as written.
compiled_exact = compiled()

# Arrays are passed whole, with a row index: creating a slice costs as much as a step of eight states. Indices are unsigned: numba's
# wraparound of negative indices would prevent vectorisation.
ONE, TWO, THREE, FOUR = np.uint64(1), np.uint64(2), np.uint64(3), np.uint64(4)


@compiled_sums
@no_type_check
def move(messages, source, moves, moved):
    """moved = messages[source] @ moves, four rows at a time: the sums are then read and written a quarter as often."""
    states = np.uint64(moves.shape[0])
    whole = states - states % FOUR
    for y in range(states):
        moved[y] = 0
    for z in range(np.uint64(0), whole, FOUR):
        mass_0, mass_1 = messages[source, z], messages[source, z + ONE]
        mass_2, mass_3 = messages[source, z + TWO], messages[source, z + THREE]
        for y in range(states):
            low = mass_0 * moves[z, y] + mass_1 * moves[z + ONE, y]
            moved[y] += low + (mass_2 * moves[z + TWO, y] + mass_3 * moves[z + THREE, y])
    for z in range(whole, states):
        mass = messages[source, z]
        for y in range(states):
            moved[y] += mass * moves[z, y]


@compiled_finite
@no_type_check
def emit(moved, emissions, token, messages, target):
    """messages[target] = moved * emissions[token], scaled to sum to 1: the sum, and the smallest entry above zero before."""
    states = np.uint64(moved.shape[0])
    zero = moved[0] * 0
    total, least = zero, zero + 1
    for z in range(states):
        value = moved[z] * emissions[token, z]
        messages[target, z] = value
        total += value
    for z in range(states):
        value = messages[target, z]
        # The normaliser of a step is at most about 1, so zero entries count as 1 in the minimum.
        least = min(least, value + (zero + (value == 0)))
    if total > 0:
        scale = 1 / total
        for z in range(states):
            messages[target, z] *= scale
    return total, least


@compiled_exact
@no_type_check
def lost(messages, source, moves, start, begins, emissions, token, target, smallest):
    """The exact underflow check: whether a possible state has a message below `smallest`; which are possible follows from the zeros alone."""
    states = moves.shape[0]
    for y in range(states):
        if emissions[token, y] > 0 and messages[target, y] < smallest:
            if begins:
                if start[y] > 0:
                    return True
            else:
                for z in range(states):
                    if messages[source, z] > 0 and moves[z, y] > 0:
                        return True
    return False


@compiled_sums
@no_type_check
def filter_sequence(b, tables, text, log_probs, messages, totals):
    """log p(x_t | x_<t) of sequence b, 0 past its length, messages p(z_t | x_<=t) in rows t % kept, and what they summed to.

    `totals` has room for a number a position, and after that for one a state.
    """
    start, moves, least_move, least_start, emissions, least_emission, peaks, precise = tables
    tokens, lengths, reset, _ = text
    positions, kept = tokens.shape[1], messages.shape[0]
    for t in range(positions):
        log_probs[b, t] = 0
    length = length_of(lengths, b, positions)
    if length < 1 or length > positions:
        return WRONG
    moved = totals[positions:]
    least = start[0] * 0
    source = np.uint64(0)
    target = np.uint64(0)
    for t in range(length):
        token = tokens[b, t]
        if token < 0 or token >= least_emission.shape[0] - 1:
            return WRONG
        begins = t == 0 or tokens[b, t - 1] == reset
        if begins:
            total, smallest = emit(start, emissions, np.uint64(token), messages, target)
            bound = least_start * least_emission[token]
        else:
            move(messages, source, moves, moved)
            total, smallest = emit(moved, emissions, np.uint64(token), messages, target)
            bound = least * least_move * least_emission[token]
        # A cheap lower bound first: a product of possible factors is at least the product of the smallest ones.
        if not bound >= precise:
            of_message = precise / total if total > 0 else precise
            if lost(messages, source, moves, start, begins, emissions, token, target, of_message):
                return UNDERFLOW
        if total == 0:
            for ahead in range(t, length):
                log_probs[b, ahead] = -np.inf
            return IMPOSSIBLE
        least = smallest / total
        totals[t] = total
        log_probs[b, t] = np.log(total) + peaks[token]
        source = target
        target = np.uint64((t + 1) % kept)
    return OK


@compiled_sums
@no_type_check
def length_of(lengths, b, positions):
    return lengths[b] if lengths.shape[0] > 0 else positions


@compiled_sums
@no_type_check
def forward(tables, text, log_probs, log_prob, status, first, last):
    """log p(x_t | x_<t), 0 past the length, where there is room for it, and log p(x)."""
    start, positions, worst = tables[0], text[0].shape[1], OK
    messages = np.empty((2, start.shape[0]), start.dtype)
    totals = np.empty(positions + start.shape[0], start.dtype)
    here = log_probs if log_probs.shape[0] > 0 else np.empty(text[0].shape, start.dtype)
    for n in range(first, last):
        b = text[3][n] if text[3].shape[0] > 0 else n
        if status[b] != OK:
            status[b] = filter_sequence(b, tables, text, here, messages, totals)
            log_prob[b] = sum_of(here, b)
        worst = max(worst, status[b])
    return worst


@compiled_exact
@no_type_check
def sum_of(log_probs, b):
    """Summed in float64: a million terms of one sign would lose digits in float32."""
    total = 0.0
    for t in range(log_probs.shape[1]):
        total += log_probs[b, t]
    return total


@compiled_sums
@no_type_check
def smooth(tables, text, log_probs, log_prob, probs, start_counts, move_counts, status, first, last):
    """p(z_t | x), 0 past the length; the counts of start and, where `move_counts` has entries, of moves over `moves` are added up."""
    start, moves, _, _, emissions, _, _, _ = tables
    tokens, lengths, reset, _ = text
    positions, states = tokens.shape[1], np.uint64(start.shape[0])
    messages = np.empty((positions, start.shape[0]), start.dtype)
    totals = np.empty(positions + start.shape[0], start.dtype)
    # p(x_t, x_t+1, ... | z_t) over the same given the text before in place of z_t; and that times p(x_t+1 | z_t+1).
    back = np.empty_like(start)
    ahead = np.empty_like(start)
    counted, worst = move_counts.shape[0] > 0, OK
    here = log_probs if log_probs.shape[0] > 0 else np.empty(tokens.shape, start.dtype)
    for n in range(first, last):
        b = text[3][n] if text[3].shape[0] > 0 else n
        if status[b] == OK:
            continue
        for t in range(positions):
            for z in range(states):
                probs[b, t, z] = 0
        status[b] = filter_sequence(b, tables, text, here, messages, totals)
        worst = max(worst, status[b])
        if status[b] != OK:
            continue
        if log_prob.shape[0] > 0:
            log_prob[b] = sum_of(here, b)
        for z in range(states):
            back[z] = 1
        for t in range(length_of(lengths, b, positions) - 1, -1, -1):
            for z in range(states):
                probs[b, t, z] = messages[t, z] * back[z]
            if t == 0 or tokens[b, t - 1] == reset:
                for z in range(states):
                    start_counts[z] += probs[b, t, z]
                    back[z] = 1
                continue
            token, scale = tokens[b, t], 1 / totals[t]
            for z in range(states):
                # Unreached states are skipped: their backward message could overflow.
                ahead[z] = emissions[token, z] * back[z] * scale if messages[t, z] > 0 else scale * 0
            move_back(messages, np.uint64(t - 1), moves, ahead, back)
            if counted:
                add_moves(messages, np.uint64(t - 1), ahead, move_counts)
    return worst


@compiled_sums
@no_type_check
def move_back(messages, source, moves, ahead, back):
    """back = moves @ ahead, 0 for states that were not reached; four rows at a time."""
    states = np.uint64(moves.shape[0])
    whole = states - states % FOUR
    zero = ahead[0] * 0
    for z in range(np.uint64(0), whole, FOUR):
        sum_0, sum_1, sum_2, sum_3 = zero, zero, zero, zero
        for y in range(states):
            value = ahead[y]
            sum_0 += moves[z, y] * value
            sum_1 += moves[z + ONE, y] * value
            sum_2 += moves[z + TWO, y] * value
            sum_3 += moves[z + THREE, y] * value
        back[z], back[z + ONE], back[z + TWO], back[z + THREE] = sum_0, sum_1, sum_2, sum_3
    for z in range(whole, states):
        total = zero
        for y in range(states):
            total += moves[z, y] * ahead[y]
        back[z] = total
    for z in range(states):
        back[z] = back[z] if messages[source, z] > 0 else zero


@compiled_sums
@no_type_check
def add_moves(messages, source, ahead, move_counts):
    """move_counts[z, y] += messages[source, z] * ahead[y]."""
    states = np.uint64(ahead.shape[0])
    for z in range(states):
        mass = messages[source, z]
        for y in range(states):
            move_counts[z, y] += mass * ahead[y]


@compiled_sums
@no_type_check
def add_by_word(probs, text, emission_counts):
    """emission_counts[x] += the sum of probs[b, t] where token t of sequence b is x."""
    tokens, lengths, _, _ = text
    states = np.uint64(probs.shape[2])
    for b in range(tokens.shape[0]):
        for t in range(length_of(lengths, b, tokens.shape[1])):
            token = np.uint64(tokens[b, t])
            for z in range(states):
                emission_counts[token, z] += probs[b, t, z]


@compiled_exact
@no_type_check
def upper(cumulative, row, share):
    """The first index of a row of cumulative sums that is above `share` of the whole."""
    columns = cumulative.shape[1]
    position = share * cumulative[row, columns - 1]
    low, high = 0, columns - 1
    while low < high:
        middle = (low + high) // 2
        if cumulative[row, middle] > position:
            high = middle
        else:
            low = middle + 1
    # Rounding may give an index behind the last one with positive probability.
    while low > 0 and cumulative[row, low] == cumulative[row, low - 1]:
        low -= 1
    return low


@compiled_exact
@no_type_check
def draw(tables, reset, uniforms, states, tokens):
    """States and tokens by inverse transform sampling; `tables` has the cumulative sums of start (1, Z), moves (Z, Z) and words (Z, X)."""
    start, moves, words = tables
    for n in range(states.shape[0]):
        for t in range(states.shape[1]):
            if t == 0 or tokens[n, t - 1] == reset:
                states[n, t] = upper(start, 0, uniforms[n, t, 0])
            else:
                states[n, t] = upper(moves, states[n, t - 1], uniforms[n, t, 0])
            tokens[n, t] = upper(words, states[n, t], uniforms[n, t, 1])
