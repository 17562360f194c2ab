"""The blocked recursion on a GPU, in a few kernels; `launch.py` calls them, between those of `blocked_tiles`, which make the tiles
S and the gradient of the features.

    exponentiate a program a position  the vectors of a position as probabilities: steps in sequence do no more than they must
    forward      a program a sequence  messages from position to position: vector times tile
    backward     a program a sequence  the same from the end: tile times vector

The tile of a position is A[z, z'] = exp(log_weight(z)) S[z, z']: block-factored, S is the softmax of a row and log_weight
the log-probability of the block; softmax or table, S is shifted so that its largest entry in a row is 1. Nothing in S underflows
where it matters, though all of A may be exp(-60). With w = exp(log_weight - shift), alpha_t the filtered probabilities,
e_t the emission, c_t the normaliser, g_t the cotangent of log c_t, and slope_t = dL / dlog u_t over alpha_t (see
`vlhmm.ops.recursion.scaled`):

    sent_t  = alpha_t-1 w            u_t = (sent_t S) e_t           alpha_t = u_t / c_t
    ratio_t = slope_t e_t / c_t      mean_t = S ratio_t             slope_t-1 = w mean_t + g_t-1 - sum of sent_t mean_t

    dL / dlog A[z, z'] = sent(z) S[z, z'] ratio(z')                 its row sum: sent(z) mean(z)
    dL / dlogits[z, z'] = sent(z) S[z, z'] (ratio(z') - mean(z))    block-factored; softmax: without the mean

K_PAD is K rounded up to a power of two; in S the padding is 0, in vectors it is masked. Addresses are int64. `states` is the table
of each group's states, None where group g holds g K, ..., g K + K - 1.
"""

from __future__ import annotations

from typing import no_type_check

import triton
import triton.language as tl

from vlhmm.ops.blocked_tiles.kernel import finite_or_zero, states_of

# `do_not_specialize`: another number of positions is no reason to compile anew.

# A quarter of float32's exponents is left as a margin above its smallest number.
TINY = tl.constexpr(4e-29)


@triton.jit
@no_type_check
def exponentiate(
    log_weight, log_emission, log_inits, init_of, weight, emission, log_shift, found_zero, K, K_PAD: tl.constexpr
):
    """The vectors of one position, each shifted so that its largest entry is 1; `log_shift` is what the shifts took.

    A state that begins anew has not moved: its weights are 0, and its emission holds the init row as well.
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
    smallest = tl.min(tl.where(inside, w, 1.0), axis=0)
    tl.store(found_zero, 1, mask=(smallest == 0.0) & (init < 0))


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
    found_zero,
    token_log_probs,
    log_last,
    alpha,
    sent,
    totals,
    suspect,
    T,
    K,
    K_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One sequence. Each step waits for the one before; what does not is on its way to shared memory some pieces ahead.

    It is suspect where a total was next to nothing. A single faded message matters only if a tile has zeros: else every
    state reaches every state.
    """
    CHUNKS: tl.constexpr = K_PAD // ROWS
    b = tl.program_id(0).to(tl.int64)
    state = tl.arange(0, K_PAD)
    inside = state < K
    row = tl.arange(0, ROWS)
    length = tl.load(lengths + b).to(tl.int64)
    log_message = tl.load(log_previous + b * K + state, mask=inside, other=float("-inf"))
    message = tl.exp(log_message)
    alive = tl.where(tl.max(log_message, axis=0) > float("-inf"), 1.0, 0.0)
    low = 0
    fading = tl.where((message < TINY) & (log_message > float("-inf")), 1, 0)
    tile_at = tiles + b * T * K_PAD * K_PAD + row[:, None] * K_PAD + state[None, :]
    predicted = tl.zeros((K_PAD,), dtype=tl.float32)
    # One loop over steps and the pieces of their tiles, so that the loads of all are pipelined alike. None of them may
    # read what the loop has written: they run ahead of it.
    for i in tl.range(0, length * CHUNKS, num_stages=STAGES):
        at = b * T + i // CHUNKS
        chunk = i % CHUNKS
        tile = tl.load(tile_at + i * (ROWS * K_PAD))
        w = tl.load(weight + at * K + state, mask=inside, other=0.0)
        e = tl.load(emission + at * K + state, mask=inside, other=0.0)
        init = tl.load(init_of + at)
        moving = message * w
        part = moving
        if CHUNKS > 1:
            part = tl.gather(moving, (chunk * ROWS + row).to(tl.int32), 0)
        predicted += tl.sum(part[:, None] * tile.to(tl.float32), axis=0)
        if chunk == CHUNKS - 1:
            # What has once become impossible stays so, also when the states begin anew.
            joint = tl.where(init >= 0, alive, predicted) * e
            total = tl.sum(joint, axis=0)
            possible = total > 0.0
            low = tl.where((total < TINY) & (alive > 0.0), 1, low)
            alive = tl.where(possible, alive, 0.0)
            message = joint * (1.0 / tl.where(possible, total, 1.0))
            fading = tl.where((message > 0.0) & (message < TINY), 1, fading)
            tl.store(sent + at * K + state, moving, mask=inside)
            tl.store(alpha + at * K + state, message, mask=inside)
            tl.store(totals + at, total)
            predicted = tl.zeros((K_PAD,), dtype=tl.float32)
    for t in range(length, T):
        tl.store(sent + (b * T + t) * K + state, tl.zeros((K_PAD,), dtype=tl.float32), mask=inside)
    # All of a sequence's totals are in memory before any is read.
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
    tl.store(suspect + b, tl.maximum(low, tl.max(fading, axis=0) * tl.load(found_zero)) > 0)


