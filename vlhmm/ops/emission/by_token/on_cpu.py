"""The emission of a text's tokens by a dense HMM on a CPU: the rows of its tokens, less the sums over all words.

Of the table itself no more than a piece is ever made: its softmax, and that of its gradient, go through memory many times.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops.row_logsumexp import CPU_CHUNK_BYTES, row_logsumexp


def token_log_emission(
    emit: Float[Tensor, "K H"],
    words: Float[Tensor, "X H"],
    bias: Float[Tensor, " X"] | None,
    tokens: Int[Tensor, "B T"],
) -> Float[Tensor, "N K"]:
    if bias is not None:
        # One more feature, 1 times the bias.
        emit = torch.cat([emit, emit.new_ones(emit.shape[0], 1)], dim=1)
        words = torch.cat([words, bias[:, None]], dim=1)
    return words.index_select(0, tokens.flatten()) @ emit.T - row_logsumexp(emit, words)


def token_log_softmax(logits: Float[Tensor, "X K"], tokens: Int[Tensor, "B T"]) -> Float[Tensor, "N K"]:
    result: Tensor = _RowsOfSoftmax.apply(logits, tokens.flatten())
    return result


class _RowsOfSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor) -> Tensor:
        log_sum = torch.logsumexp(torch.stack([part.logsumexp(0) for part in _pieces(logits)]), 0)
        ctx.save_for_backward(logits, log_sum, tokens)
        return logits.index_select(0, tokens) - log_sum

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        logits, log_sum, tokens = ctx.saved_tensors
        gradient, of_all = torch.empty_like(logits), -grad.sum(0)
        for place, part in zip(_pieces(gradient), _pieces(logits), strict=True):
            torch.sub(part, log_sum, out=place).exp_().mul_(of_all)
        return gradient.index_add_(0, tokens, grad.contiguous()), None


def _pieces(table: Float[Tensor, "X K"]) -> tuple[Float[Tensor, "n K"], ...]:
    pieces: tuple[Tensor, ...] = table.split(max(1, CPU_CHUNK_BYTES // max(1, table.shape[1] * table.element_size())))
    return pieces
