"""Emissions of a partition: each group of words against its own group of states, one product a size."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops.emission.layout import WordLayout


def blocked_logits(
    emit: Float[Tensor, "G K H"], words: Float[Tensor, "X H"], layout: WordLayout
) -> Float[Tensor, "X K"]:
    """word_x . emit_z for the K states z of x's group."""
    result: Tensor = _BlockedLogits.apply(emit, words, layout)
    return result


def blocked_log_softmax(logits: Float[Tensor, "X K"], layout: WordLayout) -> Float[Tensor, "X K"]:
    """log_softmax over the words of each group, for each of its K states."""
    result: Tensor = _BlockedLogSoftmax.apply(logits, layout)
    return result


class _BlockedLogits(torch.autograd.Function):
    # By hand because every word and group is used once: gradients are written to their place, not added.
    @staticmethod
    def forward(ctx: Any, emit: Tensor, words: Tensor, layout: WordLayout) -> Tensor:
        logits = words.new_empty(words.shape[0], emit.shape[1])
        for groups, members in layout.buckets():
            logits[members] = words[members] @ emit[groups].mT
        ctx.save_for_backward(emit, words)
        ctx.layout = layout
        return logits

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, None]:
        emit, words = ctx.saved_tensors
        grad_words = torch.empty_like(words)
        # Groups without words are in no bucket.
        grad_emit = torch.zeros_like(emit)
        for groups, members in ctx.layout.buckets():
            grad_logits = grad[members]
            grad_words[members] = grad_logits @ emit[groups]
            grad_emit[groups] = grad_logits.mT @ words[members]
        return grad_emit, grad_words, None


class _BlockedLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, layout: WordLayout) -> Tensor:
        log_prob = torch.empty_like(logits)
        for _, members in layout.buckets():
            log_prob[members] = logits[members].log_softmax(dim=1)
        ctx.save_for_backward(log_prob)
        ctx.layout = layout
        return log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (log_prob,) = ctx.saved_tensors
        grad_logits = torch.empty_like(log_prob)
        for _, members in ctx.layout.buckets():
            bucket = grad[members]
            grad_logits[members] = bucket - log_prob[members].exp() * bucket.sum(dim=1, keepdim=True)
        return grad_logits, None
