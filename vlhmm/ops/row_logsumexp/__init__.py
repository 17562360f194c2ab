"""log sum_y exp(out_z . in_y) for every z, without a tensor of all pairs (z, y)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops import dispatch
from vlhmm.precision import Precision

CHUNK_BYTES, CPU_CHUNK_BYTES = 64 << 20, 4 << 20
"""The logits that exist at one time, forward and backward, where no kernel takes the work; on a CPU so few that they stay near it."""

CHUNK_ROWS = 512
"""Of these logits: fewer columns at a time, rather, so that each of them is read and given its gradient seldom."""

# Above this width a kernel's tile does not fit into shared memory, nor its accumulator into registers.

Factors = tuple[Float[Tensor, "Z H"], Float[Tensor, "Y H"], Float[Tensor, " Z"]]
"""`out`, `into` and the log of the sums."""


def row_logsumexp(
    out: Float[Tensor, "Z H"],
    into: Float[Tensor, "Y H"],
    live: Bool[Tensor, " Y"] | None = None,
    *,
    precision: Precision = "highest",
    chunk_bytes: int | None = None,
) -> Float[Tensor, " Z"]:
    """log sum_y exp(out_z . in_y) over the y that are `live`; None: all.

    A row of `into` may hold -inf where `out` is positive: p(y | z) is then 0. On a GPU bf16 logits live in one tile at a
    time. All others are made in the operands' own precision (float32 on a GPU: in float64), at most `chunk_bytes` (or a column of
    CHUNK_ROWS, where that is more) at a time; None: as suits the device.
    """
    return factors_and_row_logsumexp(out, into, live, precision=precision, chunk_bytes=chunk_bytes)[2]


def factors_and_row_logsumexp(
    out: Float[Tensor, "Z H"],
    into: Float[Tensor, "Y H"],
    live: Bool[Tensor, " Y"] | None = None,
    *,
    precision: Precision = "highest",
    chunk_bytes: int | None = None,
) -> Factors:
    """`out`, `into` and their `row_logsumexp`.

    For further readers of the factors, which should read those returned: their gradients are added by the kernels that make
    those of the sum. Autograd would take one more pass over each.
    """
    if precision == "bf16" and _kernel_takes(out, into):
        return tiled_factors_and_row_logsumexp(out, into, live, precision=precision)
    return out, into, _ChunkedRowLogSumExp.apply(out, into, live, chunk_bytes)


def tiled_row_logsumexp(
    out: Float[Tensor, "Z H"],
    into: Float[Tensor, "Y H"],
    live: Bool[Tensor, " Y"] | None = None,
    *,
    precision: Precision,
) -> Float[Tensor, " Z"]:
    """`row_logsumexp` by the launch."""
    return tiled_factors_and_row_logsumexp(out, into, live, precision=precision)[2]


def tiled_factors_and_row_logsumexp(
    out: Float[Tensor, "Z H"],
    into: Float[Tensor, "Y H"],
    live: Bool[Tensor, " Y"] | None = None,
    *,
    precision: Precision,
) -> Factors:
    """`factors_and_row_logsumexp` by the launch."""
    # Autograd is off inside `Function.forward`, so whether `out` requires a gradient is read here.
    with_mean = torch.is_grad_enabled() and out.requires_grad
    result: tuple[Tensor, Tensor, Tensor] = _TiledRowLogSumExp.apply(out, into, live, precision, with_mean)
    return result


def _kernel_takes(out: Tensor, into: Tensor) -> bool:
    return out.dtype == into.dtype and dispatch.ROW_LOGSUMEXP.serve(out, into, size=out.shape[1])


class _TiledRowLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, out: Tensor, into: Tensor, live: Tensor | None, precision: Precision, with_mean: bool
    ) -> tuple[Tensor, Tensor, Tensor]:
        from vlhmm.ops.row_logsumexp import launch

        packed_out, packed_into = launch.pack(out, precision), launch.pack(into, precision, live)
        tiles = launch.tiling(out.shape[1], precision)
        log_sum, mean = launch.forward(packed_out, packed_into, with_mean=with_mean, precision=precision, tiles=tiles)
        ctx.save_for_backward(
            *(packed_out.features, packed_out.barrier, packed_into.features, packed_into.barrier),
            *(packed_into.place, packed_into.num_live, log_sum, mean),
        )
        ctx.precision, ctx.tiles = precision, tiles
        ctx.num_out, ctx.num_into, ctx.width, ctx.dtype = out.shape[0], into.shape[0], out.shape[1], out.dtype
        ctx.set_materialize_grads(False)
        # Detached, so that they are no views of the inputs: parts that are joined again by their base must find these tensors.
        return out.detach(), into.detach(), log_sum.to(out.dtype).detach()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, others_out: Tensor | None, others_into: Tensor | None, grad: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        from vlhmm.ops.row_logsumexp import launch

        out_features, out_barrier, into_features, into_barrier, place, num_live, log_sum, mean = ctx.saved_tensors
        if grad is None:
            return others_out, others_into, None, None, None
        grad = grad.float()
        grad_out = grad_into = None
        if ctx.needs_input_grad[0]:
            grad_out = launch.grad_out(mean, grad, others_out, ctx.dtype)
        if ctx.needs_input_grad[1]:
            grad_into = launch.grad_into(
                launch.Packed(out_features, out_barrier, ctx.num_out, ctx.width),
                launch.Packed(into_features, into_barrier, ctx.num_into, ctx.width, place, num_live),
                log_sum,
                grad,
                others_into,
                precision=ctx.precision,
                tiles=ctx.tiles,
            ).to(ctx.dtype)
        return grad_out, grad_into, None, None, None


class _ChunkedRowLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, into: Tensor, live: Tensor | None, chunk_bytes: int | None) -> Tensor:
        ctx.dtype, ctx.chunk_bytes = out.dtype, chunk_bytes
        if out.is_cuda and out.dtype == torch.float32:
            # Whether cuBLAS rounds float32 operands to tf32 is a process-wide setting; float64 operands are never rounded.
            out, into = out.double(), into.double()
        log_sum = out.new_empty(out.shape[0])
        for rows, columns in _chunks(out, into, chunk_bytes):
            peak, total = out.new_full((rows.stop - rows.start,), -torch.inf), out.new_zeros(rows.stop - rows.start)
            for some in columns:
                logits = _logits(out[rows], into, live, some)
                higher = torch.maximum(peak, logits.amax(dim=1))
                shift = _finite_or_zero(higher)
                total = total * (peak - shift).exp() + logits.sub_(shift[:, None]).exp_().sum(dim=1)
                peak = higher
            log_sum[rows] = total.log() + _finite_or_zero(peak)
        ctx.save_for_backward(out, into, live, log_sum)
        return log_sum.to(ctx.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        out, into, live, log_sum = ctx.saved_tensors
        grad, grad_out, grad_into = grad.to(out.dtype), torch.zeros_like(out), torch.zeros_like(into)
        shift = _finite_or_zero(log_sum)
        for rows, columns in _chunks(out, into, ctx.chunk_bytes):
            for some in columns:
                weights = _logits(out[rows], into, live, some).sub_(shift[rows, None]).exp_().mul_(grad[rows, None])
                grad_out[rows].addmm_(weights, into[some])
                grad_into[some].addmm_(weights.T, out[rows])
        return grad_out.to(ctx.dtype), grad_into.to(ctx.dtype), None, None


def _logits(out: Tensor, into: Tensor, live: Tensor | None, columns: slice) -> Tensor:
    logits = out @ into[columns].T
    return logits if live is None else logits.masked_fill_(~live[columns], -torch.inf)


def _chunks(out: Tensor, into: Tensor, chunk_bytes: int | None) -> Iterator[tuple[slice, list[slice]]]:
    """For each stretch of rows the stretches of columns."""
    if chunk_bytes is None:
        chunk_bytes = CHUNK_BYTES if out.is_cuda else CPU_CHUNK_BYTES
    num_rows, num_columns = out.shape[0], into.shape[0]
    rows = max(1, min(num_rows, CHUNK_ROWS))
    columns = max(1, chunk_bytes // (rows * out.element_size()))
    of_columns = [slice(first, min(first + columns, num_columns)) for first in range(0, num_columns, columns)]
    return ((slice(first, min(first + rows, num_rows)), of_columns) for first in range(0, num_rows, rows))


def _finite_or_zero(shift: Tensor) -> Tensor:
    """A row of logits that are all -inf has the sum 0, not NaN."""
    return shift.masked_fill(shift == -torch.inf, 0.0)
