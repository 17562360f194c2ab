"""How the kernels of the softmax of parts of a table are called. Nothing here synchronises host and device, so a CUDA graph can
hold it all."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.sizes import block_size
from vlhmm.ops.table_softmax import kernel

MAX_COLUMNS = 4096
"""Columns that a program takes at once: 16 numbers a thread, in 8 warps."""


def forward(
    logits: Float[Tensor, "Z Y"], rows: Int[Tensor, " n"], columns: Int[Tensor, " m"] | None
) -> Float[Tensor, "n m"]:
    num_chosen = logits.shape[1] if columns is None else columns.shape[0]
    log_prob = logits.new_empty(rows.shape[0], num_chosen)
    kernel.normalize[(rows.shape[0],)](
        *(logits, rows, columns, log_prob, logits.shape[1], num_chosen),
        BLOCK=block_size(num_chosen, MAX_COLUMNS),
        num_warps=8,
    )
    return log_prob


def backward(
    grad: Float[Tensor, "n m"],
    log_prob: Float[Tensor, "n m"],
    rows: Int[Tensor, " n"],
    columns: Int[Tensor, " m"] | None,
    shape: torch.Size,
) -> Float[Tensor, "Z Y"]:
    num_rows, num_columns = shape
    num_chosen = grad.shape[1]
    row_of = _place_of(rows, num_rows)
    column_of = None if columns is None else _place_of(columns, num_columns)
    d_logits = grad.new_empty(shape)
    kernel.write_back[(num_rows,)](
        *(grad, log_prob, row_of, column_of, d_logits, num_columns, num_chosen),
        BLOCK=block_size(num_columns, MAX_COLUMNS),
        num_warps=8,
    )
    kernel.add_again[(rows.shape[0],)](
        *(grad, log_prob, rows, row_of, columns, d_logits, num_columns, num_chosen),
        BLOCK=block_size(num_chosen, MAX_COLUMNS),
        num_warps=8,
    )
    return d_logits


def _place_of(chosen: Int[Tensor, " n"], number: int) -> Int[Tensor, " N"]:
    """For each of `number` where it stands in `chosen`, one of its places if there are several; -1: nowhere."""
    place = chosen.new_full((number,), -1)
    return place.scatter_(0, chosen.long(), torch.arange(chosen.shape[0], dtype=chosen.dtype, device=chosen.device))
