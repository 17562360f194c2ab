"""From tables and tokens to the factors of every position, a window at a time so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.emission.word_rows import word_rows
from vlhmm.ops.groups.of_window import beginnings, window_groups
from vlhmm.ops.recursion import Factors
from vlhmm.ops.recursion.reference import safe_logsumexp
from vlhmm.support import Support
from vlhmm.tables import AnyTables, Belief, Tables
from vlhmm.transitions import Transition

CPU_WINDOW_BYTES = 1 << 28
"""What the factors and messages of one window may take, roughly. On a GPU: an eighth of its memory."""


@dataclass(frozen=True)
class Boundary:
    """The transition from the states of a belief to those of the tables, which differ: state dropout draws a new subset for every window.

    Rows K b to K b + K - 1 of `transition` are the states over which the belief of sequence b is a distribution.
    """

    transition: Transition

    def source(self, size: int, states: int, device: torch.device) -> Support:
        every = torch.arange(size * states, device=device).view(size, states)
        return Support(every[:, 0], every, size * states, partition=True)


@dataclass(frozen=True)
class Batch:
    """Tokens with their lengths; ids past a length have been replaced by 0 and are never read."""

    tokens: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]
    full: bool = False
    """All lengths are known to be T, without a look at them."""
    log_evidence: Float[Tensor, "B T K"] | None = None
    """Added to the log emission at each position: log-likelihoods of states, or 0 and -inf where states are known."""

    @property
    def num_positions(self) -> int:
        return self.tokens.shape[1]

    def of(self, sequences: Int[Tensor, " R"] | slice) -> Batch:
        """Some sequences of the batch."""
        evidence = None if self.log_evidence is None else self.log_evidence[sequences]
        return Batch(self.tokens[sequences], self.lengths[sequences], log_evidence=evidence)

    def with_evidence(self, log_emission: Float[Tensor, "B T K"]) -> Float[Tensor, "B T K"]:
        return log_emission if self.log_evidence is None else log_emission + self.log_evidence

    def within(self) -> Tensor:
        return torch.arange(self.num_positions, device=self.lengths.device) < self.lengths[:, None]

    def last_tokens(self) -> Int[Tensor, " B"]:
        if self.full:
            return self.tokens[:, -1]
        return self.tokens.gather(1, (self.lengths - 1)[:, None])[:, 0]


@dataclass(frozen=True)
class Starts:
    """Positions that start from an initial distribution (text start, reset token), and the messages and rows they start from."""

    group: Int[Tensor, "B T"]
    """The group of each token."""
    log_previous: Float[Tensor, "B K"]
    log_inits: Float[Tensor, "G K"]
    init_of: Int[Tensor, "B T"]


def window_starts(tables: AnyTables, batch: Batch, belief: Belief | None) -> Starts:
    support, past = tables.support, None if belief is None else belief.token
    # One fused kernel: for a short text on a GPU launch overhead is the whole cost.
    if batch.tokens.is_cuda:
        found = window_groups(batch.tokens, support.group_of_word, tables.reset_token, past)
        group, init_of = found.target, found.init_of
    else:
        group = torch.zeros_like(batch.tokens) if support.dense else support.group_of_word[batch.tokens]
        init_of = beginnings(group, batch.tokens, tables.reset_token, past)
    return Starts(group, log_previous(tables, batch, belief), log_inits(tables), init_of)


def log_previous(tables: AnyTables, batch: Batch, belief: Belief | None) -> Float[Tensor, "B K"]:
    """The message before position 0; without a belief it is not read."""
    if belief is not None:
        return belief.log_probs
    return tables.log_start.new_zeros(batch.tokens.shape[0], tables.support.states_per_word)


def log_inits(tables: AnyTables) -> Float[Tensor, "G K"]:
    """The start by group."""
    support = tables.support
    if support.partition:
        return tables.log_start.view(support.num_groups, -1)
    return support.rows(tables.log_start, torch.arange(support.num_groups, device=tables.device))


def window_factors(
    tables: AnyTables,
    batch: Batch,
    belief: Belief | None = None,
    boundary: Boundary | None = None,
    log_emission: Float[Tensor, "B T K"] | None = None,
) -> Factors:
    """The factors of `batch`, which starts from the start distribution or continues from `belief`.

    `log_emission`: the `window_emission`, where it is known already.
    """
    if log_emission is None:
        log_emission = window_emission(tables, batch)
    support, num_groups = tables.support, tables.support.num_groups
    starts = window_starts(tables, batch, belief)
    if belief is not None and boundary is not None and support.dense:
        starts, boundary = _entered(starts, belief, boundary, support), None
    pair = starts.group
    if not support.dense:
        pair = torch.zeros_like(starts.group)
        pair[:, 1:] = starts.group[:, :-1] * num_groups + starts.group[:, 1:]
        if belief is not None:
            pair[:, 0] = support.group_of_word[belief.token] * num_groups + starts.group[:, 0]
    if belief is None or boundary is None:
        log_tiles, tile_of = _distinct_tiles(tables.transition, support, support, pair)
    else:
        size, states = starts.log_previous.shape
        sequences = torch.arange(size, device=pair.device)[:, None]
        entering, entering_of = _distinct_tiles(
            boundary.transition,
            boundary.source(size, states, pair.device),
            support,
            sequences * num_groups + starts.group[:, :1],
        )
        log_tiles, tile_of = _distinct_tiles(tables.transition, support, support, pair[:, 1:])
        tile_of = torch.cat([entering_of, tile_of + entering.shape[0]], dim=1)
        log_tiles = torch.cat([entering, log_tiles])
    return Factors(
        *(starts.log_previous, starts.log_inits, starts.init_of, log_tiles, tile_of, log_emission, batch.lengths),
        same_ahead=num_groups == 1,
    )


def window_emission(tables: AnyTables, batch: Batch) -> Float[Tensor, "B T K"]:
    """log p(x_t | z) over the K states of each token."""
    if isinstance(tables, Tables):
        return batch.with_evidence(word_rows(tables.log_emission, batch.tokens))
    return batch.with_evidence(tables.emissions_of(batch.tokens))


def _entered(starts: Starts, belief: Belief, boundary: Boundary, support: Support) -> Starts:
    """Position 0 of a dense HMM starts from an initial row, belief times boundary: a second tile would rule out the kernels for one shared tile."""
    size, states = belief.log_probs.shape
    rows = torch.arange(size * states, device=belief.token.device)[None]
    source, only = Support(rows[:, 0], rows, size * states, partition=True), rows.new_zeros(1)
    log_entering = boundary.transition.log_tiles(source, only, support, only).view(size, states, -1)
    log_entered = safe_logsumexp(belief.log_probs[:, :, None] + log_entering, dim=1)
    init_of = starts.init_of.clone()
    own = starts.log_inits.shape[0] + torch.arange(size, device=init_of.device)
    # After a reset token the belief is dropped.
    init_of[:, 0] = torch.where(init_of[:, 0] < 0, own, init_of[:, 0])
    return replace(starts, log_inits=torch.cat([starts.log_inits, log_entered]), init_of=init_of)


def _distinct_tiles(
    transition: Transition, source: Support, target: Support, pair: Int[Tensor, "B T"]
) -> tuple[Tensor, Int[Tensor, "B T"]]:
    if source.num_groups == target.num_groups == 1:
        only = pair.new_zeros(1)
        return transition.log_tiles(source, only, target, only), pair
    distinct, tile_of = pair.unique(return_inverse=True)
    return transition.log_tiles(source, distinct // target.num_groups, target, distinct % target.num_groups), tile_of


def default_window(tables: AnyTables, size: int) -> int:
    """The number of positions whose factors fit into what a window may take."""
    return window_for(tables.support, tables.dtype, size)


def window_for(support: Support, dtype: torch.dtype, size: int) -> int:
    """`default_window` of tables that are still to be made."""
    states, device = support.states_per_word, support.group_of_word.device
    # Tiles (three copies: log, scaled, gradient) are shared by all positions when there is but one group.
    tile = 0 if support.num_groups == 1 else 3 * states * states
    per_position = size * (tile + 6 * states) * dtype.itemsize
    limit = CPU_WINDOW_BYTES
    if device.type == "cuda":
        limit = torch.cuda.get_device_properties(device).total_memory // 8
    return max(1, min(limit // per_position, 4096))


def windows(batch: Batch, window: int) -> Iterator[tuple[int, Int[Tensor, " R"], Batch]]:
    """For each stretch of `window` positions: where it begins, the sequences that reach it, and their tokens there.

    Stretches that no sequence reaches are left out.
    """
    if batch.num_positions <= window:
        # Every sequence has at least one token: lengths need not be read, so there is no host-device synchronisation.
        yield 0, torch.arange(batch.tokens.shape[0], device=batch.tokens.device), batch
        return
    for first in range(0, batch.num_positions, window):
        left = batch.lengths - first
        rows = (left > 0).nonzero()[:, 0]
        if not rows.numel():
            return
        tokens = batch.tokens[rows, first : first + window]
        evidence = None if batch.log_evidence is None else batch.log_evidence[rows, first : first + window]
        yield first, rows, Batch(tokens, left[rows].clamp(max=tokens.shape[1]), log_evidence=evidence)
