"""log p(x, z) of texts whose states are given: the factors along one path, differentiable in the tables."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.inference.gather import Batch
from vlhmm.support import Support
from vlhmm.tables import Tables


def path_log_probs(
    tables: Tables, batch: Batch, states: Int[Tensor, "B T"], *, first_given: bool = False
) -> Float[Tensor, "B T"]:
    """log p(x_t, z_t | z_t-1), 0 past the length; after the reset token, and at first, a state comes from the start.

    -inf at a step that is impossible, and no gradient anywhere on such a path. States past a length may be any of the HMM's.
    `first_given`: the first token and state are known, and 0 stands there. A GPU is never waited for.
    """
    tokens = batch.tokens
    column, emits = columns_of(tables.support, tokens, states)
    cell = tokens * tables.support.states_per_word + column
    log_emission = tables.log_emission.flatten().index_select(0, cell.flatten()).view_as(tokens)
    log_start = tables.log_start.index_select(0, states.flatten()).view_as(tokens)
    before = torch.cat([states[:, :1], states[:, :-1]], dim=1)
    log_move = tables.transition.log_pairs(before.flatten(), states.flatten()).view_as(tokens)
    begins = torch.zeros_like(tokens, dtype=torch.bool)
    begins[:, 0] = True
    if tables.reset_token is not None:
        begins[:, 1:] = tokens[:, :-1] == tables.reset_token

    counted = batch.within()
    if first_given:
        counted[:, 0] = False
    log_factor = torch.where(emits, torch.where(begins, log_start, log_move) + log_emission, -torch.inf)
    log_factor = torch.where(counted, log_factor, 0.0)
    possible = (log_factor > -torch.inf).all(dim=1, keepdim=True)
    return torch.where(possible, log_factor, log_factor.detach())


def columns_of(
    support: Support, tokens: Int[Tensor, "B T"], states: Int[Tensor, "B T"]
) -> tuple[Int[Tensor, "B T"], Bool[Tensor, "B T"]]:
    """Where among its word's K states each state stands, and whether it is one of them (else the first is named)."""
    if support.partition:
        column = states - support.group_of_word[tokens] * support.states_per_word
        emits = (column >= 0) & (column < support.states_per_word)
        return torch.where(emits, column, 0), emits
    same = support.states_of(tokens) == states[:, :, None]
    return same.to(torch.int8).argmax(dim=2), same.any(dim=2)
