"""The recursion when every position takes the one tile, on a GPU: what is allocated and launched; `tilings` says how
the work is tiled, and which kernel does it, `launches` how its steps are launched.

Up to about a thousand states one persistent kernel a direction walks over time and keeps the tile on the chip; up to a few thousand
another reads the tile anew at each step. With more of them the product of a step outweighs its launch, and is left to cuBLAS.

Axes as in `factors`. Nothing here synchronises host and device.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.ops import waiting
from vlhmm.ops.recursion import kernel
from vlhmm.ops.recursion.backward import kernel as backward_kernel
from vlhmm.ops.recursion.ends import kernel as ends
from vlhmm.ops.recursion.exponentials import kernel as factors_kernel
from vlhmm.ops.recursion.factors import Factors
from vlhmm.ops.recursion.launches import awaited, launch, launch_resident
from vlhmm.ops.recursion.product import product
from vlhmm.ops.recursion.resident import kernel as resident
from vlhmm.ops.recursion.scaled import Gradient
from vlhmm.ops.recursion.tilings import Method, Tiling, method_for, tiling_for
from vlhmm.ops.sizes import cdiv, power_of_2
from vlhmm.precision import Precision

SMALLEST_TOTAL = 1e-19
"""A message is multiplied before it is divided by its sum: beneath the root of float32's range that loses digits. Since tiles and
emissions are lifted by 2^32, such a sum is 5e-39 of the largest."""

SMALLEST_MESSAGE = torch.finfo(torch.float32).tiny ** 0.75

PART_POSITIONS, MAX_PARTS = 256, 1024
"""A program of those that sum posteriors over all positions takes so many, or more, so that their parts are not too many."""


@dataclass(frozen=True)
class Prepared:
    """What depends on the tile and the initial rows alone: made once for an HMM that stays as it is."""

    log_tile: Float[Tensor, "K K"]
    tile: Float[Tensor, "K K"]
    """2^32 exp(log A - peak), as the matrix products read it."""
    extent: Float[Tensor, " 3"]
    """The smallest log A that is possible, the largest, and the smallest of all."""
    log_inits: Float[Tensor, "I K"]


@dataclass(frozen=True)
class Text:
    """The rest of the factors: the emission at position t of sequence b is row `row_of[b, t]` of a table."""

    log_rows: Float[Tensor, "N K"]
    peaks: Float[Tensor, " N"]
    """The largest entry of each row, 0 where all are -inf."""
    row_of: Int[Tensor, "B T"]
    init_of: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    log_previous: Float[Tensor, "B K"]


@dataclass(frozen=True)
class DenseRun:
    """What the forward pass leaves behind."""

    token_log_probs: Float[Tensor, "B T"]
    messages: Float[Tensor, "S B K"]
    """exp log_previous, then p(z_t | x_<=t) of every position, past the length that of the last one: S = T + 1. Where they
    were not kept S = 2, and the last message stands at T % 2."""
    scale: Float[Tensor, "B T"]
    """c_t of the scaled factors; 1 past the length."""
    underflow_level: Int[Tensor, " B"]
    """1: single messages were too small for their type, which seldom matters; 2: the sum of a step was."""
    log_prob: Float[Tensor, " B"] | None = None
    """Of the whole sequence, where it was just made."""

    @property
    def underflow(self) -> Bool[Tensor, " B"]:
        """A probability that matters may have been too small for its type."""
        return self.underflow_level > 0

    @property
    def total_underflow(self) -> Bool[Tensor, " B"]:
        return self.underflow_level > 1

    @property
    def last(self) -> Float[Tensor, "B K"]:
        return self.messages[self.scale.shape[1] % self.messages.shape[0]]


def prepare(log_tile: Float[Tensor, "K K"], log_inits: Float[Tensor, "I K"], precision: Precision) -> Prepared:
    log_tile = log_tile.contiguous()
    tile = torch.empty(log_tile.shape, device=log_tile.device, dtype=_operand_type(precision, log_tile.device))
    count, extent = tile.numel(), torch.empty(3, device=log_tile.device)
    num_parts = min(1024, cdiv(count, 4096))
    parts = torch.empty(3, num_parts, device=log_tile.device)
    factors_kernel.extremes[(num_parts,)](log_tile, parts, count, BLOCK=4096)
    factors_kernel.exp_tile[(cdiv(count, 4096),)](
        log_tile, parts, num_parts, extent, tile, tile, count, TIMES=False, BLOCK=4096
    )
    return Prepared(log_tile, tile, extent, log_inits.contiguous())


def row_peaks(log_rows: Float[Tensor, "N K"]) -> Float[Tensor, " N"]:
    peaks = torch.empty(log_rows.shape[0], device=log_rows.device)
    block = min(4096, power_of_2(log_rows.shape[1]))
    factors_kernel.row_peaks[(log_rows.shape[0],)](
        log_rows, peaks, log_rows.shape[1], BLOCK=block, num_warps=_warps(block)
    )
    return peaks


def text_of(factors: Factors) -> Text:
    """Every position has a row of its own."""
    size, length, states = factors.log_emission.shape
    log_rows = factors.log_emission.contiguous().view(-1, states)
    row_of = torch.arange(size * length, device=log_rows.device).view(size, length)
    rest = (factors.init_of.contiguous(), factors.lengths, factors.log_previous.contiguous())
    return Text(log_rows, row_peaks(log_rows), row_of, *rest)


def forward(
    prepared: Prepared,
    text: Text,
    precision: Precision,
    *,
    keep: bool,
    method: Method | None = None,
    tiling: Tiling | None = None,
) -> DenseRun:
    """The forward pass; `keep` the messages of all positions if a gradient or the filtered states will be asked for."""
    size, length = text.row_of.shape
    states, device = prepared.tile.shape[0], prepared.tile.device
    method = method or method_for(size, states, device, precision)
    tiling = tiling or tiling_for(size, states, device, precision, method)
    parts = cdiv(states, tiling.columns)
    slots = length + 1 if keep else 2
    messages = torch.empty(slots, size, states, device=device)
    lows = torch.empty(2, length, size, parts, device=device)
    if method == "resident":
        operand, sums = awaited(length + 1, size, states, parts, prepared.tile)
    else:
        operand = torch.empty(2, size, states, device=device, dtype=prepared.tile.dtype)
        sums = torch.empty(length + 1, size, parts, device=device)
    begun = _begin(prepared, text, messages[0], operand[0], sums[0])
    emission = (text.log_rows, text.peaks, text.row_of)
    arguments = (operand, messages, prepared.tile, *emission, begun.inits, text.init_of, text.lengths, sums, lows)
    sizes = (size, length, states, slots)
    if method == "resident":
        steps = resident.forward_steps
        launch_resident(steps, arguments, sizes, length, length + 1, tiling, waiting.FORWARD_RESIDENT, KEEP=keep)
    elif method == "cublas":
        for t in range(length + 1):
            made = product(operand[t % 2], prepared.tile, precision) if t < length else messages
            launch(
                *(kernel.forward_steps, (*arguments, made), sizes, range(t, t + 1)),
                *(tiling, precision, method, waiting.FORWARD),
            )
    else:
        launch(
            *(kernel.forward_steps, (*arguments, messages), sizes, range(length + 1)),
            *(tiling, precision, method, waiting.FORWARD),
        )
    token_log_probs, log_prob = torch.empty(size, length, device=device), torch.empty(size, device=device)
    scale = torch.empty_like(token_log_probs)
    underflow_level = torch.empty(size, dtype=torch.int8, device=device)
    kernel.finish[(size,)](
        *(sums, lows, text.peaks, text.row_of, begun.init_peak, prepared.extent, begun.least_before, text.init_of),
        *(text.lengths, token_log_probs, log_prob, scale, underflow_level, size, length, parts),
        SMALLEST_TOTAL=SMALLEST_TOTAL,
        SMALLEST_MESSAGE=SMALLEST_MESSAGE,
        POSITIONS=16,
        PARTS=power_of_2(parts),
    )
    return DenseRun(token_log_probs, messages, scale, underflow_level, log_prob)


def backward(
    prepared: Prepared,
    text: Text,
    run: DenseRun,
    token_cotangent: Float[Tensor, "B T"] | None,
    last_cotangent: Float[Tensor, "B K"] | None,
    precision: Precision,
    *,
    tile_gradient: bool = True,
    init_gradient: bool = True,
    nonnegative: bool = False,
    method: Method | None = None,
    tiling: Tiling | None = None,
) -> Gradient:
    """The vector-Jacobian product. Sequences with underflow get a gradient of 0; impossible tokens and states have none.

    Without `tile_gradient` and `init_gradient` those are left empty: posteriors need no products of all positions. The gradient
    of the emission is that of each position, not of the table's rows; if `nonnegative`, since no cotangent is negative, rounding
    leaves nothing of it below 0.
    """
    size, length = text.row_of.shape
    states, device = prepared.tile.shape[0], prepared.tile.device
    method = method or method_for(size, states, device, precision)
    tiling = tiling or tiling_for(size, states, device, precision, method)
    parts = cdiv(states, tiling.columns)
    if method == "resident":
        ratio, sums = awaited(length + 1, size, states, parts, prepared.tile)
        # Nothing comes from past the end.
        ratio[length] = 0.0
        sums[length] = 0.0
    else:
        ratio = torch.empty(length, size, states, device=device, dtype=prepared.tile.dtype)
        sums = torch.empty(length, size, parts, device=device)
    posterior = torch.empty(size, length, states, device=device)
    flow = torch.empty(size, states, device=device)
    asked = _ask(run, token_cotangent, last_cotangent)
    arguments = (
        *(ratio, run.messages, prepared.tile, text.log_rows, text.peaks, text.row_of, posterior, text.init_of),
        *(text.lengths, asked.scale, asked.token, asked.last, asked.last_sum, sums, flow),
    )
    sizes = (size, length, states)
    if method == "resident":
        launch_resident(
            *(resident.backward_steps, arguments, sizes, length + 1, length + 1, tiling, waiting.BACKWARD_RESIDENT),
            NONNEGATIVE=nonnegative,
        )
    elif method == "cublas":
        for step in range(length + 1):
            made = product(ratio[length - step], prepared.tile.T, precision) if step else flow
            launch(
                backward_kernel.backward_steps,
                (*arguments, made),
                sizes,
                range(step, step + 1),
                tiling,
                precision,
                method,
                waiting.BACKWARD,
                NONNEGATIVE=nonnegative,
            )
    else:
        launch(
            backward_kernel.backward_steps,
            (*arguments, flow),
            sizes,
            range(length + 1),
            tiling,
            precision,
            method,
            waiting.BACKWARD,
            NONNEGATIVE=nonnegative,
        )
    from_tile = prepared.log_tile.new_empty(0, states, states)
    if tile_gradient:
        before = run.messages[:-1].view(-1, states)
        from_tile = product(before.T, ratio[:length].view(-1, states), precision)[None]
        _times_tile(from_tile, prepared)
    from_inits = _init_gradient(prepared, text, posterior) if init_gradient else posterior.new_empty(0, states)
    return Gradient(flow, from_inits, from_tile, posterior)


def _operand_type(precision: Precision, device: torch.device) -> torch.dtype:
    # The interpreter takes bfloat16 for integers in a matrix product.
    return torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32


def _init_gradient(prepared: Prepared, text: Text, posterior: Float[Tensor, "B T K"]) -> Float[Tensor, "I K"]:
    """Each initial row's posteriors summed; there are but a few such rows."""
    num_inits, states = prepared.log_inits.shape
    num_positions = text.init_of.numel()
    part_positions = max(PART_POSITIONS, cdiv(num_positions, MAX_PARTS))
    parts = cdiv(num_positions, part_positions)
    of_parts = torch.empty(parts, num_inits, states, device=posterior.device)
    ends.sum_begun[parts, num_inits, cdiv(states, 128)](
        *(posterior, text.init_of, of_parts, num_positions, num_inits, states, part_positions),
        ROWS=64,
        BLOCK=128,
        num_warps=4,
    )
    return of_parts[0] if parts == 1 else of_parts.sum(0)


