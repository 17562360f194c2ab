"""log p(x, z) of texts whose states are given: the factors along one path, differentiable in the tables."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from vlhmm.inference.gather import Batch
from vlhmm.tables import BlockFactoredTransition, SoftmaxTransition, Support, Tables, TableTransition
from vlhmm.validate import as_batch, as_integers

TILE_BYTES = 1 << 28
"""What the target blocks of a block-factored transition may take at once."""


def joint_log_prob(tables: Tables, tokens: Any, states: Any, lengths: Any = None) -> Float[Tensor, " B"]:
    """log p(x, z) = log start[z_1] + sum of log A[z_t-1, z_t] + sum of log p(x_t | z_t), up to each length.

    After the reset token a state comes from the start distribution. -inf, with gradient 0, where the path is impossible:
    a state that cannot emit its word is. States past a length are never read.
    """
    batch = as_batch(tokens, lengths, tables)
    path = as_integers(states, "states", tables.device)
    if path.shape != batch.tokens.shape:
        raise ValueError(
            f"states has shape {tuple(path.shape)}, but one state a token is needed: {tuple(batch.tokens.shape)}"
        )
    path = torch.where(batch.within(), path, 0)
    lowest, highest = torch.stack(path.aminmax()).tolist()
    if not 0 <= lowest <= highest < tables.num_states:
        raise ValueError(
            f"states go from {lowest} to {highest}, but they must be between 0 and {tables.num_states - 1}: use states of this HMM"
        )
    return path_log_prob(tables, batch, path)


def path_log_prob(
    tables: Tables, batch: Batch, states: Int[Tensor, "B T"], *, first_given: bool = False
) -> Float[Tensor, " B"]:
    """`joint_log_prob` of checked input, without waiting for a GPU; states past a length may be any of the HMM's.

    `first_given`: the first token and state are known, and only what comes after them is counted.
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
    log_factor = torch.where(begins, log_start, log_move) + log_emission
    possible = (~counted | (emits & (log_factor > -torch.inf))).all(dim=1)
    # The factors of an impossible path are left out before the sum, so that none of them gets a gradient.
    log_prob = torch.where(counted & possible[:, None], log_factor, 0.0).sum(dim=1)
    return torch.where(possible, log_prob, -torch.inf)


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
