"""log sum_y exp(out_z . in_y) for every z, without a tensor of all pairs (z, y)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

# The logits that exist at one time, forward and backward.
CHUNK_BYTES = 64 << 20


def row_logsumexp(
    out: Float[Tensor, "Z H"], into: Float[Tensor, "Y H"], *, chunk_bytes: int = CHUNK_BYTES
) -> Float[Tensor, " Z"]:
    """log sum_y exp(out_z . in_y). Memory is bounded by `chunk_bytes` (or one row, where that is more)."""
    result: Tensor = _RowLogSumExp.apply(out, into, chunk_bytes)
    return result


class _RowLogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, out: Tensor, into: Tensor, chunk_bytes: int) -> Tensor:
        log_sum = out.new_empty(out.shape[0])
        for rows in _row_chunks(out, into, chunk_bytes):
            logits = out[rows] @ into.T
            peak = _finite_or_zero(logits.amax(dim=1))
            log_sum[rows] = logits.sub_(peak[:, None]).exp_().sum(dim=1).log_().add_(peak)
        ctx.save_for_backward(out, into, log_sum)
        ctx.chunk_bytes = chunk_bytes
        return log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        out, into, log_sum = ctx.saved_tensors
        grad_out, grad_into = torch.empty_like(out), torch.zeros_like(into)
        for rows in _row_chunks(out, into, ctx.chunk_bytes):
            shift = _finite_or_zero(log_sum[rows])
            weights = (out[rows] @ into.T).sub_(shift[:, None]).exp_().mul_(grad[rows, None])
            torch.mm(weights, into, out=grad_out[rows])
            grad_into.addmm_(weights.T, out[rows])
        return grad_out, grad_into, None


def _row_chunks(out: Tensor, into: Tensor, chunk_bytes: int) -> Iterator[slice]:
    rows = max(1, chunk_bytes // max(1, into.shape[0] * into.element_size()))
    return (slice(first, min(first + rows, out.shape[0])) for first in range(0, out.shape[0], rows))


def _finite_or_zero(shift: Tensor) -> Tensor:
    """A row of logits that are all -inf has the sum 0, not NaN."""
    return shift.masked_fill(shift == -torch.inf, 0.0)
