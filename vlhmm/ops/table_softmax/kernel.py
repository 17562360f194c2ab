"""The softmax of parts of a table on a GPU; `launch.py` calls these kernels.

    normalize   a program a chosen row   log_prob[r, j] = logits[rows[r], columns[j]] - their log sum over j
    write_back  a program a table's row  d_logits[z] = g - p times the sum of g, at the chosen columns, 0 elsewhere
    add_again   a program a chosen row   the same, added, where a row is chosen again

A row z that is chosen is written for the one r = row_of[z] of its choices; the others add to it afterwards. `columns` is None
where all of them are chosen. Addresses are int64.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def normalize(logits, rows, columns, log_prob, Y, m, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    from_row = logits + tl.load(rows + r).to(tl.int64) * Y
    peak = tl.full((BLOCK,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, m, BLOCK):
        j = first + tl.arange(0, BLOCK)
        column = j
        if columns is not None:
            column = tl.load(columns + j, mask=j < m, other=0)
        logit = tl.load(from_row + column, mask=j < m, other=float("-inf"))
        new_peak = tl.maximum(peak, logit)
        # -inf - -inf would be NaN.
        shift = tl.where(new_peak == float("-inf"), 0.0, new_peak)
        total = total * tl.exp(peak - shift) + tl.exp(logit - shift)
        peak = new_peak
    highest = tl.max(peak, axis=0)
    shift = tl.where(highest == float("-inf"), 0.0, highest)
    log_sum = tl.log(tl.sum(total * tl.exp(peak - shift), axis=0))
    for first in range(0, m, BLOCK):
        j = first + tl.arange(0, BLOCK)
        column = j
        if columns is not None:
            column = tl.load(columns + j, mask=j < m, other=0)
        logit = tl.load(from_row + column, mask=j < m, other=0.0)
        # Subtracting the maximum first keeps precision for large logits.
        tl.store(log_prob + r * m + j, (logit - shift) - log_sum, mask=j < m)


@triton.jit
@no_type_check
def row_sum(grad, r, m, BLOCK: tl.constexpr):
    total = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, m, BLOCK):
        j = first + tl.arange(0, BLOCK)
        total += tl.load(grad + r * m + j, mask=j < m, other=0.0)
    return tl.sum(total, axis=0)


@triton.jit
@no_type_check
def write_back(grad, log_prob, row_of, column_of, d_logits, Y, m, BLOCK: tl.constexpr):
    z = tl.program_id(0).to(tl.int64)
    r = tl.load(row_of + z).to(tl.int64)
    # Rows that were not chosen are not read.
    read = tl.where(r < 0, 0, m)
    of_row = tl.maximum(r, 0)
    total = row_sum(grad, of_row, read, BLOCK)
    for first in range(0, Y, BLOCK):
        column = first + tl.arange(0, BLOCK)
        j = column
        if column_of is not None:
            j = tl.load(column_of + column, mask=column < Y, other=-1)
        chosen = (j >= 0) & (j < read)
        g = tl.load(grad + of_row * m + j, mask=chosen, other=0.0)
        prob = tl.exp(tl.load(log_prob + of_row * m + j, mask=chosen, other=float("-inf")))
        tl.store(d_logits + z * Y + column, g - prob * total, mask=column < Y)


@triton.jit
@no_type_check
def add_again(grad, log_prob, rows, row_of, columns, d_logits, Y, m, BLOCK: tl.constexpr):
    r = tl.program_id(0).to(tl.int64)
    z = tl.load(rows + r).to(tl.int64)
    if tl.load(row_of + z) == r:
        return
    total = row_sum(grad, r, m, BLOCK)
    for first in range(0, m, BLOCK):
        j = first + tl.arange(0, BLOCK)
        column = j
        if columns is not None:
            column = tl.load(columns + j, mask=j < m, other=0)
        g = tl.load(grad + r * m + j, mask=j < m, other=0.0)
        prob = tl.exp(tl.load(log_prob + r * m + j, mask=j < m, other=float("-inf")))
        tl.atomic_add(d_logits + z * Y + column, g - prob * total, mask=j < m, sem="relaxed")
