"""The kernel of `checked_tokens`. Addresses are int64."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def check_rows(
    tokens,
    lengths,
    checked,
    checked_lengths,
    init_of,
    wrong,
    num_words,
    reset_token,
    num_positions,
    BLOCK: tl.constexpr,
):
    """A program a sequence. A reset token of -1 is none."""
    row = tl.program_id(0).to(tl.int64)
    length = tl.load(lengths + row)
    worst = ((length < 1) | (length > num_positions)).to(tl.int32)
    for first in range(0, num_positions, BLOCK):
        t = first + tl.arange(0, BLOCK)
        at = row * num_positions + t
        in_text = t < num_positions
        token = tl.load(tokens + at, mask=in_text, other=0)
        known = (token >= 0) & (token < num_words)
        within = in_text & (t < length)
        worst = tl.maximum(worst, tl.max((within & ~known).to(tl.int32), 0))
        tl.store(checked + at, tl.where(within & known, token, 0), mask=in_text)
        before = tl.load(tokens + at - 1, mask=in_text & (t > 0), other=-1)
        begins = (t == 0) | ((before == reset_token) & (reset_token >= 0))
        tl.store(init_of + at, tl.where(begins, 0, -1).to(tl.int64), mask=in_text)
    tl.store(checked_lengths + row, tl.minimum(tl.maximum(length, 1), num_positions))
    tl.store(wrong + row, worst.to(tl.int8))
