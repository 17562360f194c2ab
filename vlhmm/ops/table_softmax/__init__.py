"""log_softmax of some columns of some rows of a large table of free logits."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops import dispatch
from vlhmm.ops.table_softmax import reference

__all__ = ["table_log_softmax", "table_log_softmax_by_kernels"]


def table_log_softmax(
    logits: Float[Tensor, "Z Y"], rows: Int[Tensor, " n"], columns: Int[Tensor, " m"] | None
) -> Float[Tensor, "n m"]:
    """log_softmax of logits[rows, columns] over the columns; None: over all. Rows may repeat, columns may not."""
    if _kernels_take(logits, rows, columns):
        return table_log_softmax_by_kernels(logits, rows, columns)
    return reference.table_log_softmax(logits, rows, columns)


def table_log_softmax_by_kernels(
    logits: Float[Tensor, "Z Y"], rows: Int[Tensor, " n"], columns: Int[Tensor, " m"] | None
) -> Float[Tensor, "n m"]:
    """`table_log_softmax` in float32: the chosen rows are read once, and the gradient of the whole table is written once."""
    result: Tensor = _TableLogSoftmax.apply(logits, rows, columns)
    return result


def _kernels_take(logits: Tensor, rows: Tensor, columns: Tensor | None) -> bool:
    return dispatch.TABLE_SOFTMAX.serve(logits, rows, columns)


class _TableLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, rows: Tensor, columns: Tensor | None) -> Tensor:
        # Imported here, so that the CPU path does not need Triton.
        from vlhmm.ops.table_softmax import launch

        rows, columns = rows.int(), None if columns is None else columns.int()
        log_prob = launch.forward(logits.contiguous(), rows, columns)
        ctx.save_for_backward(rows, columns, log_prob)
        ctx.shape = logits.shape
        return log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        from vlhmm.ops.table_softmax import launch

        rows, columns, log_prob = ctx.saved_tensors
        return launch.backward(grad.contiguous(), log_prob, rows, columns, ctx.shape), None, None