@dataclass(frozen=True)
class _Asked:
    token: Float[Tensor, "B T"]
    last: Float[Tensor, "B K"]
    last_sum: Float[Tensor, " B"]
    scale: Float[Tensor, "B T"]
    """0 where a sequence has no gradient."""


def _ask(run: DenseRun, token_cotangent: Tensor | None, last_cotangent: Tensor | None) -> _Asked:
    (size, length), last = run.scale.shape, run.last
    token, scale = (torch.empty(size, length, device=last.device) for _ in range(2))
    asked = _Asked(token, torch.empty_like(last), torch.empty(size, device=last.device), scale)
    given = (None if one is None else one.contiguous() for one in (token_cotangent, last_cotangent))
    ends.ask[(size,)](
        *(run.token_log_probs, last, run.underflow_level, run.scale, *given),
        *(asked.token, asked.last, asked.last_sum, asked.scale, length, last.shape[1]),
        BLOCK=512,
        num_warps=4,
    )
    return asked


@dataclass(frozen=True)
class _Begun:
    inits: Float[Tensor, "I K"]
    """The initial rows as probabilities, each shifted in log space so that its largest entry is 2^32."""
    init_peak: Float[Tensor, " I"]
    least_before: Float[Tensor, " B"]
    """The smallest probability before position 0 of a state that is possible."""


