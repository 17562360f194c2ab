"""The next token under a constraint: N(v) = p(v, constraint met | prefix) and D(v) = p(v | prefix), for every token v.

With a(z) = p(the next token's state is z | prefix), n tokens left and the automaton in state s:

    N(v) = sum over z of a(z) B(z, v) C[n - 1, delta(s, v), z]        D(v) = sum over z of a(z) B(z, v)

Letters for axes: R rows of a batch, S automaton states, C classes of tokens, X tokens, Z states, K states of a token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.control.product import CHUNK_BYTES, Lookahead, TransitionMatrix
from vlhmm.tables import Belief, Tables

LARGE_CLASS = 32
"""A class of at least so many tokens, and a 32nd of the vocabulary, is multiplied by itself; the rest together."""


@dataclass(frozen=True)
class NextLogProbs:
    log_joint: Float[Tensor, "R X"]
    """log N(v); -inf for every token where the constraint cannot be met any more."""
    log_prob: Float[Tensor, "R X"]
    """log D(v)."""


class ConstrainedTokens:
    """An HMM's tables and a constraint's look-ahead, laid out for one token after the other."""

    def __init__(self, tables: Tables, ahead: Lookahead, transition: TransitionMatrix | None = None) -> None:
        self.tables = tables
        self.ahead = ahead
        self.transition = transition or TransitionMatrix(tables)
        support = tables.support
        dense = support.num_groups == 1 and support.partition
        self._layout = _DenseLayout(tables, ahead) if dense else _GroupedLayout(tables, ahead)

    @property
    def num_bytes(self) -> int:
        return self.ahead.num_bytes + self.tables.log_emission.numel() * self.tables.log_emission.element_size()

    def log_ahead(self, belief: Belief | None) -> Float[Tensor, "R Z"]:
        """log a(z) after `belief`; without one, of a text's first token, with R = 1."""
        return self.tables.log_start[None] if belief is None else self.transition.log_ahead(belief)

    def log_ahead_after(self, log_ahead: Float[Tensor, "R Z"], tokens: Int[Tensor, " R"]) -> Float[Tensor, "R Z"]:
        """log a(z) one token later. After a token that the HMM holds impossible, states begin anew."""
        support = self.tables.support
        log_joint = log_ahead.gather(1, support.states_of(tokens)) + self.tables.log_emission[tokens]
        total = log_joint.logsumexp(1, keepdim=True)
        impossible = total.isinf()
        belief = Belief(tokens, log_joint - torch.where(impossible, 0.0, total))
        return torch.where(impossible, self.tables.log_start, self.transition.log_ahead(belief))

    @torch.no_grad()
    def __call__(self, log_ahead: Float[Tensor, "R Z"], states: Sequence[int], left: int) -> NextLogProbs:
        """N and D of rows whose automata are in `states`, where the next token is the first of `left`."""
        if not 1 <= left <= self.ahead.steps:
            raise ValueError(f"{left} tokens are left, but the look-ahead reaches from 1 to {self.ahead.steps}")
        found, underflown = self._layout(log_ahead, states, left - 1)
        if bool(underflown.any()):
            rows = underflown.nonzero()[:, 0].tolist()
            again = self._exact(log_ahead[rows], [states[row] for row in rows], left - 1)
            found.log_joint[rows], found.log_prob[rows] = again.log_joint, again.log_prob
        if self.tables.reset_token is not None:
            self._after_reset(found, self.tables.reset_token, states, left - 1)
        return found

    def allowed(self, states: Sequence[int], left: int) -> Bool[Tensor, "R X"]:
        """The tokens after which the automaton can still be satisfied, whatever the HMM holds of them."""
        automaton = self.ahead.automaton
        of_class = self.ahead.reachable[left - 1][automaton.next_state[list(states)]]
        return of_class.to(self.tables.device)[:, self._layout.class_of_token]

    def log_met_anew(self, states: Sequence[int], left: int) -> Float[Tensor, "R X"]:
        """log P(the tokens after the next meet the constraint), had the HMM's states begun anew after it."""
        following = self.ahead.automaton.next_state[list(states)].to(self.tables.device)
        return self.ahead.log_met_anew[left - 1, following][:, self._layout.class_of_token]

    def next_states(self, states: Sequence[int], tokens: Sequence[int]) -> list[int]:
        automaton = self.ahead.automaton
        classes = automaton.class_of_token[torch.tensor(tokens, dtype=torch.int64)]
        following: list[int] = automaton.next_state[torch.tensor(states, dtype=torch.int64), classes].tolist()
        return following

    def _after_reset(self, found: NextLogProbs, token: int, states: Sequence[int], after: int) -> None:
        automaton = self.ahead.automaton
        following = automaton.next_state[list(states), automaton.class_of_token[token]].to(self.tables.device)
        found.log_joint[:, token] = found.log_prob[:, token] + self.ahead.log_met_anew[after, following]

    def _exact(self, log_ahead: Float[Tensor, "R Z"], states: Sequence[int], after: int) -> NextLogProbs:
        """N and D by sums in log space, a few tokens at a time: slow, but nothing underflows."""
        tables, automaton = self.tables, self.ahead.automaton
        joint, prob = [], []
        for row_ahead, state in zip(log_ahead, states, strict=True):
            log_met = self.ahead.log_met[after, automaton.next_state[state].to(tables.device)]
            row_joint, row_prob = [], []
            tokens_at_once = max(1, CHUNK_BYTES // (16 * tables.support.states_per_word))
            for words in torch.arange(tables.num_words, device=tables.device).split(tokens_at_once):
                cells = tables.support.states_of(words)
                log_prob = row_ahead[cells] + tables.log_emission[words]
                row_prob.append(log_prob.logsumexp(1))
                met = log_met[self._layout.class_of_token[words, None], cells]
                row_joint.append((log_prob + met).logsumexp(1))
            joint.append(torch.cat(row_joint))
            prob.append(torch.cat(row_prob))
        return NextLogProbs(torch.stack(joint), torch.stack(prob))


def _scaled_emission(tables: Tables) -> tuple[Float[Tensor, "X K"], Float[Tensor, " X"]]:
    """B(z, v) divided by its largest value over z, and the log of that: a rare token does not underflow."""
    log_peak = tables.log_emission.amax(1)
    log_peak = torch.where(log_peak.isinf(), 0.0, log_peak)
    return (tables.log_emission - log_peak[:, None]).exp_(), log_peak


def _finite(peak: Tensor) -> Tensor:
    return torch.where(peak.isinf(), 0.0, peak)


def _underflown(largest: Tensor, peak: Tensor) -> Tensor:
    """Whether all of a row's sums are near the smallest of their type, although some weight is not."""
    return (largest < 2**20 * torch.finfo(largest.dtype).tiny) & ~peak.isinf()


@dataclass(frozen=True)
class _Edges:
    """The edges that leave one automaton state, as `_DenseLayout` reads them."""

    of_slices: list[int]
    """Where most tokens of each slice lead."""
    exceptions: list[int]
    """Other next states that tokens of the last slice lead to."""
    position: Int[Tensor, " P"]
    """The tokens that lead there, in the layout's order."""
    exception_of: Int[Tensor, " P"]


class _DenseLayout:
    """Every state emits every token: products of (R, Z) with slices of the emission table, sorted by class.

    Each large class of tokens is a slice. All other tokens are the last slice, where those that do not lead where most of
    them do are put right one by one. So the work is that of two products with the table, however many edges there are.
    """

    def __init__(self, tables: Tables, ahead: Lookahead) -> None:
        automaton, device = ahead.automaton, tables.device
        self._ahead = ahead
        self.class_of_token = automaton.class_of_token.to(device)
        sizes = automaton.class_of_token.bincount(minlength=automaton.num_classes)
        order = sizes.argsort(descending=True, stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order))
        # By falling size of the class, so that the large ones come first.
        token_at = rank[automaton.class_of_token].argsort(stable=True)
        self._position = token_at.argsort().to(device)
        self._ordered_sizes = sizes[order]
        self._order = order
        self._num_large = int((sizes >= max(LARGE_CLASS, tables.num_words / 32)).sum())
        ends = self._ordered_sizes.cumsum(0)
        self._ends = ends
        firsts = [0, *ends[: self._num_large].tolist()]
        slices = [slice(first, end) for first, end in zip(firsts, [*firsts[1:], tables.num_words], strict=True)]
        self._slices = [part for part in slices if part.stop > part.start]
        emission, log_peak = _scaled_emission(tables)
        self._emission = emission[token_at.to(device)]
        self._log_peak = log_peak[token_at.to(device)]
        self._edges: dict[int, _Edges] = {}

    def __call__(
        self, log_ahead: Float[Tensor, "R Z"], states: Sequence[int], after: int
    ) -> tuple[NextLogProbs, Bool[Tensor, " R"]]:
        """N and D, and the rows where they underflowed."""
        device, log_met = log_ahead.device, self._ahead.log_met[after]
        edges = [self._edges_of(state) for state in states]
        num_rows = len(edges)
        of_slices = torch.tensor([edge.of_slices for edge in edges], device=device).T
        exceptions = torch.tensor(
            [state for edge in edges for state in edge.exceptions], dtype=torch.int64, device=device
        )
        row_of = torch.tensor(
            [row for row, edge in enumerate(edges) for _ in edge.exceptions], dtype=torch.int64, device=device
        )
        log_weights = log_ahead + log_met[of_slices]
        log_exceptions = log_ahead[row_of] + log_met[exceptions]
        # One scale for a row's edges, so that their results can stand side by side.
        best = log_weights.amax((0, 2)).scatter_reduce(0, row_of, log_exceptions.amax(1), "amax")
        peak, peak_ahead = _finite(best), _finite(log_ahead.amax(1))
        probs = (log_ahead - peak_ahead[:, None]).exp_()
        weights = (log_weights - peak[:, None]).exp_()
        found = log_ahead.new_empty(2 * num_rows, len(self._position))
        for part, one in zip(self._slices, weights, strict=True):
            found[:, part] = torch.cat([one, probs]) @ self._emission[part].T
        self._put_right(found, edges, (log_exceptions - peak[row_of, None]).exp_())
        underflown = _underflown(found[:num_rows].amax(1), best)
        log_found = found.log_().add_(self._log_peak).index_select(1, self._position)
        return NextLogProbs(
            log_found[:num_rows] + peak[:, None], log_found[num_rows:] + peak_ahead[:, None]
        ), underflown

    def _put_right(self, found: Float[Tensor, "Q X"], edges: Sequence[_Edges], weights: Float[Tensor, "E Z"]) -> None:
        """Tokens of the last slice that lead elsewhere."""
        positions, entries, first = [], [], 0
        for row, edge in enumerate(edges):
            positions.append(edge.position + row * found.shape[1])
            entries.append(edge.exception_of + first)
            first += len(edge.exceptions)
        cell, entry = torch.cat(positions), torch.cat(entries)
        at_once = max(1, CHUNK_BYTES // (8 * weights.shape[1]))
        for part, one in zip(cell.split(at_once), entry.split(at_once), strict=True):
            value = torch.linalg.vecdot(weights[one], self._emission[part % found.shape[1]])
            found.view(-1).index_copy_(0, part, value)

    def _edges_of(self, state: int) -> _Edges:
        """Kept for every automaton state that was met: at most S of them."""
        if state not in self._edges:
            following = self._ahead.automaton.next_state[state, self._order]
            large, small = following[: self._num_large], following[self._num_large :]
            of_slices, exceptions = large.tolist(), list[int]()
            position = exception_of = torch.empty(0, dtype=torch.int64)
            if len(small):
                sizes = self._ordered_sizes[self._num_large :]
                usual = int(torch.zeros(self._ahead.automaton.num_states).index_add_(0, small, sizes.float()).argmax())
                of_slices.append(usual)
                of_token = small.repeat_interleave(sizes)
                elsewhere = (of_token != usual).nonzero()[:, 0]
                distinct, exception_of = of_token[elsewhere].unique(return_inverse=True)
                exceptions = distinct.tolist()
                position = elsewhere + len(self._position) - len(of_token)
            device = self._emission.device
            self._edges[state] = _Edges(
                of_slices[: len(self._slices)], exceptions, position.to(device), exception_of.to(device)
            )
        return self._edges[state]


class _GroupedLayout:
    """A token is emitted by K states of its own: each row gathers, for every token, the weights of its states."""

    def __init__(self, tables: Tables, ahead: Lookahead) -> None:
        self._tables = tables
        self._ahead = ahead
        self.class_of_token = ahead.automaton.class_of_token.to(tables.device)
        self._emission, self._log_peak = _scaled_emission(tables)

    def __call__(
        self, log_ahead: Float[Tensor, "R Z"], states: Sequence[int], after: int
    ) -> tuple[NextLogProbs, Bool[Tensor, " R"]]:
        """N and D, and the rows where they underflowed."""
        device, num_rows = log_ahead.device, len(states)
        # Every row's edges one after the other: the rows they are of, where they lead, and the edge of each class.
        edges = [self._ahead.automaton.next_state[state].unique(return_inverse=True) for state in states]
        counts = torch.tensor([len(distinct) for distinct, _ in edges])
        row_of = torch.arange(num_rows).repeat_interleave(counts).to(device)
        first = counts.cumsum(0) - counts
        edge_of_class = (torch.stack([of_class for _, of_class in edges]) + first[:, None]).to(device)
        following = torch.cat([distinct for distinct, _ in edges]).to(device)
        log_weights = log_ahead[row_of] + self._ahead.log_met[after, following]
        best = log_ahead.new_full((num_rows,), -torch.inf).scatter_reduce(0, row_of, log_weights.amax(1), "amax")
        peak, peak_ahead = _finite(best), _finite(log_ahead.amax(1))
        joint = self._sums((log_weights - peak[row_of, None]).exp_(), edge_of_class, self.class_of_token)
        every_row = torch.arange(num_rows, device=device)[:, None]
        prob = self._sums((log_ahead - peak_ahead[:, None]).exp_(), every_row, torch.zeros_like(self.class_of_token))
        underflown = _underflown(joint.amax(1), best)
        log_joint, log_prob = (sums.log_().add_(self._log_peak) for sums in (joint, prob))
        return NextLogProbs(log_joint + peak[:, None], log_prob + peak_ahead[:, None]), underflown

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
                value = torch.linalg.vecdot(gathered, self._emission[words])
                sums[row : row + rows_at_once, words] = value
        return sums
