"""The specification of the emission ops: plain torch over every pair of word and state."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.support import Support


def log_emission(
    emit: Float[Tensor, "Z H"],
    words: Float[Tensor, "X H"],
    bias: Float[Tensor, " X"] | None,
    support: Support,
) -> Float[Tensor, "X K"]:
    """emit_z . word_x + bias_x, normalised over the words that z can emit: log p(x | z) for x's own z."""
    logits = words @ emit.T
    if bias is not None:
        logits = logits + bias[:, None]
    return normalize_over_words(logits.gather(1, _states_of_words(support)), support)


def normalize_over_words(logits: Float[Tensor, "X K"], support: Support) -> Float[Tensor, "X K"]:
    """logits - log sum exp over the words of the same state: log p(x | z) for x's own states z."""
    states = _states_of_words(support)
    everywhere = logits.new_full((support.num_words, support.num_states), -torch.inf)
    log_normalizer = everywhere.scatter(1, states, logits).logsumexp(dim=0)
    return logits - log_normalizer[states]


def _states_of_words(support: Support) -> Tensor:
    return support.states_of_group[support.group_of_word]
