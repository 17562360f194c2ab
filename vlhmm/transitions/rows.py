"""What several kinds of transition share: rows joined, features rounded, messages pushed a few rows at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.support import Support

ROW_BYTES = 1 << 26
"""Transition rows are made this many bytes at a time."""


def joined(first: Tensor, second: Tensor) -> Tensor:
    """The rows of both: where they were split from one tensor, that one, neither copied nor split in the backward pass."""
    whole, num_rows = first._base, first.shape[0] + second.shape[0]
    if whole is not None and whole is second._base and whole.shape == (num_rows, *first.shape[1:]):
        begins = whole.storage_offset()
        in_order = first.storage_offset() == begins and second.storage_offset() == begins + first.numel()
        if in_order and whole.is_contiguous():
            return whole
    return torch.cat([first, second])


def to_bf16(features: Float[Tensor, "Z H"]) -> Float[Tensor, "Z H"]:
    """Rounded to bfloat16 in the same type. Gradients pass unchanged; so does -inf, which marks a state that is never entered."""
    change = (features.bfloat16().to(features.dtype) - features).detach()
    return torch.where(features.isinf(), features, features + change)


def push_by_rows(
    log_rows: Callable[[Int[Tensor, " N"]], Float[Tensor, "N Y"]], num_targets: int, probs: Float[Tensor, "B Z"]
) -> Float[Tensor, "B Y"]:
    """The product of messages with a transition that is made a few rows at a time."""
    pushed = probs.new_zeros(probs.shape[0], num_targets)
    every_state = torch.arange(probs.shape[1], device=probs.device)
    for states in every_state.split(max(1, ROW_BYTES // (num_targets * probs.element_size()))):
        pushed = pushed + probs[:, states] @ log_rows(states).exp()
    return pushed


def check_square(shape: tuple[int, int], support: Support) -> None:
    if shape != (support.num_states, support.num_states):
        raise ValueError(f"transition has shape {shape}, but there are {support.num_states} states")