@triton.jit(do_not_specialize=["T"])
@no_type_check
def backward(
    tiles,
    alpha,
    weight,
    emission,
    totals,
    init_of,
    source_group,
    target_group,
    states,
    log_previous,
    lengths,
    token_cotangent,
    last_cotangent,
    posterior,
    ratio,
    mean,
    d_log_previous,
    d_log_inits,
    d_row_term,
    T,
    K,
    M,
    BLOCK_FACTORED: tl.constexpr,
    K_PAD: tl.constexpr,
    ROWS: tl.constexpr,
    STAGES: tl.constexpr,
):
    """One sequence from its end; the gradients of the row terms and of the inits are added as they are met."""
    CHUNKS: tl.constexpr = K_PAD // ROWS
    b = tl.program_id(0).to(tl.int64)
    state = tl.arange(0, K_PAD)
    inside = state < K
    row = tl.arange(0, ROWS)
    length = tl.load(lengths + b).to(tl.int64)
    last = tl.maximum(length, 1) - 1
    tile_at = tiles + b * T * K_PAD * K_PAD + row[:, None] * K_PAD + state[None, :]
    previous = tl.exp(tl.load(log_previous + b * K + state, mask=inside, other=float("-inf")))
    here = tl.load(alpha + (b * T + last) * K + state, mask=inside & (length > 0), other=0.0)
    here = tl.where(length > 0, here, previous)
    flow = tl.zeros((K_PAD,), dtype=tl.float32)
    if last_cotangent is not None:
        asked = tl.load(last_cotangent + b * K + state, mask=inside, other=0.0)
        flow = tl.where(here > 0.0, asked, 0.0)
    flow_sum = tl.sum(flow, axis=0)
    # dL / dlog alpha over alpha: bounded where the quotient of two small numbers would not be.
    slope = tl.where(here > 0.0, flow / tl.where(here > 0.0, here, 1.0), 0.0)
    average = tl.zeros((K_PAD,), dtype=tl.float32)
    # As in the forward direction; pieces go up within a tile, tiles go down.
    for i in tl.range(0, length * CHUNKS, num_stages=STAGES):
        t = last - i // CHUNKS
        chunk = i % CHUNKS
        at = b * T + t
        tile = tl.load(tile_at + (t * CHUNKS + chunk) * (ROWS * K_PAD))
        before = tl.load(alpha + (at - 1) * K + state, mask=inside & (t > 0), other=0.0)
        w = tl.load(weight + at * K + state, mask=inside, other=0.0)
        e = tl.load(emission + at * K + state, mask=inside, other=0.0)
        total = tl.load(totals + at)
        cotangent = tl.load(token_cotangent + at)
        init = tl.load(init_of + at).to(tl.int64)
        source = tl.load(source_group + at).to(tl.int64)
        target = tl.load(target_group + at).to(tl.int64)
        # What cannot be has no gradient, whatever was asked of it.
        rising = tl.where(here > 0.0, slope + (cotangent - flow_sum), 0.0)
        # A total of 0 leaves no state reached.
        r = rising * e * (1.0 / tl.where(total > 0.0, total, 1.0))
        part = tl.sum(tile.to(tl.float32) * r[None, :], axis=1)
        if CHUNKS > 1:
            average += tl.where(state // ROWS == chunk, tl.gather(part, state % ROWS, 0), 0.0)
        else:
            average = part
        if chunk == CHUNKS - 1:
            q = here * rising
            tl.store(posterior + at * K + state, q, mask=inside)
            tl.store(ratio + at * K + state, r, mask=inside)
            tl.store(mean + at * K + state, average, mask=inside)
            here = tl.where(t > 0, before, previous)
            slope = w * average
            flow = here * slope
            flow_sum = tl.sum(flow, axis=0)
            used = inside & (flow != 0.0)
            if BLOCK_FACTORED:
                tl.atomic_add(d_row_term + (source * K + state) * M + target, flow, mask=used, sem="relaxed")
            elif d_row_term is not None:
                of_row = states_of(states, source, state, inside, K)
                tl.atomic_add(d_row_term + of_row, -flow, mask=used, sem="relaxed")
            if d_log_inits is not None:
                begun = inside & (init >= 0)
                tl.atomic_add(d_log_inits + init * K + state, q, mask=begun, sem="relaxed")
            average = tl.zeros((K_PAD,), dtype=tl.float32)
    tl.store(d_log_previous + b * K + state, flow, mask=inside)
    nothing = tl.zeros((K_PAD,), dtype=tl.float32)
    for t in range(length, T):
        at = b * T + t
        tl.store(posterior + at * K + state, nothing, mask=inside)
        tl.store(ratio + at * K + state, nothing, mask=inside)
        tl.store(mean + at * K + state, nothing, mask=inside)
