"""From tables and tokens to the factors of every position, a window at a time so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.ops.recursion import Factors
from vlhmm.tables import Belief, Support, Tables, Transition

WINDOW_BYTES = 1 << 28
"""What the factors and messages of one window may take, roughly."""


@dataclass(frozen=True)
class Boundary:
    """How a belief over other states than the tables' enters them: state dropout draws anew for every window."""

    source: Support
    transition: Transition


@dataclass(frozen=True)
class Batch:
    """Tokens with their lengths; ids past a length have been replaced by 0 and are never read."""

    tokens: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]

    @property
    def num_positions(self) -> int:
        return self.tokens.shape[1]

    def within(self) -> Tensor:
        return torch.arange(self.num_positions, device=self.lengths.device) < self.lengths[:, None]

    def last_tokens(self) -> Int[Tensor, " B"]:
        return self.tokens.gather(1, (self.lengths - 1)[:, None])[:, 0]


def window_factors(
    tables: Tables, batch: Batch, belief: Belief | None = None, boundary: Boundary | None = None
) -> Factors:
    """The factors of `batch`, begun from the start distribution or carried on from `belief`."""
    support = tables.support
    num_groups = support.num_groups
    size, num_positions = batch.tokens.shape
    group = support.group_of_word[batch.tokens]
    log_starts = support.rows(tables.log_start, torch.arange(num_groups, device=group.device))
    init_of = torch.full_like(group, -1)
    if tables.reset_token is not None:
        after_reset = batch.tokens[:, :-1] == tables.reset_token
        init_of[:, 1:] = torch.where(after_reset, group[:, 1:], -1)
    pair = group.new_zeros(size, num_positions)
    pair[:, 1:] = group[:, :-1] * num_groups + group[:, 1:]
    source = support if boundary is None else boundary.source
    if belief is None:
        log_previous = tables.log_emission.new_zeros(size, support.states_per_word)
        init_of[:, 0] = group[:, 0]
    else:
        log_previous = belief.log_probs
        if tables.reset_token is not None:
            init_of[:, 0] = torch.where(belief.token == tables.reset_token, group[:, 0], -1)
        pair[:, 0] = source.group_of_word[belief.token] * num_groups + group[:, 0]
    if belief is None or boundary is None:
        log_tiles, tile_of = _distinct_tiles(tables.transition, support, support, pair)
    else:
        entering, entering_of = _distinct_tiles(boundary.transition, source, support, pair[:, :1])
        log_tiles, tile_of = _distinct_tiles(tables.transition, support, support, pair[:, 1:])
        tile_of = torch.cat([entering_of, tile_of + entering.shape[0]], dim=1)
        log_tiles = torch.cat([entering, log_tiles])
    return Factors(
        log_previous,
        log_starts,
        init_of,
        log_tiles,
        tile_of,
        tables.log_emission[batch.tokens],
        batch.lengths,
    )


def _distinct_tiles(
    transition: Transition, source: Support, target: Support, pair: Int[Tensor, "B T"]
) -> tuple[Tensor, Int[Tensor, "B T"]]:
    if source.num_groups == target.num_groups == 1:
        distinct, tile_of = pair.new_zeros(1), pair
    else:
        distinct, tile_of = pair.unique(return_inverse=True)
    return transition.log_tiles(source, distinct // target.num_groups, target, distinct % target.num_groups), tile_of


def default_window(tables: Tables, size: int) -> int:
    """The number of positions whose factors fit into WINDOW_BYTES."""
    states = tables.support.states_per_word
    # Tiles (three copies: log, scaled, gradient) are shared by all positions when there is but one group.
    tile = 0 if tables.support.num_groups == 1 else 3 * states * states
    per_position = size * (tile + 6 * states) * tables.log_emission.element_size()
    return max(1, min(WINDOW_BYTES // per_position, 4096))


def windows(batch: Batch, window: int) -> Iterator[tuple[int, Int[Tensor, " R"], Batch]]:
    """For each stretch of `window` positions: where it begins, the sequences that reach it, and their tokens there."""
    for first in range(0, batch.num_positions, window):
        left = batch.lengths - first
        rows = (left > 0).nonzero()[:, 0]
        tokens = batch.tokens[rows, first : first + window]
        yield first, rows, Batch(tokens, left[rows].clamp(max=tokens.shape[1]))
