"""Rows by word on a GPU; `launch.py` calls these kernels. Addresses are int64."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def copy_rows(per_word, words, rows, X, K, BLOCK_K: tl.constexpr):
    """rows[n] = per_word[words[n]]: a program a row. NaN where there is no such word, so that an invalid id shows in the result."""
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

    Several rows are loaded at once: a frequent word has hundreds, and the latency of one load at a time would add up.
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


# Positions sorted by word (a counting sort) in four kernels: counts of words, their prefix sums, positions written in arbitrary
# order within a word, then sorted within each word. A word out of range is left out.


@triton.jit
@no_type_check
def count_words(words, counts, arrival, N, X, BLOCK: tl.constexpr):
    """arrival[n]: how many positions of the same word were counted before. The order of atomic additions is arbitrary."""
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + n, mask=n < N, other=-1)
    known = (word >= 0) & (word < X)
    tl.store(arrival + n, tl.atomic_add(counts + word, 1, mask=known, sem="relaxed"), mask=known)


@triton.jit
@no_type_check
def add_up(counts, bounds, X, BLOCK: tl.constexpr):
    """bounds[x] = the sum of the counts of all words before x, for x up to X (prefix sums). Each program sums all counts before its own block."""
    first = tl.program_id(0) * BLOCK
    before = tl.zeros((BLOCK,), dtype=tl.int32)
    for begin in range(0, first, BLOCK):
        before += tl.load(counts + begin + tl.arange(0, BLOCK))
    word = first + tl.arange(0, BLOCK)
    count = tl.load(counts + word, mask=word < X, other=0)
    tl.store(bounds + word, tl.sum(before, axis=0) + tl.cumsum(count, axis=0) - count, mask=word <= X)


@triton.jit
@no_type_check
def put_by_word(words, arrival, bounds, positions, N, X, BLOCK: tl.constexpr):
    n = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    word = tl.load(words + n, mask=n < N, other=-1)
    known = (word >= 0) & (word < X)
    place = tl.load(bounds + word, mask=known, other=0) + tl.load(arrival + n, mask=known, other=0)
    tl.store(positions + place, n, mask=known)


@triton.jit
@no_type_check
def order_within_words(words, bounds, positions, order, X, PLACES: tl.constexpr, CHUNK: tl.constexpr):
    """order: the positions of each word ascending; those of a program's words are compared with one another."""
    place = tl.program_id(0) * PLACES + tl.arange(0, PLACES)
    taken = place < tl.load(bounds + X)
    n = tl.load(positions + place, mask=taken, other=0)
    word = tl.load(words + n, mask=taken, other=0)
    first = tl.load(bounds + word, mask=taken, other=0x7FFFFFFF)
    end = tl.load(bounds + word + 1, mask=taken, other=0)
    before = tl.zeros((PLACES, CHUNK), dtype=tl.int32)
    for begin in range(tl.min(first, axis=0), tl.max(end, axis=0), CHUNK):
        there = begin + tl.arange(0, CHUNK)
        other = tl.load(positions + there, mask=there < tl.max(end, axis=0), other=0)
        same = (there[None, :] >= first[:, None]) & (there[None, :] < end[:, None])
        before += (same & (other[None, :] < n[:, None])).to(tl.int32)
    tl.store(order + first + tl.sum(before, axis=1), n, mask=taken)
