"""The residual networks with products by the library, the rest by kernels, the gradient by hand.

Networks that read the same embedding share its first product and the gradient's last. Operands and results of the products
are of one type, bf16 or float32; sums, the normalisation, parameters, the output and their gradients are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops.residual_network import Parameters, kernel
from vlhmm.ops.sizes import pieces, power_of_2

# What one program holds of each tensor: 8 numbers a thread, in 4 warps.
TILE_NUMBERS = 1 << 10
# Programs on the way back, each of which leaves one row of sums: as many as the registers of a Hopper's 132 multiprocessors
# hold at a time, six each.
SUM_PROGRAMS = 792

PRODUCT_WIDENS = hasattr(torch.ops.aten.mm, "dtype")
"""Whether this torch can give a bfloat16 product in float32."""


def residual_networks_by_kernels(
    embedding: Float[Tensor, "n H"],
    networks: Sequence[Parameters],
    num_rows: Sequence[int],
    *,
    eps: float,
    operand_type: torch.dtype,
) -> list[Float[Tensor, "_ H"]]:
    """`residual_networks` by the kernels, in float32."""
    parameters = [parameter for network in networks for parameter in network]
    return list(_ResidualNetworks.apply(eps, operand_type, tuple(num_rows), embedding, *parameters))


class _ResidualNetworks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        eps: float,
        operand_type: torch.dtype,
        num_rows: tuple[int, ...],
        embedding: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        count, width = len(num_rows), embedding.shape[1]
        first, second = (embedding.new_empty(count, width, width, dtype=operand_type) for _ in range(2))
        first_bias, second_bias = (embedding.new_empty(count, width, dtype=operand_type) for _ in range(2))
        # In one launch.
        packed = [place for places in zip(first, first_bias, second, second_bias, strict=True) for place in places]
        torch._foreach_copy_(packed, [value for index, value in enumerate(parameters) if index % 6 < 4])
        norms = list(zip(parameters[4::6], parameters[5::6], strict=True))

        operand = embedding.to(operand_type)
        hidden = torch._addmm_activation(first_bias.flatten(), operand, first.flatten(0, 1).T)
        raws, outputs = list[Tensor](), list[Tensor]()
        padded, rows = _tile(width)
        for index, (own_rows, norm) in enumerate(zip(num_rows, norms, strict=True)):
            own_hidden = _part(hidden, index, width)
            raw = torch.addmm(second_bias[index], own_hidden[:own_rows], second[index].T)
            output = embedding.new_empty(own_rows, width)
            kernel.forward[(pieces(own_rows, rows),)](
                *(raw, own_hidden, *norm, output, own_rows, width, hidden.shape[1], eps), WIDTH_PAD=padded, ROWS=rows
            )
            raws.append(raw)
            outputs.append(output)
        ctx.save_for_backward(operand, hidden, first, second, *raws, *(weight for weight, _ in norms))
        ctx.eps, ctx.num_rows = eps, num_rows
        return tuple(outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        operand, hidden, first, second, *saved = ctx.saved_tensors
        count, (all_rows, width) = len(ctx.num_rows), operand.shape
        padded, rows = _tile(width)
        stretch = pieces(all_rows, rows * SUM_PROGRAMS)
        programs = pieces(all_rows, rows * stretch)
        tile = {"WIDTH_PAD": padded, "ROWS": rows}
        # Of the LayerNorm's weight and bias, of b_2 and of b_1.
        sums = grads[0].new_empty(programs, 4, count, width)
        d_first = torch.empty_like(hidden)
        d_second = list[Tensor]()
        for index, (own_rows, grad) in enumerate(zip(ctx.num_rows, grads, strict=True)):
            raw, norm_weight = saved[index], saved[count + index]
            own_hidden, own_sums = _part(hidden, index, width), sums[:, :, index]
            strides = (hidden.shape[1], sums.stride(0), sums.stride(1), stretch)
            d_raw, d_hidden = torch.empty_like(raw), torch.empty_like(raw)
            kernel.backward[(programs,)](
                *(raw, own_hidden, norm_weight, grad.contiguous(), d_raw, d_hidden, own_sums),
                *(own_rows, width, *strides, ctx.eps),
                **tile,
            )
            # D reaches the output directly and through the second product.
            d_hidden.addmm_(d_raw, second[index])
            kernel.backward_of_relu[(programs,)](
                *(own_hidden, d_hidden, _part(d_first, index, width), own_sums, own_rows, all_rows, width, *strides),
                **tile,
            )
            d_second.append(_product(d_raw.T, own_hidden[:own_rows]))
        total = sums.new_empty(4, count, width)
        kernel.add_up[(pieces(total.numel(), 16),)](
            *(sums, total, programs, total.numel()), ROWS=256, COLUMNS=16, num_warps=8
        )
        d_norm_weight, d_norm_bias, d_second_bias, d_first_bias = total
        d_first_weight = _product(d_first.T, operand).view_as(first)
        by_kind = (d_first_weight, d_first_bias, d_second, d_second_bias, d_norm_weight, d_norm_bias)
        d_embedding = _product(d_first, first.flatten(0, 1)) if ctx.needs_input_grad[3] else None
        return (None, None, None, d_embedding, *(kind[index] for index in range(count) for kind in by_kind))


def _part(side_by_side: Float[Tensor, "n NH"], index: int, width: int) -> Float[Tensor, "n H"]:
    """The columns of one network."""
    return side_by_side[:, index * width : (index + 1) * width]


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in float32."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda and PRODUCT_WIDENS:
        return torch.mm(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _tile(width: int) -> tuple[int, int]:
    """The width rounded up to a power of two, and the rows that a program takes at once."""
    padded = max(16, power_of_2(width))
    return padded, max(1, TILE_NUMBERS // padded)
