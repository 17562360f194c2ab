"""Transitions between positions whose token may be missing: there every state is possible, not only those of one word.

What stands at a position of a sequence is its kind: the group of its token, MISSING, or ENDED. A message is over the places
of that kind: the K states of the group in their order, or all Z states. Messages of one position are one (B, W) tensor, W being
Z where any sequence misses its token there, else K; entries past the places of a sequence are never read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.support import Support
from vlhmm.tables import Tables

MISSING: Final = -1
ENDED: Final = -2
BLOCK_BYTES = 1 << 26
"""Transition probabilities are made this many bytes at a time."""
KEPT_BYTES = 1 << 30
"""The transition between all states is made once where it is no larger, else anew for every step that needs it."""


PRECISE = torch.finfo(torch.float64).tiny / torch.finfo(torch.float64).eps
"""What underflows in a sum of products at least as large is beneath its rounding."""


@dataclass(frozen=True)
class Matrix:
    log_probs: Float[Tensor, "N W"]

    @cached_property
    def probs(self) -> Float[Tensor, "N W"]:
        """In float64: the only possible transitions may underflow float32."""
        return self.log_probs.double().exp()

    @cached_property
    def smallest_log(self) -> Float[Tensor, ""]:
        """Of those that are possible."""
        return _smallest(self.log_probs.flatten()).double()

    def log_product(self, log_values: Float[Tensor, "R N"], *, into: bool) -> Float[Tensor, "R M"]:
        """log of the sum over one side of value times probability: over sources (`into` the targets), or over targets.

        By a matrix product; recomputed in log space where a possible term may have underflowed.
        """
        peak = log_values.amax(1, keepdim=True)
        peak = torch.where(peak.isinf(), 0.0, peak)
        product = (log_values - peak).exp() @ (self.probs if into else self.probs.T)
        log_product = product.log() + peak
        rows = (product < PRECISE).any(1).nonzero()[:, 0]
        if rows.numel():
            # A sum of 0 is exact if nothing is possible; only a bound below PRECISE indicates underflow.
            smallest = _smallest(log_values[rows] - peak[rows]) + self.smallest_log
            rows = rows[smallest < math.log(PRECISE)]
            log_probs = self.log_probs.T if into else self.log_probs
            at_once = max(1, BLOCK_BYTES // (16 * log_values.shape[1]))
            for row in rows.tolist():
                parts = [(part.double() + log_values[row]).logsumexp(1) for part in log_probs.split(at_once)]
                log_product[row] = torch.cat(parts)
        return log_product


@dataclass(frozen=True)
class Block:
    """A part of the transition between two positions, for the sequences `rows`: from the places `source` to all places."""

    rows: Int[Tensor, " R"]
    source: Int[Tensor, " N"]
    matrix: Matrix

    @property
    def num_targets(self) -> int:
        return self.matrix.log_probs.shape[1]


class Moves:
    """The transition of tables, in blocks of bounded size."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self.every_state = torch.arange(tables.num_states, device=tables.device)

    @cached_property
    def _whole(self) -> Matrix | None:
        """From every state to every state; None where that is too large to keep."""
        if self.tables.num_states**2 * (8 + self.tables.log_emission.element_size()) > KEPT_BYTES:
            return None
        return Matrix(self.tables.transition.log_rows(self.every_state))

    def width(self, kind: Int[Tensor, " B"]) -> int:
        """The number of places W of a position."""
        return self.tables.num_states if bool((kind == MISSING).any()) else self.tables.support.states_per_word

    def states_at(self, kind: Int[Tensor, " R"], width: int) -> Int[Tensor, "R width"]:
        """The state at each place; any state past the places of a sequence."""
        states = self.every_state[:width].expand(kind.shape[0], -1).clone()
        of_group = self.tables.support.states_of_group[kind.clamp(min=0)]
        num_states = of_group.shape[1]
        states[:, :num_states] = torch.where((kind >= 0)[:, None], of_group, states[:, :num_states])
        return states

    def within(self, kind: Int[Tensor, " R"], width: int) -> Tensor:
        """Which places a sequence has."""
        num_places = torch.where(kind == MISSING, self.tables.num_states, self.tables.support.states_per_word)
        return torch.arange(width, device=kind.device) < num_places[:, None]

    def blocks(self, before: Int[Tensor, " B"], after: Int[Tensor, " B"]) -> Iterator[Block]:
        """The transition from `before` to `after` of all sequences that have both."""
        both = (before != ENDED) & (after != ENDED)
        if self.tables.support.num_groups == 1:
            # The states of the one group are all states.
            before, after = torch.where(both, MISSING, before), torch.where(both, MISSING, after)
        pairs = torch.stack([before, after], dim=1)[both].unique(dim=0)
        for pair in pairs:
            rows = ((before == pair[0]) & (after == pair[1])).nonzero()[:, 0]
            source, target = int(pair[0]), int(pair[1])
            if target == MISSING:
                yield from self._rows(rows, source)
            elif source == MISSING:
                yield from self._columns(rows, target)
            else:
                support, group = self.tables.support, pair[None]
                tile = self.tables.transition.log_tiles(support, group[:, 0], support, group[:, 1])[0]
                yield Block(rows, self.every_state[: tile.shape[0]], Matrix(tile))

    def pull(
        self,
        before: Int[Tensor, " B"],
        after: Int[Tensor, " B"],
        log_values: Float[Tensor, "B V"],
        product: Callable[[Block, Tensor], Tensor],
    ) -> Float[Tensor, "B W"]:
        """For each place z of `before` the sum (or what `product` does) over z' of A[z, z'] value(z'); 1 where nothing follows."""
        pulled = log_values.new_zeros(before.shape[0], self.width(before))
        for block in self.blocks(before, after):
            values = log_values[block.rows, : block.num_targets]
            pulled[block.rows[:, None], block.source] = product(block, values)
        return pulled

    def push(
        self, before: Int[Tensor, " B"], after: Int[Tensor, " B"], log_message: Float[Tensor, "B V"]
    ) -> Float[Tensor, "B W"]:
        """For each place z' of `after` the log of the sum over z of message(z) A[z, z']."""
        pushed = log_message.new_full((before.shape[0], self.width(after)), -torch.inf)
        for block in self.blocks(before, after):
            moved = block.matrix.log_product(log_message[block.rows[:, None], block.source], into=True)
            targets = pushed[block.rows, : block.num_targets]
            pushed[block.rows, : block.num_targets] = torch.logaddexp(targets, moved)
        return pushed

    def _rows(self, rows: Int[Tensor, " R"], source: int) -> Iterator[Block]:
        if source == MISSING and self._whole is not None:
            yield Block(rows, self.every_state, self._whole)
            return
        states = self.every_state if source == MISSING else self.tables.support.states_of_group[source]
        at_once = max(1, BLOCK_BYTES // (self.tables.num_states * 8))
        for places in torch.arange(states.shape[0], device=states.device).split(at_once):
            yield Block(rows, places, Matrix(self.tables.transition.log_rows(states[places])))

    def _columns(self, rows: Int[Tensor, " R"], target: int) -> Iterator[Block]:
        """From every state into one group."""
        support, transition = self.tables.support, self.tables.transition
        states = support.states_per_word
        group = self.every_state.new_tensor([target])
        if support.partition:
            at_once = max(1, BLOCK_BYTES // (states * states * 8))
            for groups in torch.arange(support.num_groups, device=rows.device).split(at_once):
                tiles = transition.log_tiles(support, groups, support, group.expand(groups.shape[0]))
                yield Block(rows, support.states_of_group[groups].flatten(), Matrix(tiles.flatten(0, 1)))
            return
        for sources in self.every_state.split(max(1, BLOCK_BYTES // (states * 8))):
            one_group = Support(sources[:1], sources[None], support.num_states, partition=False)
            yield Block(rows, sources, Matrix(transition.log_tiles(one_group, group * 0, support, group)[0]))


def sum_product(block: Block, log_values: Float[Tensor, "R W"]) -> Float[Tensor, "R N"]:
    """log of the sum over z' of A[z, z'] value(z')."""
    return block.matrix.log_product(log_values, into=False)


def max_product(block: Block, log_values: Float[Tensor, "R W"]) -> Float[Tensor, "R N"]:
    """max over z' of log A[z, z'] + log value(z')."""
    at_once = max(1, BLOCK_BYTES // (8 * block.num_targets))
    return torch.cat(
        [
            torch.stack([(log_probs + row).amax(1) for row in log_values])
            for log_probs in block.matrix.log_probs.split(at_once)
        ],
        dim=1,
    )


def _smallest(log_values: Float[Tensor, "... W"]) -> Float[Tensor, ...]:
    """Of each row the smallest that is not -inf; inf where all are."""
    return log_values.masked_fill(log_values == -torch.inf, torch.inf).amin(-1)
