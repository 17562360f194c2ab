"""The residual network with products by the library, the rest by kernels, the gradient by hand.

Operands and results of the products are of one type, bf16 or float32; sums, the normalisation, parameters and the output are
float32.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops.residual_network import kernel

# What one program holds of each tensor: 16 numbers a thread, in 4 warps.
TILE_NUMBERS = 1 << 11
# Programs on the way back, each of which leaves one row of sums: two for each of a Hopper's 132 multiprocessors.
SUM_PROGRAMS = 264


def residual_network_by_kernels(
    embedding: Float[Tensor, "n H"],
    first_weight: Float[Tensor, "H H"],
    first_bias: Float[Tensor, " H"],
    second_weight: Float[Tensor, "H H"],
    second_bias: Float[Tensor, " H"],
    norm_weight: Float[Tensor, " H"],
    norm_bias: Float[Tensor, " H"],
    *,
    eps: float,
    operand_type: torch.dtype,
) -> Float[Tensor, "n H"]:
    """`residual_network` by the kernels, in float32."""
    result: Tensor = _ResidualNetwork.apply(
        embedding, first_weight, first_bias, second_weight, second_bias, norm_weight, norm_bias, eps, operand_type
    )
    return result


class _ResidualNetwork(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        embedding: Tensor,
        first_weight: Tensor,
        first_bias: Tensor,
        second_weight: Tensor,
        second_bias: Tensor,
        norm_weight: Tensor,
        norm_bias: Tensor,
        eps: float,
        operand_type: torch.dtype,
    ) -> Tensor:
        operand, first, second = (value.to(operand_type) for value in (embedding, first_weight, second_weight))
        hidden = torch.addmm(first_bias.to(operand_type), operand, first.T).relu_()
        raw = torch.addmm(second_bias.to(operand_type), hidden, second.T)
        num_rows, width = embedding.shape
        output = torch.empty_like(embedding, memory_format=torch.contiguous_format)
        padded, rows = _tile(width)
        kernel.forward[(_pieces(num_rows, rows),)](
            *(raw, hidden, norm_weight, norm_bias, output, num_rows, width, eps), WIDTH_PAD=padded, ROWS=rows
        )
        ctx.save_for_backward(operand, hidden, raw, first, second, norm_weight)
        ctx.eps = eps
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        operand, hidden, raw, first, second, norm_weight = ctx.saved_tensors
        num_rows, width = grad.shape
        padded, rows = _tile(width)
        stretch = max(1, _pieces(num_rows, rows * SUM_PROGRAMS))
        programs = _pieces(num_rows, rows * stretch)
        d_raw, d_summed = torch.empty_like(raw), torch.empty_like(raw)
        sums = grad.new_empty(3, programs, width)
        kernel.backward[(programs,)](
            *(raw, hidden, norm_weight, grad.contiguous(), d_raw, d_summed, *sums, num_rows, width, stretch, ctx.eps),
            WIDTH_PAD=padded,
            ROWS=rows,
        )
        d_norm_weight, d_norm_bias, d_second_bias = sums.sum(dim=1)
        # D reaches the output directly and through the second product.
        d_hidden = torch.addmm(d_summed, d_raw, second)
        d_first = torch.ops.aten.threshold_backward(d_hidden, hidden, 0)
        d_embedding = (d_first @ first).float() if ctx.needs_input_grad[0] else None
        return (
            *(d_embedding, (d_first.T @ operand).float(), d_first.sum(dim=0, dtype=torch.float32)),
            *((d_raw.T @ hidden).float(), d_second_bias, d_norm_weight, d_norm_bias, None, None),
        )


def _tile(width: int) -> tuple[int, int]:
    """The width rounded up to a power of two, and the rows that a program takes at once."""
    padded = max(16, 1 << (width - 1).bit_length())
    return padded, max(1, TILE_NUMBERS // padded)


def _pieces(whole: int, piece: int) -> int:
    return -(-whole // piece)
