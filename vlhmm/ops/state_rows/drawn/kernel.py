"""The draw on a GPU; `launch.py` calls it. Addresses are int64."""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def draw(keys, drawn, K, count, K_PAD: tl.constexpr):
    """The states of the `count` largest keys of a block: a program a block.

    Keys are not negative, so their bits as integers have the same order. The smallest selected key is found bit by bit (a radix select),
    the highest bit first: a bit is set if at least `count` keys are no less.
    """
    block = tl.program_id(0).to(tl.int64)
    state = tl.arange(0, K_PAD)
    key = tl.load(keys + block * K + state, mask=state < K, other=0.0).to(tl.int32, bitcast=True)
    # Padding is below every key.
    key = tl.where(state < K, key, -1)
    least = 0
    for place in range(31):
        candidate = least | (1 << (30 - place))
        enough = tl.sum((key >= candidate).to(tl.int32), axis=0) >= count
        least = tl.where(enough, candidate, least)
    above, equal = (key > least).to(tl.int32), (key == least).to(tl.int32)
    # Ties: the first of equal keys, so that exactly `count` are selected.
    wanted = count - tl.sum(above, axis=0)
    taken = above + equal * (tl.cumsum(equal, axis=0) <= wanted).to(tl.int32)
    to = drawn + block * count + tl.cumsum(taken, axis=0) - 1
    tl.store(to, block * K + state, mask=taken == 1)
