"""The forward recursion by a product of messages with the transition, for transitions that are cheaper than their table.

It makes no tile: a step is `push`, times the emission, normalised. Autograd records it. `ops.recursion` is its specification:
both take log p(x_t | x_<t) and the last message from the same factors.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


class MessageRun(NamedTuple):
    token_log_probs: Float[Tensor, "B T"]
    """log p(x_t | x_<t), 0 past the length."""
    log_last: Float[Tensor, "B Z"]
    """log p(z | x) of the last state."""
    underflow: Bool[Tensor, " B"]
    """A probability that may matter is too small for its type: the sequence must be done again in a wider range."""


def message_recursion(
    push: Callable[[Tensor], Tensor],
    log_previous: Float[Tensor, "B Z"],
    log_inits: Float[Tensor, "I Z"],
    init_of: Int[Tensor, "B T"],
    log_emission: Float[Tensor, "B T Z"],
    lengths: Int[Tensor, " B"],
    *,
    has_zeros: bool,
) -> MessageRun:
    """log p(x_t | x_<t) and the last message, from the factors of `ops.recursion` with `push` in place of tiles.

    `has_zeros`: some probability of the transition is zero, or underflows to it. Without zeros every state reaches every
    state, and what underflows is outweighed at the next step.
    """
    tiny = torch.finfo(log_emission.dtype).tiny
    # A quarter of the exponents is left as a margin above the smallest number.
    margin = tiny**0.75
    peak = log_emission.detach().amax(2, keepdim=True)
    peak = torch.where(peak.isinf(), 0.0, peak)
    emission, inits, message = (log_emission - peak).exp(), log_inits.exp(), log_previous.exp()
    within = torch.arange(emission.shape[1], device=lengths.device) < lengths[:, None]
    alive = (log_previous > -torch.inf).any(1)
    underflow = ~alive
    if has_zeros:
        lost = _lost(log_emission, emission, margin).any(2) & within
        # Also of the rows that some position begins from.
        lost = lost | (_lost(log_inits, inits, margin).any(1)[init_of.clamp(min=0)] & (init_of >= 0) & within)
        underflow = underflow | _lost(log_previous, message, margin).any(1) | lost.any(1)
    token_log_probs = []
    for t, (begun, inside) in enumerate(zip((init_of >= 0).unbind(1), within.unbind(1), strict=True)):
        begin = inits[init_of[:, t].clamp(min=0)] * alive[:, None]
        moved = begin if bool(begun.all()) else torch.where(begun[:, None], begin, push(message))
        joint = moved * emission[:, t]
        total = joint.sum(1)
        small = total < margin
        if has_zeros:
            small = small | ((joint > 0) & (joint < margin)).any(1)
        underflow = underflow | (small & inside)
        # Clamped, so that the gradient of a sequence that is done again elsewhere is 0 here, not NaN.
        total = total.clamp(min=tiny)
        message = torch.where(inside[:, None], joint / total[:, None], message)
        token_log_probs.append(torch.where(inside, total.log() + peak[:, t, 0], 0.0))
    log_last = torch.where(message > 0, message.clamp(min=tiny).log(), -torch.inf)
    return MessageRun(torch.stack(token_log_probs, dim=1), log_last, underflow)


def _lost(log_values: Float[Tensor, "*N"], values: Float[Tensor, "*N"], margin: float) -> Bool[Tensor, "*N"]:
    """Numbers that are possible, and too small for their type."""
    return (log_values > -torch.inf) & (values < margin)
