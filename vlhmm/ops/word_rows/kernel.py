"""Rows by word on a GPU; `launch.py` calls these kernels. Addresses are int64."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def copy_rows(per_word, words, rows, X, K, BLOCK_K: tl.constexpr):
    """rows[n] = per_word[words[n]]: a program a row. NaN where there is no such word: garbage would go unnoticed."""
    n = tl.program_id(0).to(tl.int64)
    word = tl.load(words + n).to(tl.int64)
    known = (word >= 0) & (word < X)
    for begin in range(0, K, BLOCK_K):
        k = begin + tl.arange(0, BLOCK_K)
        value = tl.load(per_word + word * K + k, mask=known & (k < K), other=float("nan"))
        tl.store(rows + n * K + k, value, mask=k < K)


@triton.jit
@no_type_check
def sum_rows(rows, order, bounds, per_word, K, ROWS: tl.constexpr, BLOCK_K: tl.constexpr):
    """per_word[x] = the sum of the rows order[bounds[x]], ..., order[bounds[x + 1] - 1]: a program a word and piece of K.

    Several rows are asked for at once: a frequent word has hundreds, and to wait for each would take long.
    """
    word = tl.program_id(0).to(tl.int64)
    k = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    first = tl.load(bounds + word)
    end = tl.load(bounds + word + 1)
    total = tl.zeros((BLOCK_K,), dtype=tl.float32)
    for begin in range(first, end, ROWS):
        at = begin + tl.arange(0, ROWS)
        row = tl.load(order + at, mask=at < end, other=0).to(tl.int64)
        inside = (at < end)[:, None] & (k < K)[None, :]
        total += tl.sum(tl.load(rows + row[:, None] * K + k[None, :], mask=inside, other=0.0), axis=0)
    tl.store(per_word + word * K + k, total, mask=k < K)
