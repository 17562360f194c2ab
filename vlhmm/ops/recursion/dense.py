"""The recursion when every position takes the one tile, on a GPU: what is allocated, how the work is cut, which kernel.

Up to a few thousand states one persistent kernel a direction walks over time. With more of them the product of a step
outweighs its launch, and is left to the library.

Axes as in `factors`. Nothing here asks the device anything.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.ops.recursion import kernel
from vlhmm.ops.recursion.factors import Factors
from vlhmm.ops.recursion.scaled import Gradient
from vlhmm.precision import Precision

Method = Literal["persistent", "launches", "library"]
"""One kernel for all positions; the same kernel launched for each; or the library's matrix product and a kernel for the rest."""

LARGEST_PERSISTENT = 8192
"""Measured on one H200: 2.2 ms against 4.8 for 4,096 states. With more states a step is bound by reading the tile, and the library reads it with fewer bytes between the caches."""

SMALLEST_TOTAL = 1e-19
"""A message is multiplied before it is divided by its sum: beneath the root of float32's range that loses digits. Since tiles and
emissions are lifted by 2^32, such a sum is 5e-39 of the largest."""


PRODUCT_WIDENS = hasattr(torch.ops.aten.mm, "dtype")
"""Whether this torch can give a bfloat16 product in float32; else tf32 stands in for it."""


