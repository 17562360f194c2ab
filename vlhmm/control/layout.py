"""The sums over states behind N(v) and D(v), for every token v at once: how the emission table is laid out for them.

In linear space, so that they are matrix products. Each token's emissions are divided by their largest, each row's weights by
theirs, so that neither a rare token nor a strict constraint underflows.

Letters for axes: R rows of a batch, E edges of all rows (a row and a next automaton state), S automaton states, C classes of
tokens, X tokens, Z states, K states of a token, Q weights of states, P tokens of a slice.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional

from vlhmm.control.product import CHUNK_BYTES, Lookahead
from vlhmm.tables import Tables

LARGE_CLASS = 32
"""A class of at least so many tokens, and a 32nd of the vocabulary, is multiplied by itself; the rest together."""


@dataclass(frozen=True)
class NextLogProbs:
    log_joint: Float[Tensor, "R X"]
    """log N(v); -inf for every token where the constraint cannot be met any more."""
    log_prob: Float[Tensor, "R X"]
    """log D(v)."""


@dataclass(frozen=True)
class _Edges:
    """The edges that leave one automaton state, as `DenseLayout` reads them; on the CPU."""

    of_slices: list[int]
    """Where most tokens of each slice lead."""
    exceptions: list[int]
    """Other next states that tokens of the last slice lead to."""
    tokens: Int[Tensor, " P"]
    """The tokens that lead there."""
    exception_of: Int[Tensor, " P"]


class DenseLayout:
    """Every state emits every token: products of (R, Z) with slices of the emission table.

    Each large class of tokens is a slice. All other tokens are the last slice, where those that do not lead where most of
    them do are put right one by one. So the work is that of two products with the table, however many edges there are.
    The slices are one more copy of the table: 4 Z X bytes in float32, 400 MB for 2,048 states and 49,152 tokens.
    """

    def __init__(self, tables: Tables, ahead: Lookahead) -> None:
        self._tables, self._ahead = tables, ahead
        class_of_token = ahead.automaton.class_of_token
        sizes = class_of_token.bincount(minlength=ahead.automaton.num_classes)
        self._large = (sizes >= max(LARGE_CLASS, tables.num_words / 32)).nonzero()[:, 0]
        self._rest = (~torch.isin(class_of_token, self._large)).nonzero()[:, 0]
        slices = [(class_of_token == one).nonzero()[:, 0] for one in self._large]
        if len(self._rest):
            slices.append(self._rest)
        self._place = torch.cat(slices).argsort().to(tables.device)
        self._log_peak = _log_peak(tables)
        self._slices = [_ready(self._emission(tokens.to(tables.device))) for tokens in slices]
        self._edges: dict[int, _Edges] = {}

    def __call__(
        self, log_ahead: Float[Tensor, "R Z"], states: Sequence[int], after: int
    ) -> tuple[NextLogProbs, Bool[Tensor, " R"]]:
        """N and D, and which rows underflowed."""
        edges = [self._edges_of(state) for state in states]
        num_rows, num_slices = len(edges), len(self._slices)
        rows = list(range(num_rows)) * num_slices + [row for row, edge in enumerate(edges) for _ in edge.exceptions]
        targets = [edge.of_slices[number] for number in range(num_slices) for edge in edges]
        targets += [state for edge in edges for state in edge.exceptions]
        of_edges = torch.tensor([rows, targets]).to(log_ahead.device)
        weights, best = _edge_weights(log_ahead, self._ahead.log_met[after], of_edges[0], of_edges[1])
        probs, best_ahead = _scaled(log_ahead)
        of_slices = weights[: num_rows * num_slices].view(num_slices, num_rows, -1)
        both = torch.cat([of_slices, probs.expand(num_slices, -1, -1)], dim=1)
        sums = torch.cat([_products(one, part) for one, part in zip(both, self._slices, strict=True)], dim=1)
        sums = sums.index_select(1, self._place)
        self._put_right(sums, edges, weights[num_rows * num_slices :])
        return _in_logs(sums[:num_rows], sums[num_rows:], self._log_peak, best, best_ahead)

    def _put_right(self, sums: Float[Tensor, "Q X"], edges: Sequence[_Edges], weights: Float[Tensor, "E Z"]) -> None:
        """Tokens of the last slice that lead elsewhere: products of all such edges with the few tokens that any of them has."""
        num_tokens = torch.tensor([len(edge.tokens) for edge in edges])
        num_exceptions = torch.tensor([len(edge.exceptions) for edge in edges])
        first_edge = num_exceptions.cumsum(0) - num_exceptions
        tokens = torch.cat([edge.tokens for edge in edges])
        cells = tokens + (torch.arange(len(edges)) * sums.shape[1]).repeat_interleave(num_tokens)
        entries = torch.cat([edge.exception_of for edge in edges]) + first_edge.repeat_interleave(num_tokens)
        distinct, which = tokens.unique(return_inverse=True)
        at_once = max(1, CHUNK_BYTES // (8 * max(weights.shape)))
        for first in range(0, len(distinct), at_once):
            some = distinct[first : first + at_once].to(sums.device)
            here = ((which >= first) & (which < first + at_once)).nonzero()[:, 0]
            cell, entry, place = torch.stack([cells[here], entries[here], which[here] - first]).to(sums.device)
            products = weights @ self._emission(some).T
            sums.view(-1).index_copy_(0, cell, products[entry, place])

    def _emission(self, tokens: Int[Tensor, " P"]) -> Float[Tensor, "P Z"]:
        """B(z, v) divided by its largest value over z."""
        return (self._tables.log_emission[tokens] - self._log_peak[tokens, None]).exp_()

    def _edges_of(self, state: int) -> _Edges:
        """Cached for every automaton state visited: at most S entries."""
        if state not in self._edges:
            automaton = self._ahead.automaton
            of_slices: list[int] = automaton.next_state[state, self._large].tolist()
            following = automaton.next_state[state, automaton.class_of_token[self._rest]]
            if len(following):
                of_slices.append(int(following.bincount().argmax()))
            elsewhere = following != of_slices[-1]
            distinct, exception_of = following[elsewhere].unique(return_inverse=True)
            self._edges[state] = _Edges(of_slices, distinct.tolist(), self._rest[elsewhere], exception_of)
        return self._edges[state]


class GroupedLayout:
    """A token is emitted by K states of its own: each row gathers, for every token, the weights of its states."""

    def __init__(self, tables: Tables, ahead: Lookahead) -> None:
        self._tables, self._ahead = tables, ahead
        self._class_of_token = ahead.automaton.class_of_token.to(tables.device)
        self._log_peak = _log_peak(tables)
        self._emission = (tables.log_emission - self._log_peak[:, None]).exp_()

    def __call__(
        self, log_ahead: Float[Tensor, "R Z"], states: Sequence[int], after: int
    ) -> tuple[NextLogProbs, Bool[Tensor, " R"]]:
        """N and D, and which rows underflowed."""
        device, num_rows = log_ahead.device, len(states)
        # Every row's edges one after the other: the rows they are of, where they lead, and the edge of each class.
        edges = [self._ahead.automaton.next_state[state].unique(return_inverse=True) for state in states]
        counts = torch.tensor([len(distinct) for distinct, _ in edges])
        row_of = torch.arange(num_rows).repeat_interleave(counts).to(device)
        first = counts.cumsum(0) - counts
        edge_of_class = (torch.stack([of_class for _, of_class in edges]) + first[:, None]).to(device)
        following = torch.cat([distinct for distinct, _ in edges]).to(device)
        weights, best = _edge_weights(log_ahead, self._ahead.log_met[after], row_of, following)
        probs, best_ahead = _scaled(log_ahead)
        joint = self._sums(weights, edge_of_class, self._class_of_token)
        every_row = torch.arange(num_rows, device=device)[:, None]
        prob = self._sums(probs, every_row, torch.zeros_like(self._class_of_token))
        return _in_logs(joint, prob, self._log_peak, best, best_ahead)

    def _sums(
        self, weights: Float[Tensor, "E Z"], edge_of_class: Int[Tensor, "R C"], class_of_token: Int[Tensor, " X"]
    ) -> Float[Tensor, "R X"]:
        """For each row and token the sum over the token's states of weight x emission, with the weights of the row's edge."""
        support = self._tables.support
        sums = weights.new_empty(edge_of_class.shape[0], len(class_of_token))
        cells = max(1, CHUNK_BYTES // (16 * support.states_per_word))
        rows_at_once = max(1, cells // len(class_of_token))
        for words in torch.arange(len(class_of_token), device=weights.device).split(cells):
            for row in range(0, len(sums), rows_at_once):
                edge = edge_of_class[row : row + rows_at_once][:, class_of_token[words]]
                if support.partition:
                    place = edge * support.num_groups + support.group_of_word[words]
                    gathered = weights.view(-1, support.states_per_word)[place]
                else:
                    gathered = weights[edge[:, :, None], support.states_of(words)]
                value = gathered.mul_(self._emission[words]).sum(2)
                sums[row : row + rows_at_once, words] = value
        return sums


Layout = DenseLayout | GroupedLayout


def layout_of(tables: Tables, ahead: Lookahead) -> Layout:
    return DenseLayout(tables, ahead) if tables.support.dense else GroupedLayout(tables, ahead)


def _log_peak(tables: Tables) -> Float[Tensor, " X"]:
    """log of each token's largest emission, the scale by which a rare token's emissions do not underflow."""
    return _finite(tables.log_emission.amax(1))


def _finite(best: Tensor) -> Tensor:
    return torch.where(best.isinf(), 0.0, best)


def _scaled(log_weights: Float[Tensor, "R Z"]) -> tuple[Float[Tensor, "R Z"], Float[Tensor, " R"]]:
    """Weights divided by the largest of their row, and its log."""
    best = log_weights.amax(1)
    return (log_weights - _finite(best)[:, None]).exp_(), best


def _edge_weights(
    log_ahead: Float[Tensor, "R Z"], log_met: Float[Tensor, "S Z"], row: Int[Tensor, " E"], target: Int[Tensor, " E"]
) -> tuple[Float[Tensor, "E Z"], Float[Tensor, " R"]]:
    """a(z) C[target, z] of every edge divided by the largest of its row, so that a row's sums can stand side by side; its log."""
    log_weights = log_ahead[row] + log_met[target]
    best = log_ahead.new_full((len(log_ahead),), -torch.inf).scatter_reduce(0, row, log_weights.amax(1), "amax")
    return log_weights.sub_(_finite(best)[row, None]).exp_(), best


