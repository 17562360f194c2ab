"""The kernel of `window_groups`; `launch.py` calls it. Addresses are int64."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["T", "reset_token", "first_entered"])
@no_type_check
def look_up(
    tokens, group_of_word, past, target, source, init_of, T, X, reset_token, first_entered, BLOCK: tl.constexpr
):
    """A program takes a stretch of one sequence. A reset token or first entered group of -1 is none."""
    b = tl.program_id(0).to(tl.int64)
    t = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    at = b * T + t
    inside = t < T
    token = tl.load(tokens + at, mask=inside, other=-1)
    # Before the first of a sequence stands the past or, as -1, nothing.
    previous = tl.load(tokens + at - 1, mask=inside & (t > 0), other=-1)
    if past is not None:
        previous = tl.where(t == 0, tl.load(past + b), previous)
    entered = tl.load(group_of_word + token, mask=(token >= 0) & (token < X), other=0)
    left = tl.load(group_of_word + previous, mask=inside & (previous >= 0) & (previous < X), other=0)
    left = tl.where((t == 0) & (first_entered >= 0), first_entered + b, left)
    begins = (previous == reset_token) & (reset_token >= 0)
    if past is None:
        begins = begins | (t == 0)
    tl.store(target + at, entered, mask=inside)
    tl.store(source + at, left, mask=inside)
    tl.store(init_of + at, tl.where(begins, entered, -1), mask=inside)
