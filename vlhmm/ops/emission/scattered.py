"""Emissions without a partition: each cell (x, k) names its state; a state's words are found by scatter."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

# The gathered features (words, K, H) that exist at one time, forward and backward.
CHUNK_BYTES = 64 << 20


def scattered_logits(
    emit: Float[Tensor, "Z H"], words: Float[Tensor, "X H"], states: Int[Tensor, "X K"]
) -> Float[Tensor, "X K"]:
    """word_x . emit_z for z = states[x, k]."""
    result: Tensor = _ScatteredLogits.apply(emit, words, states)
    return result


def scattered_log_softmax(
    logits: Float[Tensor, "X K"], states: Int[Tensor, "X K"], num_states: int
) -> Float[Tensor, "X K"]:
    """log_softmax over all cells that name the same state."""
    result: Tensor = _ScatteredLogSoftmax.apply(logits, states, num_states)
    return result


class _ScatteredLogits(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, emit: Tensor, words: Tensor, states: Tensor) -> Tensor:
        logits = words.new_empty(states.shape)
        for chunk in _word_chunks(emit, states):
            logits[chunk] = (emit[states[chunk]] @ words[chunk, :, None]).squeeze(2)
        ctx.save_for_backward(emit, words, states)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        emit, words, states = ctx.saved_tensors
        grad_emit, grad_words = torch.zeros_like(emit), torch.empty_like(words)
        for chunk in _word_chunks(emit, states):
            grad_words[chunk] = (grad[chunk, None, :] @ emit[states[chunk]]).squeeze(1)
            outer = grad[chunk, :, None] * words[chunk, None, :]
            grad_emit.index_add_(0, states[chunk].flatten(), outer.flatten(0, 1))
        return grad_emit, grad_words, None


class _ScatteredLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, states: Tensor, num_states: int) -> Tensor:
        peak = logits.new_full((num_states,), -torch.inf)
        peak.scatter_reduce_(0, states.flatten(), logits.flatten(), "amax")
        shifted = logits - peak[states]
        log_prob = shifted - _sum_of_state(shifted.exp(), states, num_states).log()[states]
        ctx.save_for_backward(log_prob, states)
        ctx.num_states = num_states
        return log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        log_prob, states = ctx.saved_tensors
        return grad - log_prob.exp() * _sum_of_state(grad, states, ctx.num_states)[states], None, None


def _sum_of_state(cells: Tensor, states: Tensor, num_states: int) -> Tensor:
    return cells.new_zeros(num_states).index_add_(0, states.flatten(), cells.flatten())


def _word_chunks(emit: Tensor, states: Tensor) -> Iterator[slice]:
    num_words, states_per_word = states.shape
    size = max(1, CHUNK_BYTES // max(1, states_per_word * emit.shape[1] * emit.element_size()))
    return (slice(first, min(first + size, num_words)) for first in range(0, num_words, size))
