"""The softmax of a dense HMM's emissions: over the rows of a tall table."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable


def column_log_softmax(logits: Float[Tensor, "X K"]) -> Float[Tensor, "X K"]:
    """log_softmax over dimension 0."""
    if not logits.is_cuda:
        return logits.log_softmax(dim=0)
    # PyTorch's own log_softmax gives each column to one thread, so that a vocabulary of 32,000 takes tens of milliseconds; its
    # reductions split a column over threads.
    result: Tensor = _ColumnLogSoftmax.apply(logits)
    return result


class _ColumnLogSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor) -> Tensor:
        log_prob = logits - logits.logsumexp(0)
        ctx.save_for_backward(log_prob)
        return log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (log_prob,) = ctx.saved_tensors
        return torch.addcmul(grad, log_prob.exp(), grad.sum(0), value=-1.0)