def pieces(whole: int, piece: int) -> int:
    return -(-whole // piece)


def power_of_2(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


@dataclass(frozen=True)
class Tiling:
    """A program makes `rows` x `columns` of a message, in steps of `inner` source states."""

    rows: int
    columns: int
    inner: int
    num_warps: int
    num_stages: int


# Smallest first: as many programs as there are multiprocessors hide the latency of a step best.
TILINGS = (
    Tiling(16, 32, 128, 4, 4),
    Tiling(32, 32, 128, 4, 4),
    Tiling(32, 64, 128, 4, 4),
    Tiling(64, 64, 128, 4, 4),
    Tiling(128, 64, 64, 8, 4),
    Tiling(128, 128, 64, 8, 4),
)

LIBRARY_TILING = Tiling(4, 512, 16, 4, 1)
"""Where the library makes the product, a program has only whole rows to read and write."""


@dataclass(frozen=True)
class DenseRun:
    """What the forward pass leaves behind."""

    token_log_probs: Float[Tensor, "B T"]
    messages: Float[Tensor, "S B K"]
    """exp log_previous, then p(z_t | x_<=t) of every position, past the length that of the last one: S = T + 1. Where they
    were not kept S = 2, and the last message stands at T % 2."""
    scale: Float[Tensor, "B T"]
    """c_t of the scaled factors; 1 past the length."""
    suspect: Bool[Tensor, " B"]
    """A probability that matters may have been too small for its type."""
    lost: Bool[Tensor, " B"]
    """Those of them in which the sum of a step was: of the others only single messages were, which seldom matters."""
    tile: Float[Tensor, "K K"]
    """2^32 exp(log A - peak), as the matrix products read it."""
    extent: Float[Tensor, " 2"]
    """The smallest and the largest log A."""

    @property
    def last(self) -> Float[Tensor, "B K"]:
        return self.messages[self.scale.shape[1] % self.messages.shape[0]]


def forward(
    factors: Factors,
    precision: Precision,
    *,
    keep: bool,
    method: Method | None = None,
    tiling: Tiling | None = None,
) -> DenseRun:
    """The forward pass; `keep` the messages of all positions if a gradient or the filtered states will be asked for."""
    size, length, states = factors.log_emission.shape
    device = factors.log_emission.device
    method = method or _method(states)
    tiling = tiling or _tiling(size, states, device, precision, method)
    parts = pieces(states, tiling.columns)
    extent = torch.stack(torch.aminmax(factors.log_tiles))
    tile = torch.empty(states, states, device=device, dtype=_operand_type(precision, device))
    _exp_tile(factors.log_tiles, extent, tile)
    slots = length + 1 if keep else 2
    messages = torch.empty(slots, size, states, device=device)
    operand = torch.empty(2, size, states, device=device, dtype=tile.dtype)
    sums = torch.empty(length + 1, size, parts, device=device)
    lows = torch.empty(length, size, parts, device=device)
    rows = _scaled_rows(factors, (messages[0], operand[0], sums[0]))
    arguments = (
        *(operand, messages, tile, rows.emission, rows.inits, factors.init_of.contiguous(), factors.lengths),
        *(sums, lows),
    )
    sizes = (size, length, states, slots)
    if method == "library":
        for t in range(length + 1):
            product = _product(operand[t % 2], tile, precision) if t < length else messages
            _launch(kernel.forward_steps, (*arguments, product), sizes, range(t, t + 1), tiling, precision, method)
    else:
        _launch(kernel.forward_steps, (*arguments, messages), sizes, range(length + 1), tiling, precision, method)
    token_log_probs = torch.empty(size, length, device=device)
    scale = torch.empty_like(token_log_probs)
    doubt = torch.empty(size, dtype=torch.int8, device=device)
    kernel.finish[(size,)](
        *(sums, lows, rows.emission_peak, rows.init_peak, extent, rows.vanished, factors.init_of.contiguous()),
        *(factors.lengths, token_log_probs, scale, doubt, size, length, parts),
        SMALLEST_TOTAL=SMALLEST_TOTAL,
        SMALLEST_MESSAGE=torch.finfo(torch.float32).tiny ** 0.75,
        POSITIONS=16,
        PARTS=power_of_2(parts),
    )
    return DenseRun(token_log_probs, messages, scale, doubt > 0, doubt > 1, tile, extent)


def backward(
    factors: Factors,
    run: DenseRun,
    token_cotangent: Float[Tensor, "B T"],
    last_cotangent: Float[Tensor, "B K"],
    precision: Precision,
    *,
    tile_gradient: bool = True,
    method: Method | None = None,
    tiling: Tiling | None = None,
) -> Gradient:
    """The vector-Jacobian product; sequences that are suspect must have cotangents of 0, and get a gradient of 0.

    Without `tile_gradient` that of the tile is left empty: posteriors need no product of all positions.
    """
    size, length, states = factors.log_emission.shape
    device = factors.log_emission.device
    method = method or _method(states)
    tiling = tiling or _tiling(size, states, device, precision, method)
    rows = _scaled_rows(factors, None)
    ratio = torch.empty(length, size, states, device=device, dtype=run.tile.dtype)
    sums = torch.empty(length, size, pieces(states, tiling.columns), device=device)
    flow = torch.empty(size, states, device=device)
    # Dead and suspect sequences alike have no way back.
    scale = torch.where(run.suspect[:, None], 0.0, run.scale)
    arguments = (
        *(ratio, run.messages, run.tile, rows.emission, factors.init_of.contiguous(), factors.lengths, scale),
        *(token_cotangent.contiguous(), last_cotangent.contiguous(), last_cotangent.sum(1), sums, flow),
    )
    sizes = (size, length, states)
    if method == "library":
        for step in range(length + 1):
            product = _product(ratio[length - step], run.tile.T, precision) if step else flow
            _launch(
                kernel.backward_steps, (*arguments, product), sizes, range(step, step + 1), tiling, precision, method
            )
    else:
        _launch(kernel.backward_steps, (*arguments, flow), sizes, range(length + 1), tiling, precision, method)
    # Each program has put the posterior where it had read the emission.
    posterior = rows.emission
    from_tile = factors.log_tiles.new_empty(0, states, states)
    if tile_gradient:
        before = run.messages[:-1].view(-1, states)
        from_tile = _product(before.T, ratio.view(-1, states), precision)[None]
        _times_tile(from_tile, factors.log_tiles, run.extent)
    return Gradient(flow, _init_gradient(factors, posterior), from_tile, posterior)


def _operand_type(precision: Precision, device: torch.device) -> torch.dtype:
    # The interpreter takes bfloat16 for integers in a matrix product.
    return torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32


def _method(states: int) -> Method:
    return "persistent" if states <= LARGEST_PERSISTENT else "library"


def _tiling(size: int, states: int, device: torch.device, precision: Precision, method: Method) -> Tiling:
    """The smallest that needs no second round of programs, else the largest."""
    if method == "library":
        return LIBRARY_TILING
    programs = multiprocessors(device)
    fitting = (one for one in TILINGS if pieces(size, one.rows) * pieces(states, one.columns) <= programs)
    tiling = next(fitting, TILINGS[-1])
    if precision == "bf16":
        return tiling
    # Operands twice as wide: half as many source states at a time fit into shared memory.
    return Tiling(tiling.rows, tiling.columns, tiling.inner // 2, tiling.num_warps, tiling.num_stages)


def multiprocessors(device: torch.device) -> int:
    # The interpreter runs programs one after the other: a second one would never reach the first one's barrier.
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1


def _launch(
    steps_kernel: Any,
    arguments: tuple[Tensor, ...],
    sizes: tuple[int, ...],
    steps: range,
    tiling: Tiling,
    precision: Precision,
    method: Method,
) -> None:
    """All steps in one launch, or each in its own."""
    size, _, states = sizes[:3]
    device = arguments[0].device
    parts = pieces(states, tiling.columns)
    programs = pieces(size, tiling.rows) * parts
    options: dict[str, Any] = {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages}
    arrived = arguments[-1]
    if method == "persistent":
        arrived = torch.zeros(1, dtype=torch.int32, device=device)
        # Programs that wait for one another must all run at once.
        programs = min(programs, multiprocessors(device))
        if device.type == "cuda":
            options["launch_cooperative_grid"] = True
    for first in [steps.start] if method == "persistent" else steps:
        steps_kernel[(programs,)](
            *arguments,
            arrived,
            *sizes,
            first,
            steps.stop if method == "persistent" else first + 1,
            PARTS=power_of_2(parts),
            ROWS=tiling.rows,
            COLUMNS=tiling.columns,
            INNER=tiling.inner,
            INPUT_PRECISION="ieee" if precision == "highest" else "tf32",
            PERSISTENT=method == "persistent",
            FUSED=method != "library",
            **options,
        )


def _product(left: Float[Tensor, "K N"], right: Float[Tensor, "N J"], precision: Precision) -> Float[Tensor, "K J"]:
    """left @ right in float32."""
    if precision == "bf16" and left.is_cuda and PRODUCT_WIDENS:
        return torch.mm(left.to(torch.bfloat16), right, out_dtype=torch.float32)
    allowed = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = precision != "highest"
    try:
        return left @ right.float()
    finally:
        torch.backends.cuda.matmul.allow_tf32 = allowed


def _init_gradient(factors: Factors, posterior: Float[Tensor, "B T K"]) -> Float[Tensor, "I K"]:
    """Each initial row's posteriors summed, as a product with a few indicator rows: no sorting, nothing asked of the host."""
    num_inits = factors.log_inits.shape[0]
    if num_inits == 0:
        return torch.zeros_like(factors.log_inits)
    wanted = torch.arange(num_inits, device=posterior.device)[:, None]
    indicator = (factors.init_of.flatten() == wanted).to(posterior.dtype)
    return _product(indicator, posterior.flatten(0, 1), "highest")


@dataclass(frozen=True)
class _Rows:
    """Emissions and initial rows as probabilities, each shifted in log space so that its largest entry is 2^32."""

    emission: Float[Tensor, "B T K"]
    emission_peak: Float[Tensor, "B T"]
    inits: Float[Tensor, "I K"]
    init_peak: Float[Tensor, " I"]
    vanished: Int[Tensor, " B"]
    """A state before position 0 is possible, but too unlikely for its type."""


def _scaled_rows(factors: Factors, begin: tuple[Tensor, Tensor, Tensor] | None) -> _Rows:
    """The scaled rows; with `begin`, also what the first step reads: the message, its operand, its sums."""
    size, length, states = factors.log_emission.shape
    device = factors.log_emission.device
    rows = _Rows(
        torch.empty(size, length, states, device=device),
        torch.empty(size, length, device=device),
        torch.empty(factors.log_inits.shape, device=device),
        torch.empty(factors.log_inits.shape[0], device=device),
        torch.empty(size, dtype=torch.int8, device=device),
    )
    message, operand, sums = begin or (rows.emission, rows.emission, rows.emission_peak)
    num_emissions, num_inits = size * length, rows.inits.shape[0]
    parts = sums.shape[1] if begin else 0
    block = min(4096, power_of_2(states))
    kernel.scale_rows[(num_emissions + num_inits + (size if begin else 0),)](
        *(factors.log_emission.contiguous(), rows.emission, rows.emission_peak),
        *(factors.log_inits.contiguous(), rows.inits, rows.init_peak),
        *(factors.log_previous.contiguous(), message, operand, sums, rows.vanished),
        *(num_emissions, num_inits, states, parts),
        SMALLEST_MESSAGE=torch.finfo(torch.float32).tiny ** 0.75,
        PARTS=power_of_2(max(1, parts)),
        BLOCK=block,
        num_warps=4 if block >= 1024 else 1,
    )
    return rows


def _exp_tile(log_tiles: Float[Tensor, "1 K K"], extent: Float[Tensor, " 2"], tile: Float[Tensor, "K K"]) -> None:
    count = tile.numel()
    kernel.exp_tile[(pieces(count, 4096),)](log_tiles.contiguous(), extent, tile, tile, count, TIMES=False, BLOCK=4096)


def _times_tile(
    gradient: Float[Tensor, "1 K K"], log_tiles: Float[Tensor, "1 K K"], extent: Float[Tensor, " 2"]
) -> None:
    """gradient times 2^32 exp(log A - peak), in place."""
    count = gradient.numel()
    kernel.exp_tile[(pieces(count, 4096),)](
        log_tiles.contiguous(), extent, gradient, gradient, count, TIMES=True, BLOCK=4096
    )
