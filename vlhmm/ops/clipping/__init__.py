"""Clipping of gradients to a norm; a large gradient is not rewritten if its norm is within the bound."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlhmm.ops import dispatch

__all__ = ["clip_gradients"]


def clip_gradients(parameters: Sequence[nn.Parameter], largest_norm: float) -> Float[Tensor, ""]:
    """Scales all gradients alike, so that their norm is at most `largest_norm`; returns what it was."""
    large = [parameter.grad for parameter in parameters if parameter.grad is not None and _is_large(parameter.grad)]
    if not large:
        was: Tensor = nn.utils.clip_grad_norm_(parameters, largest_norm)
        return was
    # Imported here, so that the CPU path does not need Triton.
    from vlhmm.ops.clipping import launch

    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    small = [gradient for gradient in gradients if not _is_large(gradient)]
    # The norm of the parts' norms is the norm of the whole.
    norms = torch._foreach_norm([*small, *(launch.part_norms(gradient) for gradient in large)])
    norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
    if math.isinf(largest_norm):
        return norm
    # As torch.nn.utils.clip_grad_norm_ has it.
    factor = (largest_norm / (norm + 1e-6)).clamp(max=1.0)
    if small:
        torch._foreach_mul_(small, factor)
    for gradient in large:
        launch.scale(gradient, factor)
    return norm


def _is_large(gradient: Tensor) -> bool:
    return gradient.is_contiguous() and dispatch.CLIPPING.serve(gradient, size=gradient.numel())
