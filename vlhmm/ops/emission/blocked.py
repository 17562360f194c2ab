"""Emissions of a partition: each group of words against its own group of states, one product a size.

The backward pass is written by hand: every word and group is used once, so gradients are written in place, without scatter-add or sort.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops.emission.layout import WordLayout


def blocked_log_emission(
    emit: Float[Tensor, "G K H"],
    words: Float[Tensor, "X H"],
    bias: Float[Tensor, " X"] | None,
    layout: WordLayout,
) -> Float[Tensor, "X K"]:
    """word_x . emit_z + bias_x for the K states z of x's group, normalised over the words of the group."""
    result: Tensor = _BlockedLogEmission.apply(emit, words, bias, layout)
    return result


def blocked_log_softmax(logits: Float[Tensor, "X K"], layout: WordLayout) -> Float[Tensor, "X K"]:
    """log_softmax over the words of each group, for each of its K states."""
    result: Tensor = _BlockedLogSoftmax.apply(logits, layout)
    return result


# Below, `sorted_...` is in the order of the layout: there a bucket of groups is a view. Rows are taken by `index_select`, which is
# several times as fast as indexing.


class _BlockedLogEmission(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, emit: Tensor, words: Tensor, bias: Tensor | None, layout: WordLayout) -> Tensor:
        sorted_words, sorted_emit = words.index_select(0, layout.words), emit.index_select(0, layout.groups)
        sorted_log_prob = words.new_empty(words.shape[0], emit.shape[1])
        for logits, group_words, group_emit in zip(
            layout.buckets_of_words(sorted_log_prob),
            layout.buckets_of_words(sorted_words),
            layout.buckets_of_groups(sorted_emit),
            strict=True,
        ):
            torch.bmm(group_words, group_emit.mT, out=logits)
        if bias is not None:
            sorted_log_prob += bias[layout.words, None]
        _log_softmax_(sorted_log_prob, layout)
        ctx.save_for_backward(sorted_words, sorted_emit, sorted_log_prob)
        ctx.layout, ctx.emit_shape, ctx.has_bias = layout, emit.shape, bias is not None
        return _unsorted(sorted_log_prob, layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor | None, None]:
        sorted_words, sorted_emit, sorted_log_prob = ctx.saved_tensors
        layout: WordLayout = ctx.layout
        sorted_grad = _log_softmax_gradient(grad.index_select(0, layout.words), sorted_log_prob, layout)
        sorted_grad_words, sorted_grad_emit = torch.empty_like(sorted_words), torch.empty_like(sorted_emit)
        for grad_logits, group_words, group_emit, grad_words, grad_emit in zip(
            layout.buckets_of_words(sorted_grad),
            layout.buckets_of_words(sorted_words),
            layout.buckets_of_groups(sorted_emit),
            layout.buckets_of_words(sorted_grad_words),
            layout.buckets_of_groups(sorted_grad_emit),
            strict=True,
        ):
            torch.bmm(grad_logits, group_emit, out=grad_words)
            torch.bmm(grad_logits.mT, group_words, out=grad_emit)
        # Groups without words are not in the layout.
        grad_of_emit = sorted_emit.new_zeros(ctx.emit_shape)
        grad_of_emit[layout.groups] = sorted_grad_emit
        grad_of_bias = _unsorted(sorted_grad.sum(dim=1), layout) if ctx.has_bias else None
        return grad_of_emit, _unsorted(sorted_grad_words, layout), grad_of_bias, None


class _BlockedLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, layout: WordLayout) -> Tensor:
        sorted_log_prob = _log_softmax_(logits.index_select(0, layout.words), layout)
        ctx.save_for_backward(sorted_log_prob)
        ctx.layout = layout
        return _unsorted(sorted_log_prob, layout)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (sorted_log_prob,) = ctx.saved_tensors
        layout: WordLayout = ctx.layout
        return _unsorted(
            _log_softmax_gradient(grad.index_select(0, layout.words), sorted_log_prob, layout), layout
        ), None


def _log_softmax_(sorted_logits: Tensor, layout: WordLayout) -> Tensor:
    """In place."""
    for bucket in layout.buckets_of_words(sorted_logits):
        bucket.copy_(bucket.log_softmax(dim=1))
    return sorted_logits


def _log_softmax_gradient(sorted_grad: Tensor, sorted_log_prob: Tensor, layout: WordLayout) -> Tensor:
    gradient = sorted_log_prob.exp()
    for bucket, grad in zip(layout.buckets_of_words(gradient), layout.buckets_of_words(sorted_grad), strict=True):
        bucket *= grad.sum(dim=1, keepdim=True)
    return torch.sub(sorted_grad, gradient, out=gradient)


def _unsorted(in_order_of_layout: Tensor, layout: WordLayout) -> Tensor:
    result = torch.empty_like(in_order_of_layout)
    result[layout.words] = in_order_of_layout
    return result
