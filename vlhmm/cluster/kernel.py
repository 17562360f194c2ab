"""The innermost loops of the exchange algorithm, compiled by numba."""

from __future__ import annotations

import math
from typing import no_type_check

import numpy as np

from vlhmm.compiled import compiled


@compiled(inline=True)
@no_type_check
def n_log_n(count, table):
    """From the table as far as it goes."""
    n = np.int64(count)
    return table[n] if n < len(table) else n * math.log(n)


@compiled()
@no_type_check
def add_tabulated(gain, counts, increments):
    """gain[w] += the sum over lines with 1 <= counts[w, line] <= len(increments) of increments[counts[w, line] - 1, line].

    Rows are added in the order of lines, and in single precision.
    """
    blocks = gain.shape[1]
    total = np.empty(blocks, np.float32)
    for word in range(gain.shape[0]):
        touched = False
        for line in range(counts.shape[1]):
            count = counts[word, line]
            if count < 1 or count > increments.shape[0]:
                continue
            row = np.int64(count) - 1
            if touched:
                for block in range(blocks):
                    total[block] += increments[row, line, block]
            else:
                for block in range(blocks):
                    total[block] = increments[row, line, block]
                touched = True
        if touched:
            for block in range(blocks):
                gain[word, block] += total[block]


@compiled()
@no_type_check
def add_others(gain, counts, lines, f_lines, tabulated, f):
    """The same for larger counts: f(lines[line] + count) - f_lines[line], in double precision; `f` tabulates n log n."""
    blocks = gain.shape[1]
    total = np.empty(blocks, np.float64)
    for word in range(gain.shape[0]):
        touched = False
        for line in range(counts.shape[1]):
            count = counts[word, line]
            if count <= tabulated:
                continue
            for block in range(blocks):
                value = n_log_n(lines[line, block] + count, f) - f_lines[line, block]
                total[block] = total[block] + value if touched else value
            touched = True
        if touched:
            for block in range(blocks):
                gain[word, block] += total[block]


@compiled()
@no_type_check
def add_home_and_totals(gain, leaving, following, preceding, home, lines, f_lines, alone, totals, own, f):
    """What a word's own block, the diagonal and the totals add to `gain`, and what leaving its block takes from each other block.

    `lines` (2, blocks, blocks) has columns and rows, `totals` (2, blocks) those of rows and columns, `own` (2, words) how often
    each word stands left and right, `f` a table of n log n. The order of the sums is that of the expressions in `Exchange.gains`.
    """
    for word in range(gain.shape[0]):
        at = home[word]
        to_home, after_home = following[word, at], preceding[word, at]
        for block in range(gain.shape[1]):
            after, before = following[word, block], preceding[word, block]
            into, out_of = lines[0, at, block], lines[1, at, block]
            f_into, f_from = f_lines[0, at, block], f_lines[1, at, block]
            f_into_less, f_from_less = n_log_n(into - before, f), n_log_n(out_of - after, f)
            value = gain[word, block]
            value += n_log_n(into - before + to_home, f) - f_into_less - n_log_n(into + to_home, f) + f_into
            value += n_log_n(out_of - after + after_home, f) - f_from_less - n_log_n(out_of + after_home, f) + f_from
            diagonal = lines[0, block, block]
            together = n_log_n(diagonal + after + before + alone[word], f)
            value += together - n_log_n(diagonal + after, f) - n_log_n(diagonal + before, f)
            value += n_log_n(diagonal, f)
            value += n_log_n(totals[0, block], f) - n_log_n(totals[0, block] + own[0, word], f)
            value += n_log_n(totals[1, block], f) - n_log_n(totals[1, block] + own[1, word], f)
            gain[word, block] = value
            leaving[word, block] = f_from - f_from_less + f_into - f_into_less
