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

from vlhmm.pauses import pause


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
    least_move: float,
    least_possible_move: float,
) -> MessageRun:
    """log p(x_t | x_<t) and the last message, from the factors of `ops.recursion` with `push` in place of tiles.

    `least_move`: no more than the smallest probability of the transition; `least_possible_move`: no more than the smallest product of
    its factors that is not zero, 0 where that underflows.
    """
    tiny = torch.finfo(log_emission.dtype).tiny
    # The underflow threshold: a quarter of the exponent range is a margin above the smallest normal number.
    margin, precise = tiny**0.75, tiny / torch.finfo(log_emission.dtype).eps
    peak = log_emission.detach().amax(2, keepdim=True)
    peak = torch.where(peak.isinf(), 0.0, peak)
    emission, inits, message = (log_emission - peak).exp(), log_inits.exp(), log_previous.exp()
    within = torch.arange(emission.shape[1], device=lengths.device) < lengths[:, None]
    alive = (log_previous > -torch.inf).any(1)
    underflow = ~alive
    total_before = torch.ones_like(peak[:, 0, 0])
    # The smallest entry of the message over possible states.
    least = _least(message, log_previous > -torch.inf)
    token_log_probs = []
    for t, (begun, inside) in enumerate(zip((init_of >= 0).unbind(1), within.unbind(1), strict=True)):
        pause()
        init = init_of[:, t].clamp(min=0)
        begin = inits[init] * alive[:, None]
        moved = begin if bool(begun.all()) else torch.where(begun[:, None], begin, push(message))
        emits = log_emission[:, t] > -torch.inf
        # Underflow in the message costs less than tiny over its total, underflow in the product less than tiny. That is below rounding
        # error if every state that emits the token receives far more. A state that receives 0 may be impossible, or all underflowed.
        underflow_risk = (least < margin) | (least * total_before < precise)
        needed = torch.where(underflow_risk, precise / total_before, precise)
        vanishing = underflow_risk | (least * least_possible_move < tiny)
        small = ~begun & vanishing & (_least(moved, emits) < needed)
        joint = moved * emission[:, t]
        total = joint.sum(1)
        underflow = underflow | ((small | (total < margin)) & inside)
        # Clamped, so that a sequence with underflow, which the caller recomputes, has gradient 0 here, not NaN.
        total = total.clamp(min=tiny)
        message = torch.where(inside[:, None], joint / total[:, None], message)
        reached = emits & torch.where(begun[:, None], log_inits[init] > -torch.inf, moved > 0)
        least = torch.where(inside, _least(joint, reached) / total.detach(), least)
        total_before = torch.where(inside, total.detach(), total_before)
        token_log_probs.append(torch.where(inside, total.log() + peak[:, t, 0], 0.0))
    # The next token is not known here.
    underflow_risk = (least < margin) | (least * total_before < precise)
    underflow = underflow | (underflow_risk & (total_before * least_move < precise))
    log_last = torch.where(message > 0, message.clamp(min=tiny).log(), -torch.inf)
    return MessageRun(torch.stack(token_log_probs, dim=1), log_last, underflow)


def _least(values: Float[Tensor, "B Z"], possible: Bool[Tensor, "B Z"]) -> Float[Tensor, " B"]:
    return torch.where(possible, values.detach(), 1.0).amin(1)
