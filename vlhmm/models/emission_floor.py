"""The smallest probability that a state gives a word."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.support import Support


def above_floor(
    log_emission: Float[Tensor, "rows K"], floor: float, support: Support, tokens: Int[Tensor, "B T"] | None = None
) -> Float[Tensor, "rows K"]:
    """Each state's emission smoothed: mixed with the uniform distribution over the words it can emit. A row for every token; None: for every word."""
    if not floor:
        return log_emission
    emitters = support.states_of_group
    # Not by `bincount`, which synchronises host and device.
    of_word = support.group_of_word
    words_of_group = of_word.new_zeros(support.num_groups).index_add_(0, of_word, torch.ones_like(of_word))
    words_of_state = of_word.new_zeros(support.num_states)
    words_of_state.index_add_(0, emitters.flatten(), words_of_group[:, None].expand_as(emitters).flatten())
    log_even = -words_of_state[emitters].to(log_emission).log()
    groups = of_word if tokens is None else of_word[tokens.flatten()]
    return torch.logaddexp(log_emission + math.log1p(-floor), log_even[groups] + math.log(floor))
