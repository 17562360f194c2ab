"""How the kernels of the blocked recursion are launched, and which buffers are allocated; `tilings` has the tile sizes. Nothing here
synchronises host and device, so a CUDA graph can hold it all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.ops.blocked_recursion import kernel
from vlhmm.ops.blocked_recursion.backward import kernel as backward_kernel
from vlhmm.ops.blocked_recursion.choice import launch as choices
from vlhmm.ops.blocked_recursion.choice.launch import Choice
from vlhmm.ops.blocked_recursion.factors import BlockedFactors
from vlhmm.ops.blocked_recursion.tiles import kernel as tiles_kernel
from vlhmm.ops.blocked_recursion.tilings import Tiling
from vlhmm.ops.groups.order import group_order
from vlhmm.ops.rounding import logit_product
from vlhmm.ops.sizes import cdiv, power_of_2
from vlhmm.precision import Precision

MIN_STRETCH = 4
"""Positions of a program of sums: with fewer it adds to memory more often than it computes."""


@dataclass(frozen=True)
class Operands:
    """The features as the matrix products read them; of a table nothing."""

    out: Float[Tensor, "Z width"]
    into: Float[Tensor, "Y width"]
    barrier: Float[Tensor, " Y"]
    """-inf for states that cannot be entered, else 0."""


@dataclass(frozen=True)
class Run:
    """What the forward pass saves for the backward pass; past the length vectors are zero, or unwritten where nothing reads them."""

    token_log_probs: Float[Tensor, "B T"]
    log_last: Float[Tensor, "B K"]
    underflow: Bool[Tensor, " B"]
    tiles: Float[Tensor, "B T K_pad K_pad"]
    weight: Float[Tensor, "B T K"]
    emission: Float[Tensor, "B T K"]
    alpha: Float[Tensor, "B T K"]
    totals: Float[Tensor, "B T"]


@dataclass(frozen=True)
class Gradient:
    log_previous: Float[Tensor, "B K"]
    log_inits: Float[Tensor, "I K"] | None
    """None if not requested."""
    out: Float[Tensor, "Z H"]
    """Of a table: its gradient, and the next two are none."""
    into: Float[Tensor, "Y H"] | None
    row_term: Float[Tensor, ...] | None
    """Of log_block or of log_normalizer."""
    block_weight: Float[Tensor, "M H"] | None
    block_bias: Float[Tensor, " M"] | None
    log_emission: Float[Tensor, "B T K"]


def filled(num_states: int) -> int:
    """Rows and columns of a tile that are written. With state dropout 0.25 these are three quarters of a power of two, so a tile
    moves 9/16 of the bytes."""
    return cdiv(num_states, 16) * 16


def product_precision(precision: Precision) -> str:
    return "ieee" if precision == "highest" else "tf32"


def operands(factors: BlockedFactors, precision: Precision) -> Operands:
    """Packed once: each row is read by every position of its group."""
    transition = factors.transition
    if transition.into is None:
        return Operands(*(factors.log_emission.new_empty(shape) for shape in [(0, 0), (0, 0), (0,)]))
    if transition.block_weight is not None:
        left, entered = (choices.packed(side.contiguous(), precision) for side in (transition.out, transition.into))
        return Operands(left.features, entered.features, entered.barrier)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    out, _ = _packed(transition.out, dtype)
    into, barrier = _packed(transition.into, dtype)
    return Operands(out, into, barrier)


def _packed(features: Float[Tensor, "Z H"], dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    num_rows, width = features.shape
    step = min(64, max(16, power_of_2(width)))
    packed_width = cdiv(width, step) * step
    padded = power_of_2(packed_width)
    packed = features.new_empty(num_rows, packed_width, dtype=dtype)
    barrier = features.new_empty(num_rows, dtype=torch.float32)
    rows = max(1, 4096 // padded)
    tiles_kernel.pack[(cdiv(num_rows, rows),)](
        *(features.contiguous(), packed, barrier, num_rows, width, packed_width, padded, rows)
    )
    return packed, barrier


def _states(factors: BlockedFactors) -> Int[Tensor, "G K"] | None:
    return None if factors.states_of_group is None else factors.states_of_group.contiguous()


def num_blocks(factors: BlockedFactors) -> int:
    transition = factors.transition
    return transition.row_term.shape[1] if transition.per_block and transition.row_term is not None else 1


def choice_of(factors: BlockedFactors, packed: Operands, precision: Precision, with_mean: bool) -> Choice | None:
    """p(block | state) of factors that leave it to features; None: they hold it."""
    transition = factors.transition
    if transition.block_weight is None or transition.block_bias is None:
        return None
    if precision == "tf32":
        raise ValueError(
            "p(block | state) of features is read in bf16 or float32: matrix units cut off what tf32 does not hold, so that its normaliser "
            "would be that of smaller logits; use renormalized()"
        )
    out = choices.source_operand(packed.out, *transition.out.shape)
    weight, bias = transition.block_weight, transition.block_bias
    # A sort of B T group indices; no large tensor is moved.
    order = group_order(factors.source_group.flatten(), factors.target_group.flatten())
    return choices.forward(out, weight, bias, order, precision, with_mean=with_mean)


def forward(
    factors: BlockedFactors, packed: Operands, precision: Precision, tiling: Tiling, choice: Choice | None = None
) -> Run:
    batch, length, num_states = factors.log_emission.shape
    log_emission = factors.log_emission.contiguous()
    # Tiles of a table are read as they are: no product has rounded them.
    rounded = precision == "bf16" and not factors.transition.is_table
    tiles_type = torch.bfloat16 if rounded else torch.float32
    tiles = log_emission.new_empty(batch, length, tiling.states, tiling.states, dtype=tiles_type)
    log_weight, weight, emission, alpha = (torch.empty_like(log_emission) for _ in range(4))
    check_messages = precision == "highest" or factors.transition.is_table
    parts = cdiv(num_states, tiling.forward_rows if factors.transition.is_table else tiling.tile_rows)
    least_of_tile = log_emission.new_empty(batch * length, parts)
    groups = (factors.source_group.contiguous(), factors.target_group.contiguous())
    row_term = factors.transition.row_term
    if choice is not None:
        choices.write_log_weights(packed.out, choice, log_weight)
    if factors.transition.is_table:
        log_prob = factors.transition.out.contiguous()
        tiles_kernel.gather_tiles[(batch * length, parts)](
            *(log_prob, *groups, tiles, log_weight, least_of_tile, num_states, log_prob.shape[1]),
            K_PAD=tiling.states,
            FILLED=filled(num_states),
            ROWS=tiling.forward_rows,
            num_warps=tiling.tile_warps,
        )
    else:
        width = packed.out.shape[1]
        tiles_kernel.make_tiles[(batch * length, parts)](
            *(packed.out, packed.into, packed.barrier, None if row_term is None else row_term.contiguous(), *groups),
            _states(factors),
            *(tiles, log_weight, least_of_tile, num_states, num_blocks(factors)),
            WIDTH=width,
            BLOCK_FACTORED=factors.transition.per_block,
            FIND_ZEROS=check_messages,
            PRODUCT=logit_product(precision),
            K_PAD=tiling.states,
            FILLED=filled(num_states),
            ROWS=tiling.tile_rows,
            # For widths that no larger piece divides.
            BLOCK_H=min(tiling.tile_width, width & -width),
            num_warps=tiling.tile_warps,
            num_stages=tiling.tile_stages,
        )
    token_log_probs, log_shift, totals = (log_emission.new_empty(batch, length) for _ in range(3))
    init_of = factors.init_of.contiguous()
    least = log_emission.new_empty(batch, length, 3)
    kernel.exponentiate[(batch * length,)](
        *(log_weight, log_emission, factors.log_inits.contiguous(), init_of, weight, emission, log_shift),
        *(least_of_tile, least, parts, num_states, tiling.states, power_of_2(parts), check_messages),
        num_warps=1,
    )
    log_last = log_emission.new_empty(batch, num_states)
    underflow = log_emission.new_empty(batch, dtype=torch.bool)
    kernel.forward[(batch,)](
        *(tiles, weight, emission, log_shift, init_of),
        *(factors.log_previous.contiguous(), factors.lengths.contiguous(), least),
        *(token_log_probs, log_last, alpha, totals, underflow, length, num_states),
        K_PAD=tiling.states,
        FILLED=filled(num_states),
        ROWS=tiling.forward_rows,
        STAGES=tiling.forward_stages,
        PARTS=tiling.forward_parts,
        CHECK_MESSAGES=check_messages,
        num_warps=tiling.forward_warps,
        num_stages=1,
    )
    return Run(token_log_probs, log_last, underflow, tiles, weight, emission, alpha, totals)


def backward(
    factors: BlockedFactors,
    packed: Operands,
    run: Run,
    token_cotangent: Float[Tensor, "B T"] | None,
    last_cotangent: Float[Tensor, "B K"] | None,
    precision: Precision,
    tiling: Tiling,
    choice: Choice | None = None,
) -> Gradient:
    """Gradients of outputs without a cotangent are skipped; training has one for the log-probabilities alone."""
    batch, length, num_states = factors.log_emission.shape
    transition = factors.transition
    posterior, sent, ratio, mean = (torch.empty_like(run.alpha) for _ in range(4))
    d_log_previous = torch.empty_like(run.log_last)
    d_log_inits = None
    if factors.log_inits.requires_grad:
        d_log_inits = torch.zeros_like(factors.log_inits, memory_format=torch.contiguous_format)
    # With block weights this is the gradient of the normaliser over blocks.
    of_rows = transition.row_term if choice is None else choice.log_sum
    d_row_term = None if of_rows is None else torch.zeros_like(of_rows.contiguous())
    if token_cotangent is None:
        token_cotangent = torch.zeros_like(run.token_log_probs)
    vectors = (run.alpha, run.weight, run.emission, run.totals, factors.init_of.contiguous())
    lengths = factors.lengths.contiguous()
    cotangents = (token_cotangent.contiguous(), None if last_cotangent is None else last_cotangent.contiguous())
    backward_kernel.backward[(batch,)](
        *(run.tiles, *vectors, lengths, *cotangents, mean, length, num_states),
        K_PAD=tiling.states,
        FILLED=filled(num_states),
        COLUMNS=tiling.backward_columns,
        STAGES=tiling.backward_stages,
        PARTS=tiling.backward_parts,
        num_warps=tiling.backward_warps,
        num_stages=1,
    )
    backward_kernel.conclude[(batch * length,)](
        *(*vectors, factors.source_group.contiguous(), factors.target_group.contiguous(), _states(factors)),
        *(factors.log_previous.contiguous(), lengths, *cotangents, mean, sent, posterior, ratio),
        *(d_log_previous, d_log_inits, d_row_term, length, num_states, num_blocks(factors)),
        BLOCK_FACTORED=transition.per_block and choice is None,
        K_PAD=tiling.states,
        num_warps=1 if tiling.states <= 128 else 4,
    )
    if transition.into is None:
        from_table = _table_gradient(factors, transition.out, run.tiles, sent, ratio, tiling)
        return Gradient(d_log_previous, d_log_inits, from_table, None, None, None, None, posterior)
    d_weight = d_bias = begun = None
    if choice is not None and d_row_term is not None:
        blocks = 0 if transition.block_bias is None else transition.block_bias.shape[0]
        d_weight, d_bias = choices.backward(
            *(packed.out, *transition.out.shape, blocks, choice, d_row_term, sent, mean, precision)
        )
        if choice.mean is not None:
            begun = choices.begin_gradient(choice.mean, d_row_term, _row_length(transition.out))
        d_row_term = None
    order = choice.order if choice is not None else None
    order = order or group_order(factors.source_group.flatten(), factors.target_group.flatten())
    own, other, position = order.own, order.other, order.position
    shared = (factors, run.tiles, sent, ratio, mean, precision, tiling)
    weight = None if choice is None else choice.weight
    sides = [(transition.out, packed.into, False, weight, begun), (transition.into, packed.out, True, None, None)]
    by_source, by_target = (
        _feature_gradient(*shared, own[side], other[side], position[side], *operand)
        for side, operand in enumerate(sides)
    )
    gradients = (by_source, by_target, d_row_term, d_weight, d_bias)
    return Gradient(d_log_previous, d_log_inits, *gradients, posterior)


def _row_length(features: Float[Tensor, "Z H"]) -> int:
    """Padded so that rows are aligned: at a width of 257 (256 features and the barrier column) accumulators would spill from registers."""
    return cdiv(features.shape[1], 16) * 16


def _table_gradient(
    factors: BlockedFactors,
    log_prob: Float[Tensor, "Z Y"],
    tiles: Float[Tensor, "B T K_pad K_pad"],
    sent: Float[Tensor, "B T K"],
    ratio: Float[Tensor, "B T K"],
    tiling: Tiling,
) -> Float[Tensor, "Z Y"]:
    batch, length, num_states = factors.log_emission.shape
    gradient = torch.zeros_like(log_prob, memory_format=torch.contiguous_format)
    tiles_kernel.add_tiles[(batch * length, cdiv(num_states, tiling.forward_rows))](
        *(tiles, sent, ratio, factors.source_group.contiguous(), factors.target_group.contiguous()),
        *(gradient, num_states, log_prob.shape[1]),
        K_PAD=tiling.states,
        FILLED=filled(num_states),
        ROWS=tiling.forward_rows,
        num_warps=tiling.tile_warps,
    )
    return gradient


def _feature_gradient(
    factors: BlockedFactors,
    tiles: Float[Tensor, "B T K_pad K_pad"],
    sent: Float[Tensor, "B T K"],
    ratio: Float[Tensor, "B T K"],
    mean: Float[Tensor, "B T K"],
    precision: Precision,
    tiling: Tiling,
    own_group: Int[Tensor, " N"],
    other_group: Int[Tensor, " N"],
    order: Int[Tensor, " N"],
    own_features: Float[Tensor, "Z H"],
    operand: Float[Tensor, "Y width"],
    by_target: bool,
    block_weight: Float[Tensor, "M width"] | None,
    begun: Float[Tensor, "Z row"] | None,
) -> Float[Tensor, "Z H"]:
    """The gradient of one side's features, added to what was `begun`.

    By bytes, with N = B T positions: a product per position written out and summed by a one-hot product would be
    2 N K H numbers through memory and N M K H more operations; here the tiles are read once more, N K K numbers, and
    the sums leave the registers once a stretch.
    """
    width, num_positions = _row_length(own_features), order.shape[0]
    block_width = min(tiling.sum_width, power_of_2(operand.shape[1]))
    two = tiling.sum_two and width > block_width
    parts = cdiv(factors.num_states, tiling.sum_rows), cdiv(width, 2 * block_width if two else block_width)
    stretch = max(MIN_STRETCH, cdiv(num_positions * parts[0] * parts[1], tiling.sum_programs))
    gradient = begun
    if gradient is None:
        gradient = own_features.new_zeros(own_features.shape[0], width, dtype=torch.float32)
    tiles_kernel.accumulate[(cdiv(num_positions, stretch), *parts)](
        *(tiles, sent, ratio, mean, order, own_group, other_group, _states(factors), operand, block_weight, gradient),
        *(num_positions, stretch, factors.num_states, width, operand.shape[1]),
        BLOCK_FACTORED=factors.transition.per_block,
        BY_TARGET=by_target,
        PRECISION=product_precision(precision),
        K_PAD=tiling.states,
        FILLED=filled(factors.num_states),
        ROWS=tiling.sum_rows,
        INNER=tiling.sum_inner,
        BLOCK_H=block_width,
        TWO=two,
        num_warps=tiling.sum_warps,
        num_stages=tiling.sum_stages,
    )
    return gradient[:, : own_features.shape[1]]
