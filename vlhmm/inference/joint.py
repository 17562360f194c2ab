"""log p(x, z) of texts whose states are given: the factors along one path, differentiable in the tables."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vlhmm.inference.gather import Batch
from vlhmm.support import Support
from vlhmm.tables import Tables
from vlhmm.transitions import BlockFactoredTransition, SoftmaxTransition, TableTransition

TILE_BYTES = 1 << 28
"""What the target blocks of a block-factored transition may take at once."""


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
    log_move = _log_moves(tables, before.flatten(), states.flatten()).view_as(tokens)
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


def _log_moves(tables: Tables, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """log A[source, target], pair by pair."""
    # Unlike indexing, `index_select` has a gradient that sorts nothing.
    match tables.transition:
        case TableTransition(log_prob):
            return log_prob.flatten().index_select(0, source * log_prob.shape[1] + target)
        case SoftmaxTransition(out, into, log_normalizer):
            product = out.index_select(0, source) * into.index_select(0, target)
            return product.sum(dim=1) - log_normalizer.index_select(0, source)
        case BlockFactoredTransition(log_block, out, into):
            num_blocks = log_block.shape[1]
            states_per_block = into.shape[0] // num_blocks
            block = target.div(states_per_block, rounding_mode="floor")
            to_block = log_block.flatten().index_select(0, source * num_blocks + block)
            return to_block + _log_within_block(
                out.index_select(0, source), into.view(num_blocks, -1, into.shape[1]), target
            )


def _log_within_block(
    out: Float[Tensor, "N H"], into: Float[Tensor, "M K H"], target: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """log softmax of out . in over the states of the target's block, at the target."""
    num_blocks, states_per_block, width = into.shape

    def part(out: Tensor, target: Tensor) -> Tensor:
        if num_blocks == 1:
            logits = out @ into[0].T
        else:
            tiles = into.index_select(0, target.div(states_per_block, rounding_mode="floor"))
            logits = torch.bmm(tiles, out[:, :, None])[:, :, 0]
        return logits.log_softmax(dim=1).gather(1, (target % states_per_block)[:, None])[:, 0]

    at_once = max(1, TILE_BYTES // (states_per_block * (1 if num_blocks == 1 else width) * into.element_size()))
    if out.shape[0] <= at_once:
        return part(out, target)
    # Each part's tiles are made again on the way back: together they may not fit.
    parts = [
        checkpoint(part, some_out, some_target, use_reentrant=False, preserve_rng_state=False)
        for some_out, some_target in zip(out.split(at_once), target.split(at_once), strict=True)
    ]
    return torch.cat(parts)
