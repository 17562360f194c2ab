"""The recursion over blocks, with the making of its tiles: exact log p(x_t | x_<t) from the features of the states.

Every position has a tile of its own, so shapes are static whatever the text. On a GPU there is no host-device
synchronisation, so all of it can be captured in a CUDA graph. On a CPU plain matrix products make the tiles, and
`vlhmm.ops.recursion` does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops.blocked_recursion.factors import BlockedFactors
from vlhmm.ops.blocked_recursion.tilings import Tiling, tiling_for
from vlhmm.ops.recursion import recursion
from vlhmm.ops.transition_tiles import TransitionOperands
from vlhmm.precision import Precision

__all__ = ["BlockedFactors", "BlockedRun", "blocked_recursion", "blocked_recursion_by_kernels"]


@dataclass(frozen=True)
class BlockedRun:
    token_log_probs: Float[Tensor, "B T"]
    """log p(x_t | x_<t), 0 past the length."""
    log_last: Float[Tensor, "B K"]
    """log p(z | x) of the last state."""
    underflow: Bool[Tensor, " B"]
    """A number of that sequence came near the smallest of float32. It stays on the device: look now and then.

    Where operands are rounded only sums over states are looked at: a single state that has faded to 1e-29 is far below their error.
    """


def blocked_recursion(factors: BlockedFactors, precision: Precision = "highest") -> BlockedRun:
    """log p(x_t | x_<t), differentiable in every log factor and in the features or the table.

    `precision` is that of matrix operands on a GPU. A CPU, and float64 anywhere, computes in the tensors' own type.
    """
    if factors.log_emission.is_cuda and factors.log_emission.dtype != torch.float64:
        return blocked_recursion_by_kernels(factors, precision)
    token_log_probs, log_last = recursion(factors.with_tiles())
    # That recursion has recomputed sequences with underflow in a wider range: none is reported.
    return BlockedRun(token_log_probs, log_last, torch.zeros_like(factors.lengths, dtype=torch.bool))


def blocked_recursion_by_kernels(
    factors: BlockedFactors, precision: Precision = "highest", tiling: Tiling | None = None
) -> BlockedRun:
    """The same by the Triton kernels, in float32; `tiling` overrules how the work is tiled into pieces."""
    transition = factors.transition
    row_term = None if transition.row_term is None else transition.row_term.float()
    out = transition.out.float() if transition.is_table else transition.out
    token_log_probs, log_last, underflow = _BlockedRecursion.apply(
        factors.log_previous.float(),
        factors.log_inits.float(),
        out,
        transition.into,
        row_term,
        transition.block_weight,
        transition.block_bias,
        factors.log_emission.float(),
        (factors.init_of, factors.source_group, factors.target_group, factors.lengths),
        factors.states_of_group,
        transition.per_block,
        precision,
        tiling,
        # Autograd is off inside `Function.forward`, so whether `out` requires a gradient is read here.
        torch.is_grad_enabled() and out.requires_grad,
    )
    return BlockedRun(token_log_probs, log_last, underflow)


def _rebuilt(tensors: tuple[Any, ...], states_of_group: Tensor | None, per_block: bool) -> BlockedFactors:
    log_previous, log_inits, out, into, row_term, weight, bias, log_emission, *indices = tensors
    init_of, source_group, target_group, lengths = indices
    transition = TransitionOperands(out, into, row_term, per_block, weight, bias)
    groups = (source_group, target_group)
    return BlockedFactors(log_previous, log_inits, init_of, transition, *groups, log_emission, lengths, states_of_group)


class _BlockedRecursion(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_previous: Tensor,
        log_inits: Tensor,
        out: Tensor,
        into: Tensor | None,
        row_term: Tensor | None,
        block_weight: Tensor | None,
        block_bias: Tensor | None,
        log_emission: Tensor,
        indices: tuple[Tensor, Tensor, Tensor, Tensor],
        states_of_group: Tensor | None,
        per_block: bool,
        precision: Precision,
        tiling: Tiling | None,
        with_mean: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        # Imported here, so that the CPU path does not need Triton.
        from vlhmm.ops.blocked_recursion import launch

        inputs = (log_previous, log_inits, out, into, row_term, block_weight, block_bias, log_emission, *indices)
        factors = _rebuilt(inputs, states_of_group, per_block)
        # Tiles of a table are always float32.
        tiling = tiling or tiling_for(factors.num_states, "highest" if into is None else precision)
        packed = launch.operands(factors, precision)
        choice = launch.choice_of(factors, packed, precision, with_mean)
        run = launch.forward(factors, packed, precision, tiling, choice)
        ctx.save_for_backward(
            *(*inputs, states_of_group),
            *(packed.out, packed.into, packed.barrier),
            *(run.token_log_probs, run.log_last, run.underflow, run.tiles),
            *(run.weight, run.emission, run.alpha, run.totals),
            *(() if choice is None else vars(choice).values()),
        )
        ctx.per_block, ctx.precision, ctx.tiling = per_block, precision, tiling
        ctx.mark_non_differentiable(run.underflow)
        ctx.set_materialize_grads(False)
        return run.token_log_probs, run.log_last, run.underflow

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        from vlhmm.ops.blocked_recursion import launch
        from vlhmm.ops.blocked_recursion.choice.launch import Choice

        # Unpacked once: activation checkpointing refuses a second access to saved tensors.
        saved = ctx.saved_tensors
        factors, packed, run = (
            _rebuilt(saved[:12], saved[12], ctx.per_block),
            launch.Operands(*saved[13:16]),
            launch.Run(*saved[16:24]),
        )
        choice = Choice(*saved[24:]) if saved[24:] else None
        gradient = launch.backward(
            factors, packed, run, cotangents[0], cotangents[1], ctx.precision, ctx.tiling, choice
        )
        return (
            *(gradient.log_previous, gradient.log_inits, gradient.out, gradient.into),
            *(gradient.row_term, gradient.block_weight, gradient.block_bias, gradient.log_emission),
            *(None, None, None, None, None, None),
        )
