"""The residual networks with products by cuBLAS, the rest by kernels, the gradient by hand.

First networks, which read the same embedding, share its first product and the gradient's last; networks of one level share
each launch of a kernel. Operands and results of the products are of one type, bf16 or float32; sums, the normalisation,
parameters, the output and their gradients are float32.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops.residual_network import Parameters, kernel
from vlhmm.ops.sizes import cdiv, power_of_2

# Register budget of one program for each tensor: 8 numbers a thread, in 4 warps.
TILE_NUMBERS = 1 << 10
# Programs of the backward pass, each of which leaves one row of sums: as many as the registers of a Hopper's 132 multiprocessors
# hold at a time, six each, of all networks together.
SUM_PROGRAMS = 792

# Pipeline stages: blocks of rows that are prefetched or processed.
STAGES = 3

PRODUCT_WIDENS = hasattr(torch.ops.aten.mm, "dtype") and hasattr(torch.ops.aten.bmm, "dtype")
"""Whether this torch can give a bfloat16 product in float32."""


def residual_networks_by_kernels(
    embedding: Float[Tensor, "n H"],
    chains: Sequence[Sequence[Parameters]],
    num_rows: Sequence[int],
    *,
    eps: float,
    operand_type: torch.dtype,
) -> list[Float[Tensor, "_ H"]]:
    """`residual_networks` by the kernels, in float32."""
    depths = tuple(len(chain) for chain in chains)
    networks = [chains[index][level] for level, members in enumerate(_levels(depths)) for index in members]
    parameters = [parameter for network in networks for parameter in network]
    return list(_ResidualNetworks.apply(eps, operand_type, depths, tuple(num_rows), embedding, *parameters))


def _levels(depths: tuple[int, ...]) -> list[list[int]]:
    """The chains that have a first network, those that have a second, ..."""
    return [[index for index, depth in enumerate(depths) if depth > level] for level in range(max(depths))]


class _ResidualNetworks(torch.autograd.Function):
    """Networks are in the order of their levels: all first ones, all second ones, ..."""

    @staticmethod
    def forward(
        ctx: Any,
        eps: float,
        operand_type: torch.dtype,
        depths: tuple[int, ...],
        num_rows: tuple[int, ...],
        embedding: Tensor,
        *parameters: Tensor,
    ) -> tuple[Tensor, ...]:
        count, width = len(parameters) // 6, embedding.shape[1]
        # Two launches, wherever the parameters are.
        kinds = [parameters[kind::6] for kind in (0, 2, 1, 3)]
        packed = torch.cat([value.flatten() for kind in kinds for value in kind]).to(operand_type)
        parts = packed.split([count * kind[0].numel() for kind in kinds])
        first, second, first_bias, second_bias = (
            part.view(count, *kind[0].shape) for part, kind in zip(parts, kinds, strict=True)
        )
        norm_weights, norm_biases = parameters[4::6], parameters[5::6]

        padded, tile_rows = _tile(width)
        operands, hidden, raw = list[Tensor](), list[Tensor](), list[Tensor]()
        values = [embedding.to(operand_type)] * len(depths)
        for level, members in enumerate(_levels(depths)):
            own = slice(len(raw), len(raw) + len(members))
            rows = tuple(num_rows[index] for index in members)
            operands += (values[index] for index in members)
            if level == 0:
                biases, weights = first_bias[own].flatten(), first[own].flatten(0, 1)
                side_by_side = torch._addmm_activation(biases, values[0], weights.T).split(width, dim=1)
                hidden += (part[:own_rows] for part, own_rows in zip(side_by_side, rows, strict=True))
            else:
                each = zip(first_bias[own], operands[own], first[own], strict=True)
                hidden += (torch._addmm_activation(bias, operand, weight.T) for bias, operand, weight in each)
            each = zip(second_bias[own], hidden[own], second[own], strict=True)
            raw += (torch.addmm(bias, before, weight.T) for bias, before, weight in each)
            for index in members:
                # The output of a network that another one reads has the operand type.
                kind = torch.float32 if level + 1 == depths[index] else operand_type
                values[index] = embedding.new_empty(num_rows[index], width, dtype=kind)
            kernel.forward[(cdiv(max(rows), tile_rows), len(members))](
                *(tuple(raw[own]), tuple(hidden[own]), norm_weights[own], norm_biases[own]),
                *(tuple(values[index] for index in members), rows, width, hidden[-1].stride(0), eps),
                WIDTH_PAD=padded,
                ROWS=tile_rows,
            )
        ctx.save_for_backward(first, second, *norm_weights, *operands, *hidden, *raw)
        ctx.eps, ctx.depths, ctx.num_rows = eps, depths, num_rows
        return tuple(values)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *output_grads: Tensor) -> tuple[Tensor | None, ...]:
        first, second, *saved = ctx.saved_tensors
        count, width, _ = first.shape
        norm_weights, operands, hidden, raw = (tuple(saved[at : at + count]) for at in range(0, 4 * count, count))
        all_rows, levels = operands[0].shape[0], _levels(ctx.depths)
        padded, tile_rows = _tile(width)
        stretch = cdiv(all_rows * len(levels[0]), tile_rows * SUM_PROGRAMS)
        programs = cdiv(all_rows, tile_rows * stretch)
        tile = {"WIDTH_PAD": padded, "ROWS": tile_rows, "STAGES": STAGES}
        # Of the LayerNorm's weight and bias, of b_2 and of b_1.
        sums = output_grads[0].new_empty(programs, 4, count, width)
        d_first_weight, d_second_weight = list[Tensor](), list[Tensor]()
        grads = [grad.contiguous() for grad in output_grads]
        end = count
        for members in reversed(levels):
            own = slice(end - len(members), end)
            end = own.start
            rows = tuple(ctx.num_rows[index] for index in members)
            d_raw, d_hidden, d_first = (first.new_empty(len(members), all_rows, width) for _ in range(3))
            d_firsts = d_first.unbind()
            if end == 0:
                # Side by side, as the hidden features.
                d_first = d_first.view(all_rows, -1)
                d_firsts = d_first.split(width, dim=1)
            own_sums, strides = sums[:, :, end], (hidden[end].stride(0), sums.stride(0), sums.stride(1), stretch)
            kernel.backward[(programs, len(members))](
                *(raw[own], hidden[own], norm_weights[own], tuple(grads[index] for index in members)),
                *(d_raw.unbind(), d_hidden.unbind(), own_sums, rows, width, *strides, ctx.eps),
                **tile,
            )
            # The gradient of D is a sum: through the residual connection and through the second product.
            d_hidden.baddbmm_(d_raw, second[own])
            kernel.backward_of_relu[(programs, len(members))](
                *(hidden[own], d_hidden.unbind(), d_firsts, own_sums, rows, all_rows, width, *strides), **tile
            )
            each = zip(rows, d_raw, hidden[own], strict=True)
            d_second_weight = [_product(d[:some].T, before) for some, d, before in each] + d_second_weight
            if end == 0:
                d_first_weight = [*_product(d_first.T, operands[0]).view_as(first[own]), *d_first_weight]
            else:
                each = zip(rows, d_first, operands[own], strict=True)
                d_first_weight = [_product(d[:some].T, operand) for some, d, operand in each] + d_first_weight
                for index, d_operand in zip(members, _product(d_first, first[own]), strict=True):
                    grads[index] = d_operand
        d_embedding = _product(d_first, first[own].flatten(0, 1)) if ctx.needs_input_grad[4] else None
        total = sums.new_empty(4, count, width)
        kernel.add_up[(cdiv(total.numel(), 16),)](
            *(sums, total, programs, total.numel()), ROWS=256, COLUMNS=16, num_warps=8
        )
        d_norm_weight, d_norm_bias, d_second_bias, d_first_bias = total
        by_kind = (d_first_weight, d_first_bias, d_second_weight, d_second_bias, d_norm_weight, d_norm_bias)
        return (*(None,) * 4, d_embedding, *(kind[index] for index in range(count) for kind in by_kind))


def _product(left: Tensor, right: Tensor) -> Tensor:
    """left @ right in float32, of matrices or of batches of them."""
    if left.dtype == torch.float32:
        return left @ right
    if left.is_cuda and PRODUCT_WIDENS:
        product = torch.mm if left.dim() == 2 else torch.bmm
        return product(left, right, out_dtype=torch.float32)
    return left.float() @ right.float()


def _tile(width: int) -> tuple[int, int]:
    """The width rounded up to a power of two, and the rows that a program takes at once."""
    padded = max(16, power_of_2(width))
    return padded, max(1, TILE_NUMBERS // padded)
