"""How the kernels of the choice of a block are called. Nothing here synchronises host and device, so a CUDA graph can hold it all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.blocked_recursion.choice import kernel
from vlhmm.ops.groups.order import GroupOrder
from vlhmm.ops.row_logsumexp import launch as row_logsumexp
from vlhmm.ops.row_logsumexp.launch import Packed
from vlhmm.ops.sizes import cdiv, multiprocessors, power_of_2
from vlhmm.precision import Precision

TILE_NUMBERS = 1 << 14
"""Features that a program keeps: 64 numbers a thread, in 8 warps, so that a multiprocessor has two programs."""
MOVED_NUMBERS = 1 << 11
"""Numbers that a program moves: 16 a thread, in 4 warps."""
STRETCH = 8
"""Positions of a program."""


@dataclass(frozen=True)
class Choice:
    """What the forward pass computes from weights and biases, and saves for the backward pass."""

    weight: Float[Tensor, "padded_rows width"]
    """As operand."""
    barrier: Float[Tensor, " padded_rows"]
    bias: Float[Tensor, " padded_rows"]
    log_sum: Float[Tensor, " Z"]
    """log sum over blocks m of exp(out_z . weight_m + bias_m)."""
    mean: Float[Tensor, "Z H"] | None
    """sum over m of p(m | z) weight_m; None where no gradient will be asked for."""
    own: Int[Tensor, "2 N"]
    """Positions by their groups, as in `GroupOrder`; `other` and `position` likewise."""
    other: Int[Tensor, "2 N"]
    position: Int[Tensor, "2 N"]

    @property
    def order(self) -> GroupOrder:
        return GroupOrder(self.own, self.other, self.position)


def packed(features: Float[Tensor, "N H"], precision: Precision) -> Packed:
    """Packed to the same width as the operands of the tile kernels."""
    return row_logsumexp.pack(features, precision)


def source_operand(out: Float[Tensor, "padded_rows width"], num_rows: int, num_features: int) -> Packed:
    """Packed features again; their barrier is a placeholder that is never read."""
    return Packed(out, out.new_empty(out.shape[0]), num_rows, num_features)


def forward(
    out: Packed,
    block_weight: Float[Tensor, "M H"],
    block_bias: Float[Tensor, " M"],
    order: GroupOrder,
    precision: Precision,
    *,
    with_mean: bool,
) -> Choice:
    weight = packed(block_weight.contiguous(), precision)
    bias = weight.barrier.new_zeros(weight.barrier.shape)
    bias[: weight.num_rows] = block_bias
    tiles = row_logsumexp.tiling(out.width, precision)
    # Many rows and few columns: splitting the columns would only add a reduction over the splits.
    tiling = {"precision": precision, "tiles": tiles, "num_splits": 1}
    log_sum, mean = row_logsumexp.forward(out, weight, with_mean=with_mean, bias=bias, **tiling)  # type: ignore[arg-type]
    return Choice(weight.features, weight.barrier, bias, log_sum, mean, order.own, order.other, order.position)


def write_log_weights(out: Float[Tensor, "Z width"], choice: Choice, log_weight: Float[Tensor, "B T K"]) -> None:
    """The log-probability of each position's target block for each state it is left from."""
    num_states, num_positions = log_weight.shape[2], choice.position.shape[1]
    programs, tiling = _tiled(num_positions, num_states, out.shape[1])
    kernel.log_weights[programs](
        *(out, choice.weight, choice.bias, choice.log_sum, choice.position[0], choice.own[0], choice.other[0]),
        *(log_weight, num_positions, num_states),
        **tiling,
    )


def _tiled(num_positions: int, num_states: int, width: int) -> tuple[tuple[int, int], dict[str, int]]:
    padded = power_of_2(width)
    rows = max(1, min(power_of_2(num_states), TILE_NUMBERS // padded))
    tiling = {"WIDTH": width, "WIDTH_PAD": padded, "ROWS": rows, "STRETCH": STRETCH, "num_warps": 8}
    return (cdiv(num_positions, STRETCH), cdiv(num_states, rows)), tiling


def begin_gradient(
    mean: Float[Tensor, "Z H"], d_log_sum: Float[Tensor, " Z"], stride: int
) -> Float[Tensor, "Z stride"]:
    """The gradient of `out` through log_sum, in rows of this length."""
    num_rows, width = mean.shape
    gradient = mean.new_empty(num_rows, stride)
    padded = power_of_2(stride)
    rows = max(1, MOVED_NUMBERS // padded)
    kernel.begin[(cdiv(num_rows, rows),)](
        *(mean, d_log_sum, gradient, num_rows, width, stride), WIDTH_PAD=padded, ROWS=rows, num_warps=4
    )
    return gradient


def backward(
    out: Float[Tensor, "padded_rows width"],
    num_rows: int,
    num_features: int,
    num_blocks: int,
    choice: Choice,
    d_log_sum: Float[Tensor, " Z"],
    sent: Float[Tensor, "B T K"],
    mean: Float[Tensor, "B T K"],
    precision: Precision,
) -> tuple[Float[Tensor, "M H"], Float[Tensor, " M"]]:
    """The gradients of weights and biases."""
    operand = source_operand(out, num_rows, num_features)
    weight = Packed(choice.weight, choice.barrier, num_blocks, num_features)
    tiles = row_logsumexp.tiling(num_features, precision)
    d_weight, d_bias = row_logsumexp.grad_into_and_bias(
        *(operand, weight, choice.bias, choice.log_sum, d_log_sum),
        precision=precision,
        tiles=tiles,
        num_splits=_num_splits(num_rows, num_blocks, tiles, out.device),
    )
    assert d_bias is not None
    num_states, num_positions = sent.shape[2], choice.position.shape[1]
    programs, by = _tiled(num_positions, num_states, out.shape[1])
    kernel.add_up[programs](
        *(out, sent, mean, choice.position[0], choice.own[0], choice.other[0], d_weight, d_bias),
        *(num_positions, num_states, num_features),
        **by,
    )
    return d_weight, d_bias


def _num_splits(num_rows: int, num_blocks: int, tiles: row_logsumexp.Tiling, device: torch.device) -> int:
    """There are few blocks, so the states are split into one part for each multiprocessor; the partial sums of a part are small."""
    processors = multiprocessors(device)
    of_parts = cdiv(num_rows, tiles.columns) // 4
    return max(1, min(of_parts, processors // cdiv(num_blocks, tiles.rows)))