def _in_logs(
    joint: Float[Tensor, "R X"],
    prob: Float[Tensor, "R X"],
    log_peak: Float[Tensor, " X"],
    best: Float[Tensor, " R"],
    best_ahead: Float[Tensor, " R"],
) -> tuple[NextLogProbs, Bool[Tensor, " R"]]:
    """Logs of the sums, their scales added. Also the underflow check: rows whose largest sum is near the smallest normal number, though a
    weight is positive."""
    underflown = (joint.amax(1) < 2**20 * torch.finfo(joint.dtype).tiny) & ~best.isinf()
    log_joint, log_prob = (
        sums.log_().add_(log_peak).add_(_finite(scale)[:, None]) for sums, scale in ((joint, best), (prob, best_ahead))
    )
    return NextLogProbs(log_joint, log_prob), underflown


def _ready(emission: Float[Tensor, "P Z"]) -> Tensor:
    """For `_products`: on a CPU in the layout of oneDNN, whose product of a large table with few weights takes a third of the time."""
    on_cpu = emission.device.type == "cpu" and emission.dtype == torch.float32
    return emission.to_mkldnn() if on_cpu and torch.backends.mkldnn.is_available() else emission


def _products(weights: Float[Tensor, "Q Z"], emission: Tensor) -> Float[Tensor, "Q P"]:
    if emission.is_mkldnn:
        return functional.linear(emission, weights).to_dense().T
    return weights @ emission.T
