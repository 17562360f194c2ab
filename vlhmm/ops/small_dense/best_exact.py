"""Best paths with an error status for each sequence: the fallback where `best_lanes` has no result. Statuses and `text` are those of `exact`."""

from __future__ import annotations

from typing import no_type_check

import numpy as np

from vlhmm.ops.small_dense.exact import IMPOSSIBLE, OK, ONE, WRONG, compiled_exact, length_of


@compiled_exact
@no_type_check
def move_best(scores, source, log_moves, target):
    """scores[target, y] = max over z of scores[source, z] + log_moves[z, y]."""
    states = np.uint64(log_moves.shape[0])
    for y in range(states):
        scores[target, y] = -np.inf
    for z in range(states):
        score = scores[source, z]
        if score > -np.inf:
            for y in range(states):
                value = score + log_moves[z, y]
                scores[target, y] = value if value > scores[target, y] else scores[target, y]


@compiled_exact
@no_type_check
def first_best(scores, row):
    """The first index of the largest number of a row."""
    best = 0
    for z in range(1, scores.shape[1]):
        if scores[row, z] > scores[row, best]:
            best = z
    return best


@compiled_exact
@no_type_check
def best_score(b, tables, text, scores):
    """The scores of each position of sequence b, relative to the best one: whether there is a path, and its log p(x, z)."""
    log_start, log_moves, _, log_emissions = tables
    tokens, lengths, reset, _ = text
    states = np.uint64(log_start.shape[0])
    length = length_of(lengths, b, tokens.shape[1])
    log_prob = 0.0
    if length < 1 or length > tokens.shape[1]:
        return WRONG, log_prob
    for position in range(length):
        t = np.uint64(position)
        token = tokens[b, t]
        if token < 0 or token >= log_emissions.shape[0]:
            return WRONG, log_prob
        if position == 0 or tokens[b, t - ONE] == reset:
            for y in range(states):
                scores[t, y] = log_start[y]
        else:
            move_best(scores, t - ONE, log_moves, t)
        for y in range(states):
            scores[t, y] += log_emissions[token, y]
        best = scores[t, 0]
        for y in range(ONE, states):
            best = scores[t, y] if scores[t, y] > best else best
        if best == -np.inf:
            return IMPOSSIBLE, log_prob
        for y in range(states):
            scores[t, y] -= best
        log_prob += best
    return OK, log_prob


@compiled_exact
@no_type_check
def best_paths(tables, text, paths, log_probs, status, first, last):
    """The best path, -1 past the length, and its log p(x, z). Of equal predecessors the first one counts.

    `tables` has the logs of start, moves, moves by target state, and emissions. No predecessors are stored: the one of the state
    on the path is found again.
    """
    log_start, _, log_moves_into, _ = tables
    tokens, lengths, reset, _ = text
    states = np.uint64(log_start.shape[0])
    scores = np.empty((tokens.shape[1], log_start.shape[0]), log_start.dtype)
    worst = OK
    for n in range(first, last):
        b = text[3][n] if text[3].shape[0] > 0 else n
        if status[b] == OK:
            continue
        for t in range(tokens.shape[1]):
            paths[b, t] = -1
        status[b], log_probs[b] = best_score(b, tables, text, scores)
        worst = max(worst, status[b])
        if status[b] != OK:
            continue
        length = length_of(lengths, b, tokens.shape[1])
        here = first_best(scores, length - 1)
        paths[b, length - 1] = here
        for t in range(length - 2, -1, -1):
            if tokens[b, t] == reset:
                here = first_best(scores, t)
            else:
                into, source, best = np.uint64(here), np.uint64(0), scores[t, 0] + log_moves_into[here, 0]
                for z in range(ONE, states):
                    value = scores[t, z] + log_moves_into[into, z]
                    if value > best:
                        best, source = value, z
                here = np.int64(source)
            paths[b, t] = here
    return worst