def _begin(prepared: Prepared, text: Text, message: Tensor, operand: Tensor, sums: Tensor) -> _Begun:
    """What the first step reads, the message before position 0 in its three forms among it."""
    size, (num_inits, states), device = text.lengths.shape[0], prepared.log_inits.shape, message.device
    begun = _Begun(
        torch.empty(num_inits, states, device=device),
        torch.empty(num_inits, device=device),
        torch.empty(size, device=device),
    )
    block = min(4096, power_of_2(states))
    factors_kernel.scale_rows[(num_inits + size,)](
        *(
            prepared.log_inits,
            begun.inits,
            begun.init_peak,
            text.log_previous,
            message,
            operand,
            sums,
            begun.least_before,
        ),
        *(num_inits, states, sums.shape[1]),
        PARTS=power_of_2(sums.shape[1]),
        BLOCK=block,
        num_warps=_warps(block),
    )
    return begun


def _warps(block: int) -> int:
    return 4 if block >= 1024 else 1


def _times_tile(gradient: Float[Tensor, "1 K K"], prepared: Prepared) -> None:
    """gradient times 2^32 exp(log A - peak), in place."""
    count = gradient.numel()
    factors_kernel.exp_tile[(cdiv(count, 4096),)](
        prepared.log_tile, None, 0, prepared.extent, gradient, gradient, count, TIMES=True, BLOCK=4096
    )
