"""Rows of a table with a row for every state, of which the first are known to be distinct: their gradient is written without scatter-add."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops import dispatch
from vlhmm.ops.state_rows import reference

__all__ = ["state_rows", "state_rows_by_kernels"]

Rows = tuple[Float[Tensor, "n W"], Float[Tensor, "m W"]]
"""All of them, and the first of them."""


def state_rows(
    per_state: Float[Tensor, "Z H"],
    states: Int[Tensor, " n"],
    num_first: int,
    per_block: Float[Tensor, "M H"] | None = None,
) -> Rows:
    """per_state[states] and per_state[states[:num_first]]; these first states must all differ.

    With `per_block` each row has that of the state's block, z // K, to its left; the first states must then be equally many
    of each block, block by block.

    The second result is for readers of the first rows alone: its gradient is added in the kernel that writes the gradient of the table.
    The gradient of a slice would be padded with zeros and added in a pass of its own. Both results share memory.
    """
    if _kernels_take(per_state, states):
        return state_rows_by_kernels(per_state, states, num_first, per_block)
    return reference.state_rows(per_state, states, num_first, per_block)


def state_rows_by_kernels(
    per_state: Float[Tensor, "Z H"],
    states: Int[Tensor, " n"],
    num_first: int,
    per_block: Float[Tensor, "M H"] | None = None,
) -> Rows:
    """`state_rows` in float32; a state out of range, which is not checked, has a row of NaN."""
    result: tuple[Tensor, Tensor] = _StateRows.apply(per_state, per_block, states, num_first)
    return result


def _kernels_take(per_state: Tensor, states: Tensor) -> bool:
    # The kernels are faster only in the backward pass.
    return per_state.requires_grad and dispatch.STATE_ROWS.serve(per_state, states)


class _StateRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, per_state: Tensor, per_block: Tensor | None, states: Tensor, num_first: int
    ) -> tuple[Tensor, Tensor]:
        from vlhmm.ops.state_rows import launch

        blocks = None if per_block is None else per_block.contiguous()
        rows, place = launch.gather(per_state.contiguous(), states.contiguous(), num_first, blocks)
        ctx.save_for_backward(states, place)
        ctx.num_first, ctx.num_blocks = num_first, 0 if blocks is None else blocks.shape[0]
        ctx.set_materialize_grads(False)
        return rows, rows[:num_first].detach()

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, grad: Tensor | None, grad_first: Tensor | None
    ) -> tuple[Tensor | None, Tensor | None, None, None]:
        from vlhmm.ops.state_rows import launch

        states, place = ctx.saved_tensors
        some = grad if grad is not None else grad_first
        if some is None:
            return None, None, None, None
        states, num_first, d_block, left = states.contiguous(), ctx.num_first, None, 0
        if ctx.num_blocks:
            left = some.shape[1] // 2
            d_block = launch.block_sums(grad, grad_first, states, place.shape[0], num_first, ctx.num_blocks)
        return launch.spread(grad, grad_first, states, place, num_first, left), d_block, None, None
