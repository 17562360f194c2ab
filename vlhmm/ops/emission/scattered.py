"""Emissions without a partition: each cell (x, k) names its state; a state's words are found by scatter.

On a CPU the states of each word are gathered. A GPU multiplies all pairs of words and states and picks the cells: with 128 of
16,384 states a word that is a hundred times the work, but tensor cores do it in less time than it takes to gather each
word's features and to add their gradients row by row.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.precision import Precision

# The gathered features (words, K, H) that exist at one time, forward and backward.
CHUNK_BYTES = 64 << 20

# The logits of all pairs (words, Z) that exist at one time.
PAIR_BYTES = 1 << 30

PRODUCT_WIDENS = hasattr(torch.ops.aten.mm, "dtype")
"""Whether this torch can give a bfloat16 product in float32."""


def scattered_logits(
    emit: Float[Tensor, "Z H"], words: Float[Tensor, "X H"], states: Int[Tensor, "X K"]
) -> Float[Tensor, "X K"]:
    """word_x . emit_z for z = states[x, k]."""
    result: Tensor = _ScatteredLogits.apply(emit, words, states)
    return result


def logits_of_all_pairs(
    emit: Float[Tensor, "Z H"], words: Float[Tensor, "X H"], states: Int[Tensor, "X K"], precision: Precision
) -> Float[Tensor, "X K"]:
    """`scattered_logits` by products of all words with all states, which read their operands in `precision`.

    The states of a word are distinct.
    """
    result: Tensor = _LogitsOfAllPairs.apply(emit, words, states, precision)
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


class _LogitsOfAllPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, emit: Tensor, words: Tensor, states: Tensor, precision: Precision) -> Tensor:
        operand_type = torch.bfloat16 if precision == "bf16" else words.dtype
        emit_operand, word_operand = emit.to(operand_type), words.to(operand_type)
        logits = words.new_empty(states.shape)
        for chunk in _pair_chunks(emit, states):
            pairs = _product(word_operand[chunk], emit_operand.T, words.dtype)
            torch.gather(pairs, 1, states[chunk], out=logits[chunk])
        ctx.save_for_backward(emit_operand, word_operand, states)
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None, None]:
        emit_operand, word_operand, states = ctx.saved_tensors
        grad_words = grad.new_empty(word_operand.shape)
        grad_emit = grad.new_zeros(emit_operand.shape)
        for chunk in _pair_chunks(emit_operand, states):
            pairs = emit_operand.new_zeros(grad[chunk].shape[0], emit_operand.shape[0])
            pairs.scatter_(1, states[chunk], grad[chunk].to(pairs.dtype))
            grad_words[chunk] = _product(pairs, emit_operand, grad.dtype)
            grad_emit += _product(pairs.T, word_operand[chunk], grad.dtype)
        return grad_emit, grad_words, None, None


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


def _product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left @ right in `dtype`."""
    if left.dtype == dtype:
        return left @ right
    if left.is_cuda and PRODUCT_WIDENS:
        return torch.mm(left, right, out_dtype=dtype)
    return left.to(dtype) @ right.to(dtype)


def _word_chunks(emit: Tensor, states: Tensor) -> Iterator[slice]:
    """As many words as have CHUNK_BYTES of gathered features."""
    return _chunks(states.shape[0], CHUNK_BYTES, states.shape[1] * emit.shape[1] * emit.element_size())


def _pair_chunks(emit: Tensor, states: Tensor) -> Iterator[slice]:
    """As many words as have PAIR_BYTES of logits in float32."""
    return _chunks(states.shape[0], PAIR_BYTES, emit.shape[0] * 4)


def _chunks(num_words: int, most_bytes: int, bytes_per_word: int) -> Iterator[slice]:
    size = max(1, most_bytes // max(1, bytes_per_word))
    return (slice(first, min(first + size, num_words)) for first in range(0, num_words, size))
