"""HMM x automaton: how likely a constraint will be met, for every number of tokens left.

Letters for axes: N tokens left (from 0 on), S automaton states, C classes of tokens, E edges, Z states, X tokens.

C[n, s, z] = P(the next n tokens drive the automaton from s into an accepting state | the current token's state is z):

    C[0, s, z] = 1 if s accepts, else 0
    G[n, s, z] = sum over edges e leaving s of W[e, z] C[n - 1, to(e), z],   W[e, z] = sum of B(z, v) over the tokens v of e
    C[n, s, z] = sum over z' of A(z, z') G[n, s, z']

After the reset token the next state comes from the start distribution, whatever z was: its share of G is
B(z, r) C_anew[n - 1, to(r)] with C_anew[n, s] = sum over z of start(z) G[n, s, z].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.control.automaton import Automaton
from vlhmm.control.time_limit import check_time
from vlhmm.inference.moves import PRECISE
from vlhmm.memory import available_bytes, require_memory
from vlhmm.pauses import pause
from vlhmm.tables import Belief, Tables

CHUNK_BYTES = 1 << 26
"""What is made for one use only is made this many bytes at a time."""
HEADROOM = 500 * math.log(2)
"""Each row is scaled to a maximum of 2^500 in float64, so that states may lie 10^440 apart; beyond that the row is done again in
log space."""


PRECISE_BESIDE_LOST = 2.0**-400
"""Where emissions are so small that float64 loses them (2^-1022), sums below that are done again in log space: what a lost one is multiplied
with is at most 2^500, so that as many as a vocabulary has are beneath the rounding of what is larger."""


class TransitionMatrix:
    """Products with A in float64: stored whole where that takes at most a quarter of the memory, else made a few rows at a time."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        num_bytes = 8 * tables.num_states**2
        self._whole = self._made(self._every_state()) if 4 * num_bytes <= available_bytes(tables.device) else None

    @torch.no_grad()
    def times(self, columns: Float[Tensor, "Z S"]) -> Float[Tensor, "Z S"]:
        """A @ columns."""
        if self._whole is not None:
            return self._whole @ columns
        return torch.cat([self._made(states) @ columns for states in self._chunks(self._every_state())])

    @torch.no_grad()
    def log_times(
        self, log_column: Float[Tensor, " Z"], states: Int[Tensor, " J"] | None = None
    ) -> Float[Tensor, " J"]:
        """log (A @ exp log_column), whatever its range; `states`: rows of A, None: all."""
        rows = self._log_rows(self._every_state() if states is None else states)
        return torch.cat([(log_rows + log_column).logsumexp(1) for log_rows in rows])

    @cached_property
    def smallest_log(self) -> float:
        """Of the moves that are possible."""
        return min(_smallest(log_rows) for log_rows in self._log_rows(self._every_state()))

    @torch.no_grad()
    def log_ahead(self, belief: Belief) -> Float[Tensor, "R Z"]:
        """log p(the next token's state | the past)."""
        tables, support = self.tables, self.tables.support
        probs = belief.log_probs.double().exp()
        if support.dense and self._whole is not None:
            ahead = probs @ self._whole
        else:
            ahead = probs.new_zeros(probs.shape[0], tables.num_states)
            group = support.group_of_word[belief.token]
            for one_group in group.unique():
                members = (group == one_group).nonzero()[:, 0]
                first = 0
                for states in self._chunks(support.states_of_group[one_group]):
                    rows = self._made(states) if self._whole is None else self._whole[states]
                    ahead[members] += probs[members, first : first + len(states)] @ rows
                    first += len(states)
        log_ahead = ahead.log()
        small = (ahead < PRECISE).any(1)
        if bool(small.any()) and _smallest(belief.log_probs) + self.smallest_log < math.log(PRECISE):
            for row in small.nonzero()[:, 0].tolist():
                log_ahead[row] = self._log_ahead(belief.of(slice(row, row + 1)))
        log_ahead = log_ahead.to(tables.dtype)
        if tables.reset_token is None:
            return log_ahead
        return torch.where((belief.token == tables.reset_token)[:, None], tables.log_start, log_ahead)

    def _log_ahead(self, belief: Belief) -> Float[Tensor, " Z"]:
        """`log_ahead` of one sequence, in log space."""
        states, log_probs = self.tables.support.states_of(belief.token)[0], belief.log_probs[0].double()
        log_ahead, first = log_probs.new_full((self.tables.num_states,), -torch.inf), 0
        for log_rows in self._log_rows(states):
            log_part = log_probs[first : first + len(log_rows), None]
            log_ahead = torch.logaddexp(log_ahead, (log_part + log_rows).logsumexp(0))
            first += len(log_rows)
        return log_ahead

    def _every_state(self) -> Int[Tensor, " Z"]:
        return torch.arange(self.tables.num_states, device=self.tables.device)

    def _chunks(self, states: Int[Tensor, " K"]) -> Iterator[Int[Tensor, " J"]]:
        yield from states.split(max(1, CHUNK_BYTES // (8 * self.tables.num_states)))

    def _made(self, states: Int[Tensor, " J"]) -> Float[Tensor, "J Z"]:
        with torch.no_grad():
            return torch.cat([log_rows.exp() for log_rows in self._log_rows(states)])

    def _log_rows(self, states: Int[Tensor, " K"]) -> Iterator[Float[Tensor, "J Z"]]:
        for part in self._chunks(states):
            yield self.tables.transition.log_rows(part).double()


@dataclass(frozen=True)
class Lookahead:
    """The look-ahead tables of a constraint, in log space, so that strict constraints do not underflow."""

    automaton: Automaton
    log_met: Float[Tensor, "N S Z"]
    """log C: the next n tokens meet the constraint, given the automaton's state and the current token's state."""
    log_met_anew: Float[Tensor, "N S"]
    """The same where the next state is drawn from the start distribution."""
    reachable: Bool[Tensor, "N S"]
    """Whether any n tokens at all lead there, whatever their probability; on the CPU."""

    @property
    def steps(self) -> int:
        return self.log_met.shape[0] - 1

    @property
    def num_bytes(self) -> int:
        return self.log_met.numel() * self.log_met.element_size()

    def log_prob(self, tables: Tables, belief: Belief | None, steps: int) -> Float[Tensor, " B"]:
        """log P(the next `steps` tokens are accepted | the past), from the automaton's start; without a belief B = 1."""
        anew = self.log_met_anew[steps, self.automaton.start]
        if belief is None:
            return anew[None]
        met = self.log_met[steps, self.automaton.start][tables.support.states_of(belief.token)]
        log_prob = (belief.log_probs + met).logsumexp(1).clamp(max=0)
        if tables.reset_token is None:
            return log_prob
        possible = (belief.log_probs > -torch.inf).any(1) & (belief.token == tables.reset_token)
        return torch.where(possible, anew, log_prob)


@torch.no_grad()
def lookahead(
    tables: Tables,
    automaton: Automaton,
    steps: int,
    transition: TransitionMatrix | None = None,
    log_after: Float[Tensor, " Z"] | None = None,
) -> Lookahead:
    """C for every number of tokens left up to `steps`, in time steps (E Z + S Z^2).

    `log_after`: log P(what follows these tokens | the last one's state), where that is known too: C[0, s, z] is it for s that
    accept. The reset token must then be none of the tokens.
    """
    if automaton.num_tokens != tables.num_words:
        raise ValueError(
            f"the constraint is over {automaton.num_tokens} tokens, but the HMM has {tables.num_words}: "
            "compile it with the HMM's own tokenizer"
        )
    if steps < 0:
        raise ValueError(f"the number of tokens is {steps}, but must be at least 0")
    num_states, num_automaton_states = tables.num_states, automaton.num_states
    source, target = _edges(automaton)
    kept = (steps + 1) * num_automaton_states * num_states * tables.log_emission.element_size()
    passing = 8 * num_states * (automaton.num_classes + len(source) + 4 * num_automaton_states)
    require_memory(
        kept + passing,
        f"a look-ahead of {steps} tokens over {num_automaton_states:,} automaton states x {num_states:,} states",
        "ask for fewer tokens, or for a simpler constraint",
        tables.device,
    )
    transition = transition or TransitionMatrix(tables)
    device = tables.device
    weights = _edge_weights(tables, automaton, source, target)
    source, target = source.to(device), target.to(device)
    start = tables.log_start.double().exp()
    reset = _reset(tables, automaton)
    smallest_emission = _smallest(tables.log_emission)
    lost = smallest_emission < math.log(torch.finfo(torch.float64).tiny)
    precise = PRECISE_BESIDE_LOST if lost else PRECISE

    @cache
    def smallest_factor() -> float:
        """A lower bound on the possible factors of one step, for the underflow check."""
        moves = min(transition.smallest_log, _smallest(tables.log_start))
        return smallest_emission + moves

    @cache
    def log_of_class() -> Float[Tensor, "C Z"]:
        return log_class_sums(tables, automaton)

    def log_weights(edges: Int[Tensor, " L"]) -> Float[Tensor, "L Z"]:
        """log W of these edges, in log space where W underflows."""
        if not lost:
            return weights[edges].log()
        members = automaton.next_state.to(device)[source[edges]] == target[edges, None]
        return torch.stack([log_of_class()[classes].logsumexp(0) for classes in members])

    accepting = automaton.accepting.to(device)
    after = torch.zeros(num_states, dtype=torch.float64, device=device) if log_after is None else log_after.double()
    now = torch.where(accepting[:, None], after, -torch.inf)
    now_anew = now[:, 0]
    log_met = tables.log_emission.new_empty(steps + 1, num_automaton_states, num_states)
    log_met_anew = tables.log_emission.new_empty(steps + 1, num_automaton_states)
    log_met[0], log_met_anew[0] = now, now_anew
    edges_at_once = max(1, CHUNK_BYTES // (8 * num_states))
    reachable, certain = reachable_states(automaton, steps), _certain(automaton)
    if log_after is not None:
        certain = torch.zeros_like(certain)
    for left in range(1, steps + 1):
        pause()
        check_time("tokens looked ahead", left)
        # The normaliser of each automaton state's row: the largest value that may follow it.
        best = now.amax(1)
        anew = torch.full_like(best, -torch.inf) if reset is None else now_anew[reset.next_state]
        peak = anew.scatter_reduce(0, source, best[target], "amax")
        shift = torch.where(peak.isinf(), 0.0, peak) - HEADROOM
        follow = torch.zeros_like(now)
        if reset is not None:
            follow += reset.log_probs.exp() * (anew - shift).exp()[:, None]
        for first in range(0, len(source), edges_at_once):
            part = slice(first, first + edges_at_once)
            worth = (now[target[part]] - shift[source[part], None]).exp_()
            follow.index_add_(0, source[part], worth.mul_(weights[part]))
        begun = follow @ start
        # Only undecided states: one that cannot accept (probability 0), or accepts with certainty (1), needs no product.
        open_states = (reachable[left] & ~certain).nonzero()[:, 0].to(device)
        followed = transition.times(follow[open_states].T).T
        log_begun, log_followed = begun.log() + shift, followed.log() + shift[open_states, None]
        small = (followed < precise).any(1) | (begun[open_states] < precise)
        # A sum of 0 is exact if nothing is possible; underflow is suspected only if a possible product may be that small.
        range_left = _smallest(now) - float(shift.max())
        if bool(small.any()) and (lost or range_left + smallest_factor() < math.log(PRECISE)):
            for place in small.nonzero()[:, 0].tolist():
                state = open_states[place]
                leaving = (source == state).nonzero()[:, 0]
                log_follow = (now[target[leaving]] + log_weights(leaving)).logsumexp(0)
                if reset is not None:
                    log_follow = torch.logaddexp(log_follow, reset.log_probs + anew[state])
                log_begun[state] = (tables.log_start.double() + log_follow).logsumexp(0)
                log_followed[place] = transition.log_times(log_follow)
        now = torch.where(certain.to(device), 0.0, -torch.inf).double()[:, None].repeat(1, num_states)
        # Rounding may give probabilities above 1.
        now[open_states], now_anew = log_followed.clamp(max=0), log_begun.clamp(max=0)
        log_met[left], log_met_anew[left] = now, now_anew
    return Lookahead(automaton, log_met, log_met_anew, reachable)


def _smallest(log_values: Float[Tensor, ...]) -> float:
    """That is not -inf; inf where all are."""
    return float(log_values.masked_fill(log_values == -torch.inf, torch.inf).amin())


def _edges(automaton: Automaton) -> tuple[Int[Tensor, " E"], Int[Tensor, " E"]]:
    """Every automaton state with each of its distinct next states."""
    num_states = automaton.num_states
    pair = (torch.arange(num_states)[:, None] * num_states + automaton.next_state).unique()
    return pair // num_states, pair % num_states


def _edge_weights(
    tables: Tables, automaton: Automaton, source: Int[Tensor, " E"], target: Int[Tensor, " E"]
) -> Float[Tensor, "E Z"]:
    """W[e, z], the reset token left out: sums over classes first, so that no token is read once for every edge."""
    of_class = class_sums(tables, automaton)
    next_state = automaton.next_state.to(tables.device)
    weights = of_class.new_empty(len(source), tables.num_states)
    edges_at_once = max(1, CHUNK_BYTES // (8 * automaton.num_classes))
    source, target = source.to(tables.device), target.to(tables.device)
    for first in range(0, len(source), edges_at_once):
        part = slice(first, first + edges_at_once)
        members = next_state[source[part]] == target[part, None]
        torch.mm(members.double(), of_class, out=weights[part])
    return weights


def class_sums(tables: Tables, automaton: Automaton) -> Float[Tensor, "C Z"]:
    """sum of B(z, v) over the tokens v of each class, the reset token left out; in float64, as a class may hold every token."""
    support, device = tables.support, tables.device
    num_classes, num_states, states_per_word = automaton.num_classes, tables.num_states, support.states_per_word
    class_of_token = automaton.class_of_token.to(device)
    sums = torch.zeros(num_classes * num_states, dtype=torch.float64, device=device)
    for words in torch.arange(tables.num_words, device=device).split(max(1, CHUNK_BYTES // (8 * states_per_word))):
        probs = tables.log_emission[words].double().exp()
        if tables.reset_token is not None:
            probs[words == tables.reset_token] = 0
        if support.partition:
            # The states of a group stand together, so whole rows are added.
            row = class_of_token[words] * support.num_groups + support.group_of_word[words]
            sums.view(-1, states_per_word).index_add_(0, row, probs)
        else:
            cell = class_of_token[words, None] * num_states + support.states_of(words)
            sums.index_add_(0, cell.flatten(), probs.flatten())
    return sums.view(num_classes, num_states)


def log_class_sums(tables: Tables, automaton: Automaton) -> Float[Tensor, "C Z"]:
    """The logs of `class_sums`, of sums beneath every float too: each is measured against the largest of its tokens."""
    support, device = tables.support, tables.device
    num_classes, num_states = automaton.num_classes, tables.num_states
    class_of_token = automaton.class_of_token.to(device)
    at_once = max(1, CHUNK_BYTES // (8 * support.states_per_word))

    def parts() -> Iterator[tuple[Int[Tensor, " N"], Float[Tensor, " N"]]]:
        for words in torch.arange(tables.num_words, device=device).split(at_once):
            log_probs = tables.log_emission[words].double()
            if tables.reset_token is not None:
                log_probs[words == tables.reset_token] = -torch.inf
            yield (class_of_token[words, None] * num_states + support.states_of(words)).flatten(), log_probs.flatten()

    peaks = torch.full((num_classes * num_states,), -torch.inf, dtype=torch.float64, device=device)
    for cell, log_probs in parts():
        peaks.scatter_reduce_(0, cell, log_probs, "amax")
    shift = torch.where(peaks.isinf(), 0.0, peaks)
    sums = torch.zeros_like(peaks)
    for cell, log_probs in parts():
        sums.index_add_(0, cell, (log_probs - shift[cell]).exp())
    return (sums.log() + shift).view(num_classes, num_states)


@dataclass(frozen=True)
class _Reset:
    log_probs: Float[Tensor, " Z"]
    """log B(z, r)."""
    next_state: Int[Tensor, " S"]
    """Where r leads the automaton."""


def _reset(tables: Tables, automaton: Automaton) -> _Reset | None:
    token, support = tables.reset_token, tables.support
    if token is None:
        return None
    log_probs = torch.full((tables.num_states,), -torch.inf, dtype=torch.float64, device=tables.device)
    log_probs[support.states_of_group[support.group_of_word[token]]] = tables.log_emission[token].double()
    return _Reset(log_probs, automaton.next_state[:, automaton.class_of_token[token]].to(tables.device))


def _certain(automaton: Automaton) -> Bool[Tensor, " S"]:
    """States that accept and from which only such states are reached."""
    every_class = torch.arange(automaton.num_classes)
    refused = Automaton(every_class, automaton.next_state, automaton.start, ~automaton.accepting)
    return refused.shortest().isinf()


def reachable_states(automaton: Automaton, steps: int) -> Bool[Tensor, "N S"]:
    """Whether any n tokens lead from each state to an accepting one."""
    rows = [automaton.accepting]
    for _ in range(steps):
        rows.append(rows[-1][automaton.next_state].any(1))
    return torch.stack(rows)
