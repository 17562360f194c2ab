"""The blocked recursion on a GPU, in a few kernels; `launch.py` calls them, between those of `blocked_tiles`, which make the tiles
S and the gradient of the features.

    exponentiate a program a position  the vectors of a position as probabilities, computed outside of the sequential loop
    forward      a program a sequence  messages from position to position: vector times tile
    backward     a program a sequence  cotangents from position to position, last first: tile times vector
    conclude     a program a position  posteriors and gradients from two messages and two means, outside of the sequential loop

The last two are in `backward/kernel.py`.

The tile of a position is A[z, z'] = exp(log_weight(z)) S[z, z']: block-factored, S is the softmax of a row and log_weight
the log-probability of the block; softmax or table, S is shifted so that its largest entry in a row is 1. Nothing in S underflows
where it matters, though all of A may be exp(-60). With w = exp(log_weight - shift), alpha_t the filtered probabilities,
e_t the emission, c_t the normaliser, g_t the cotangent of log c_t, and slope_t = dL / dlog u_t over alpha_t (see
`vlhmm.ops.recursion.scaled`):

    sent_t  = alpha_t-1 w            u_t = (sent_t S) e_t           alpha_t = u_t / c_t
    ratio_t = slope_t e_t / c_t      mean_t = S ratio_t             slope_t-1 = w mean_t + g_t-1 - sum of sent_t mean_t

The sum of sent_t mean_t is that of u_t ratio_t / e_t, or of alpha_t slope_t, and that is g_t.

    dL / dlog A[z, z'] = sent(z) S[z, z'] ratio(z')                 its row sum: sent(z) mean(z)
    dL / dlogits[z, z'] = sent(z) S[z, z'] (ratio(z') - mean(z))    block-factored; softmax: without the mean

K_PAD is K rounded up to a power of two, FILLED to a multiple of 16: up to there S has rows and columns, 0 from K on, and behind
them nothing is written or read; in vectors the padding is masked. Addresses are int64. `states` is the table of each group's
states, None where group g holds g K, ..., g K + K - 1.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.recursion.exponentials.kernel import finite_or_zero

# `do_not_specialize`: a kernel is not recompiled for another number of positions.

# The underflow threshold: a quarter of float32's exponent range is a margin above the smallest normal number.
TINY = tl.constexpr(4e-29)
SMALLEST_NORMAL = tl.constexpr(2.0**-126)
SMALLEST_PRECISE = tl.constexpr(2.0**-103)


@triton.jit
@no_type_check
def exponentiate(
    log_weight,
    log_emission,
    log_inits,
    init_of,
    weight,
    emission,
    log_shift,
    least_of_tile,
    least,
    parts,
    K,
    K_PAD: tl.constexpr,
    PARTS: tl.constexpr,
    CHECK_MESSAGES: tl.constexpr,
):
    """The vectors of one position, each shifted so that its largest entry is 1; `log_shift` is the sum of the shifts.

    A position that restarts from an initial row has no transition: its weights are 0, and its emission includes the initial row.

    `least`, if CHECK_MESSAGES: the smallest possible entry of S, of w and of the emissions; 0 where it underflows.
    """
    n = tl.program_id(0).to(tl.int64)
    state = tl.arange(0, K_PAD)
    inside = state < K
    init = tl.load(init_of + n).to(tl.int64)
    log_e = tl.load(log_emission + n * K + state, mask=inside, other=float("-inf"))
    log_e += tl.load(log_inits + init * K + state, mask=inside & (init >= 0), other=0.0)
    log_w = tl.load(log_weight + n * K + state, mask=inside, other=float("-inf"))
    peak = finite_or_zero(tl.max(log_e, axis=0))
    shift = finite_or_zero(tl.max(log_w, axis=0))
    w = tl.where(init >= 0, 0.0, tl.exp(log_w - shift))
    tl.store(weight + n * K + state, w, mask=inside)
    tl.store(emission + n * K + state, tl.exp(log_e - peak), mask=inside)
    tl.store(log_shift + n, peak + tl.where(init >= 0, 0.0, shift))
    if CHECK_MESSAGES:
        part = tl.arange(0, PARTS)
        smallest = tl.min(tl.load(least_of_tile + n * parts + part, mask=part < parts, other=1.0), axis=0)
        tl.store(least + 3 * n, smallest)
        smallest = tl.min(tl.where(inside & (log_w > float("-inf")), tl.exp(log_w - shift), 1.0), axis=0)
        tl.store(least + 3 * n + 1, smallest)
        emitting = inside & (log_e > float("-inf"))
        tl.store(least + 3 * n + 2, tl.min(tl.where(emitting, tl.exp(log_e - peak), 1.0), axis=0))


@triton.jit
@no_type_check
def in_parts(vector, PARTS: tl.constexpr):
    """A vector of float32 as columns of bf16 that sum to it, in all of its 24 bits; from the fourth on they are 0."""
    value = vector[:, None]
    high = value.to(tl.bfloat16)
    value -= high.to(tl.float32)
    middle = value.to(tl.bfloat16)
    low = (value - middle.to(tl.float32)).to(tl.bfloat16)
    column = tl.arange(0, PARTS)[None, :]
    nothing = tl.zeros((1, PARTS), dtype=tl.bfloat16)
    return tl.where(column == 0, high, tl.where(column == 1, middle, tl.where(column == 2, low, nothing)))


@triton.jit(do_not_specialize=["T"])
@no_type_check
def forward(
    tiles,
    weight,
    emission,
    log_shift,
    init_of,
    log_previous,
    lengths,
    least,
    token_log_probs,
    log_last,
    alpha,
    totals,
    underflow,
    T,
    K,
    K_PAD: tl.constexpr,
    FILLED: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
    PARTS: tl.constexpr,
    CHECK_MESSAGES: tl.constexpr,
):
    """The forward pass of one sequence. Steps depend on each other; tiles and vectors do not, and are prefetched into shared memory.

    A sequence is marked as underflow if a total is below the threshold. With CHECK_MESSAGES also if a single message entry or product
    underflows, unless every state that can emit the next token receives so much more that the loss is below rounding error. A state
    that receives 0 may be impossible, or all its terms underflowed. The token after the last message is not known.
    """
    CHUNKS: tl.constexpr = (FILLED + ROWS - 1) // ROWS
    b = tl.program_id(0).to(tl.int64)
    state = tl.arange(0, K_PAD)
    inside = state < K
    row = tl.arange(0, ROWS)
    length = tl.load(lengths + b).to(tl.int64)
    log_message = tl.load(log_previous + b * K + state, mask=inside, other=float("-inf"))
    message = tl.exp(log_message)
    alive = tl.where(tl.max(log_message, axis=0) > float("-inf"), 1.0, 0.0)
    low = 0
    if CHECK_MESSAGES:
        total_before = 1.0
        least_message = tl.min(tl.where(log_message > float("-inf"), message, 1.0), axis=0)
        underflow_risk = tl.where(least_message < TINY, 1, 0)
    tile_at = tiles + row[:, None] * K_PAD + state[None, :]
    if PARTS:
        predicted = tl.zeros((K_PAD, PARTS), dtype=tl.float32)
    else:
        predicted = tl.zeros((K_PAD,), dtype=tl.float32)
    # One loop over steps and the chunks of their tiles, so that software pipelining covers all loads. A load must not
    # read what the loop writes, since it is issued some iterations earlier.
    for i in tl.range(0, length * CHUNKS, num_stages=STAGES):
        at = b * T + i // CHUNKS
        chunk = i % CHUNKS
        at_tile = tile_at + ((at * K_PAD + chunk * ROWS) * K_PAD)
        if FILLED == K_PAD:
            tile = tl.load(at_tile)
        else:
            tile = tl.load(at_tile, mask=(chunk * ROWS + row < FILLED)[:, None] & (state < FILLED)[None, :], other=0.0)
        w = tl.load(weight + at * K + state, mask=inside & (chunk == 0), other=1.0)
        e = tl.load(emission + at * K + state, mask=inside & (chunk == CHUNKS - 1), other=0.0)
        init = tl.load(init_of + at)
        # After the first chunk of a step `message` holds message times weight.
        message *= w
        part = message
        if CHUNKS > 1:
            part = tl.gather(part, (chunk * ROWS + row).to(tl.int32), 0)
        if PARTS:
            predicted = tl.dot(tl.trans(tile), in_parts(part, PARTS), predicted)
        else:
            predicted += tl.sum(part[:, None] * tile.to(tl.float32), axis=0)
        if chunk == CHUNKS - 1:
            arrived = predicted
            if PARTS:
                arrived = tl.sum(predicted, axis=1)
            # A sequence of probability zero stays impossible, also after a restart from an initial row.
            joint = tl.where(init >= 0, alive, arrived) * e
            total = tl.sum(joint, axis=0)
            possible = total > 0.0
            low = tl.where((total < TINY) & (alive > 0.0), 1, low)
            sent = message
            # The reciprocal of a subnormal number is infinite.
            message = joint * (1.0 / tl.maximum(total, SMALLEST_NORMAL))
            if CHECK_MESSAGES:
                # Underflow in the previous message costs a state at most 2^-126 divided by the previous total.
                least_arrived = tl.min(tl.where(e > 0.0, arrived, 1.0), axis=0)
                underflows = (underflow_risk > 0) & (least_arrived * tl.minimum(total_before, 1.0) < SMALLEST_PRECISE)
                least_sent = tl.min(tl.where(sent > 0.0, sent, 1.0), axis=0)
                vanishing = least_sent * tl.load(least + 3 * at) < SMALLEST_NORMAL
                vanishing = vanishing | (least_message * tl.load(least + 3 * at + 1) < SMALLEST_NORMAL)
                underflows = (underflows | (vanishing & (least_arrived < SMALLEST_PRECISE))) & (init < 0)
                low = tl.where(underflows & (alive > 0.0), 1, low)
                reached = (tl.where(init >= 0, alive, arrived) > 0.0) & (e > 0.0)
                least_message = tl.min(tl.where(reached, message, 1.0), axis=0)
                imprecise = (least_message < TINY) | (least_message * total < SMALLEST_PRECISE)
                underflow_risk = tl.where(imprecise | (tl.load(least + 3 * at + 2) < TINY), 1, 0)
                total_before = total
            alive = tl.where(possible, alive, 0.0)
            tl.store(alpha + at * K + state, message, mask=inside)
            tl.store(totals + at, total)
            predicted = tl.zeros_like(predicted)
    # A barrier within the program: all totals of the sequence are stored before any is loaded.
    tl.debug_barrier()
    for first in range(0, T, K_PAD):
        position = first + state
        within = position < length
        normalizer = tl.load(totals + b * T + position, mask=within, other=1.0)
        shift = tl.load(log_shift + b * T + position, mask=within, other=0.0)
        possible = normalizer > 0.0
        log_prob = tl.where(possible, tl.log(tl.where(possible, normalizer, 1.0)) + shift, float("-inf"))
        tl.store(token_log_probs + b * T + position, log_prob, mask=position < T)
    reached = message > 0.0
    log_message = tl.where(reached, tl.log(tl.where(reached, message, 1.0)), float("-inf"))
    tl.store(log_last + b * K + state, log_message, mask=inside)
    if CHECK_MESSAGES:
        low = tl.where(alive > 0.0, tl.maximum(low, underflow_risk), low)
    tl.store(underflow + b, low > 0)
