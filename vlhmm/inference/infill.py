"""Missing tokens: what stands in the gaps of a text, given all the rest.

A missing position has every state and every token. With a_t(z) = p(z_t = z, what is known before t) and G_t(z) = p(what is known
from t on | z_t = z) the text has probability sum over z of a_t(z) G_t(z) at any t. After a missing token the state moves
by A, or, after the reset token, restarts from the start distribution: G_t(z) = w(z) v_t(z) + r(z) s_t, where

    v_t(z) = sum over z' of A[z, z'] G_t+1(z')      w(z) = p(a token that is allowed, not the reset token | z)
    s_t    = sum over z' of start(z') G_t+1(z')     r(z) = p(the reset token | z)

Sums run in float64, and a table of all pairs of states is made in blocks, only between two missing tokens side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.gather import Batch
from vlhmm.inference.moves import BLOCK_BYTES, ENDED, MISSING, Block, Moves, max_product, sum_product
from vlhmm.inference.sampling import StateWords, draw, require_drawn
from vlhmm.inference.score import score
from vlhmm.memory import require_memory
from vlhmm.pauses import pause
from vlhmm.records import shown
from vlhmm.tables import Belief, Tables


@dataclass(frozen=True)
class Infilled:
    """p(missing tokens | the other tokens) of a batch; N is the number of missing tokens in all sequences.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> filled = hmm.infill([[0, 0, 2], [2, 0, 1]], [[False, True, False], [True, False, False]], num=0)
        >>> filled.rows, filled.positions
        (tensor([0, 1]), tensor([1, 0]))
        >>> filled.best
        tensor([[0, 1, 2],
                [0, 0, 1]])
        >>> filled.best_log_prob
        tensor([-1.0347, -0.9788])
    """

    log_prob: Float[Tensor, " *B"]
    """log p(the known tokens), the missing ones summed out."""
    rows: Int[Tensor, " N"]
    """The sequence of each missing token."""
    positions: Int[Tensor, " N"]
    """The position of each missing token in its sequence."""
    probs: Float[Tensor, "N X"]
    """p(the missing token | the other known tokens) over the vocabulary."""
    samples: Int[Tensor, "*B num T"]
    """Whole texts, the missing tokens drawn jointly from their exact distribution; -1 past the length."""
    best: Int[Tensor, "*B T"]
    """The text with its best filling; -1 past the length. One missing token: the most likely one. Several: the tokens of the most
    likely pair of tokens and states from the first missing position to the last (the most likely tokens alone, over all their
    state paths, would need a search that grows exponentially)."""
    best_log_prob: Float[Tensor, " *B"]
    """log p(the best filling | the rest), over all its state paths."""

    __repr__ = shown


@dataclass(frozen=True)
class _Ahead:
    """The backward messages at a position."""

    log_future: Float[Tensor, "B W"]
    """G: what is known from this position on."""
    log_move: Float[Tensor, "B W"]
    """v: what is known after this position, if the state moves on."""
    log_anew: Float[Tensor, " B"]
    """s: the same if it begins anew."""


@dataclass(frozen=True)
class _Algebra:
    """The semiring: sum-product (alternatives are summed) or max-product (the best one is taken)."""

    of_moves: Callable[[Block, Tensor], Tensor]
    of_states: Callable[[Tensor], Tensor]


_SUM = _Algebra(sum_product, lambda values: values.logsumexp(1))
_BEST = _Algebra(max_product, lambda values: values.amax(1))


class Infiller:
    """The messages of a batch with missing tokens, at least one in each sequence; only `allowed` tokens are filled in."""

    @torch.no_grad()
    def __init__(
        self,
        tables: Tables,
        batch: Batch,
        missing: Bool[Tensor, "B T"],
        belief: Belief | None = None,
        allowed: Bool[Tensor, " X"] | None = None,
    ) -> None:
        self._tables, self._batch, self._missing = tables, batch, missing
        every_word = torch.ones(tables.num_words, dtype=torch.bool, device=tables.device)
        self._allowed = every_word if allowed is None else allowed
        # No token where there is none.
        self._reset = -1 if tables.reset_token is None else tables.reset_token
        self._moves, self._words = Moves(tables), StateWords(tables)
        self._kind = torch.where(batch.within(), tables.support.group_of_word[batch.tokens], ENDED)
        self._kind[missing] = MISSING
        columns = missing.any(0).nonzero()[:, 0].tolist()
        self._first, self._last = columns[0], columns[-1]
        # Of each sequence.
        self._row_first = missing.int().argmax(1)
        self._row_last = batch.num_positions - 1 - missing.flip(1).int().argmax(1)
        num_columns, size = self._last - self._first + 1, batch.tokens.shape[0]
        require_memory(
            5 * num_columns * size * tables.num_states * 8,
            f"filling {num_columns} positions of {size} texts with messages over {tables.num_states} states",
            "fill fewer texts or shorter gaps at a time",
            tables.device,
        )
        self._log_start = tables.log_start.double()
        self._emission_of_missing()
        self._ahead = self._sums()
        self._log_past = self._forward(belief)
        self.log_prob: Float[Tensor, " B"] = (self._log_past[0] + self._ahead[0].log_future).logsumexp(1)
        """log p(the known tokens) in float64; -inf where nothing that is filled in makes them possible."""

    @torch.no_grad()
    def probs(
        self, sequences: Int[Tensor, " R"] | None = None
    ) -> tuple[Int[Tensor, " N"], Int[Tensor, " N"], Float[Tensor, "N X"]]:
        """For each missing token (of some sequences) its sequence, its position and p(the token there | the rest).

        Of an impossible text all are 0.
        """
        tables, support = self._tables, self._tables.support
        rows, positions = self._missing.nonzero().T
        if sequences is not None:
            asked = torch.isin(rows, sequences)
            rows, positions = rows[asked], positions[asked]
        require_memory(
            rows.shape[0] * tables.num_words * tables.log_emission.element_size(),
            f"{rows.shape[0]} distributions over {tables.num_words} words",
            "fill fewer tokens at a time",
            tables.device,
        )
        # p(token | z, an allowed token is here): normalised, since in the only possible state allowed tokens may have tiny probability (underflow).
        every_word = torch.arange(tables.num_words, device=tables.device)
        states = support.states_of_group[0] if support.num_groups == 1 else support.states_of(every_word)
        log_word = self._log_word.to(tables.dtype)[states]
        log_given = torch.where(log_word > -torch.inf, tables.log_emission - log_word, -torch.inf)
        emission = log_given.exp_().masked_fill_(~self._moving[:, None], 0.0)
        evidence = torch.where(self.log_prob.isinf(), 0.0, self.log_prob)
        probs = emission.new_empty(rows.shape[0], tables.num_words)
        for number, (row, t) in enumerate(zip(rows.tolist(), (positions - self._first).tolist(), strict=True)):
            pause()
            log_past = self._log_past[t][row] - evidence[row]
            state_probs = (log_past + self._log_word + self._ahead[t].log_move[row]).exp().to(emission.dtype)
            of_group = state_probs[support.states_of_group]
            if support.num_groups == 1:
                probs[number] = emission @ of_group[0]
            else:
                probs[number] = (of_group[support.group_of_word] * emission).sum(1)
            if tables.reset_token is not None:
                log_anew = (log_past + self._log_reset).logsumexp(0) + self._ahead[t].log_anew[row]
                probs[number, tables.reset_token] = log_anew.exp()
        return rows, positions, probs

    @torch.no_grad()
    def sample(self, rows: Int[Tensor, " N"], generator: torch.Generator | None) -> Int[Tensor, "N T"]:
        """The texts `rows`, the missing tokens drawn jointly from their exact distribution; -1 past the length."""
        at_once = max(1, BLOCK_BYTES // (8 * max(self._tables.num_states, self._tables.num_words)))
        parts = [self._walk(part, self._ahead, lambda logs: draw(logs, generator)) for part in rows.split(at_once)]
        return torch.cat(parts)

    @torch.no_grad()
    def best(self) -> Int[Tensor, "B T"]:
        """Each text with its best filling, as `Infilled.best`."""
        every_row = torch.arange(self._missing.shape[0], device=self._missing.device)
        best = self._walk(every_row, self._bests(), lambda logs: logs.argmax(-1))
        rows, positions, probs = self.probs((self._missing.sum(1) == 1).nonzero()[:, 0])
        best[rows, positions] = probs.argmax(1)
        return best

    def _emission_of_missing(self) -> None:
        """p(some allowed token | z), the likeliest one's, and the reset token's, for every state."""
        tables = self._tables
        self._moving = self._allowed.clone()
        self._log_reset = torch.full_like(self._log_start, -torch.inf)
        if tables.reset_token is not None:
            self._moving[tables.reset_token] = False
            if bool(self._allowed[tables.reset_token]):
                group = tables.support.group_of_word[tables.reset_token]
                log_reset = tables.log_emission[tables.reset_token].double()
                self._log_reset[tables.support.states_of_group[group]] = log_reset
        words = self._moving.nonzero()[:, 0]
        states = tables.support.states_of(words).flatten()
        log_emission = tables.log_emission[words].double().flatten()
        nothing = torch.zeros_like(self._log_start)
        self._log_best_word = nothing.log().scatter_reduce(0, states, log_emission, "amax")
        peak = torch.where(self._log_best_word.isinf(), 0.0, self._log_best_word)
        self._log_word = nothing.index_add(0, states, (log_emission - peak[states]).exp()).log() + peak

    def _token_factors(
        self, t: int, log_word: Float[Tensor, " Z"]
    ) -> tuple[Float[Tensor, "B W"], Float[Tensor, "B W"]]:
        """p(the token of this position, after which the state moves on | z), and the same if it is the reset token, after which states restart."""
        kind, tokens = self._kind[:, t], self._batch.tokens[:, t]
        states = self._moves.states_at(kind, self._moves.width(kind))
        known = torch.full_like(log_word[states], -torch.inf)
        known[:, : self._tables.support.states_per_word] = self._tables.log_emission[tokens].double()
        gone, anew = (kind == MISSING)[:, None], (tokens == self._reset)[:, None]
        return (
            torch.where(gone, log_word[states], known.masked_fill(anew, -torch.inf)),
            torch.where(gone, self._log_reset[states], known.masked_fill(~anew, -torch.inf)),
        )

    def _start_at(self, kind: Int[Tensor, " B"]) -> Float[Tensor, "B W"]:
        width = self._moves.width(kind)
        log_start = self._log_start[self._moves.states_at(kind, width)]
        return log_start.masked_fill(~self._moves.within(kind, width), -torch.inf)

    def _sums(self) -> list[_Ahead]:
        """Backward messages from the first missing position of the batch to the last, all states and tokens marginalised (sum-product)."""
        ahead: list[_Ahead] = []
        after = torch.full_like(self._kind[:, 0], ENDED)
        following = torch.zeros_like(self._start_at(after))
        for t in range(self._batch.num_positions - 1, self._first - 1, -1):
            pause()
            move, anew = self._step_back(t, after, following, _SUM)
            moving, ending = self._token_factors(t, self._log_word)
            following, after = torch.logaddexp(moving + move, ending + anew[:, None]), self._kind[:, t]
            if t <= self._last:
                ahead.append(_Ahead(following, move, anew))
        return ahead[::-1]

    def _bests(self) -> list[_Ahead]:
        """The same by max-product up to each sequence's last missing position. All tokens behind it are known, and their states stay
        marginalised."""
        ahead: list[_Ahead] = []
        for t in range(self._last, self._first - 1, -1):
            pause()
            summed = self._ahead[t - self._first]
            move, anew = summed.log_move, summed.log_anew
            if ahead:
                within = t < self._row_last
                best_move, best_anew = self._step_back(t, self._kind[:, t + 1], ahead[-1].log_future, _BEST)
                move = torch.where(within[:, None], best_move, move)
                anew = torch.where(within, best_anew, anew)
            moving, ending = self._token_factors(t, self._log_best_word)
            ahead.append(_Ahead(torch.maximum(moving + move, ending + anew[:, None]), move, anew))
        return ahead[::-1]

    def _step_back(
        self, t: int, after: Int[Tensor, " B"], following: Float[Tensor, "B V"], algebra: _Algebra
    ) -> tuple[Float[Tensor, "B W"], Float[Tensor, " B"]]:
        """v_t and s_t from G_t+1."""
        move = self._moves.pull(self._kind[:, t], after, following, algebra.of_moves)
        anew = algebra.of_states(self._start_at(after) + following)
        return move, anew.masked_fill(after == ENDED, 0.0)

    def _forward(self, belief: Belief | None) -> list[Float[Tensor, "B W"]]:
        """a_t from the first missing position to the last."""
        kind = self._kind[:, 0]
        past = self._start_at(kind)
        if belief is not None:
            log_probs = belief.log_probs.double()
            moved = self._moves.push(self._tables.support.group_of_word[belief.token], kind, log_probs)
            anew = (belief.token == self._reset)[:, None]
            past = torch.where(anew, past + log_probs.logsumexp(1, keepdim=True), moved)
        kept = []
        for t in range(self._last + 1):
            pause()
            if t >= self._first:
                kept.append(past)
            if t < self._last:
                moving, ending = self._token_factors(t, self._log_word)
                kind = self._kind[:, t + 1]
                moved = self._moves.push(self._kind[:, t], kind, past + moving)
                past = torch.logaddexp(moved, (past + ending).logsumexp(1, keepdim=True) + self._start_at(kind))
        return kept

    def _walk(
        self, rows: Int[Tensor, " N"], ahead: list[_Ahead], pick: Callable[[Tensor], Tensor]
    ) -> Int[Tensor, "N T"]:
        """From the first missing position to the last, state and token picked by turns."""
        tokens = torch.where(self._batch.within(), self._batch.tokens, -1)[rows]
        state = torch.zeros_like(rows)
        for t in range(self._first, self._last + 1):
            pause()
            here = ((self._row_first[rows] <= t) & (t <= self._row_last[rows])).nonzero()[:, 0]
            if not here.numel():
                continue
            row = rows[here]
            coming, log_past = ahead[t - self._first], self._log_past[t - self._first][row]
            log_future = coming.log_future[row]
            kind, width = self._kind[row, t], log_future.shape[1]
            states = self._moves.states_at(kind, width)
            begins = self._row_first[row] == t
            if not bool(begins.all()):
                log_next = self._tables.transition.log_rows(state[here]).double()
                anew = tokens[here, t - 1] == self._reset
                log_next = torch.where(anew[:, None], self._log_start, log_next).gather(1, states)
                log_past = torch.where(begins[:, None], log_past, log_next)
            places = self._moves.within(kind, width)
            place = pick((log_past + log_future).masked_fill(~places, -torch.inf))
            state[here] = states.gather(1, place[:, None])[:, 0]
            gone = (kind == MISSING).nonzero()[:, 0]
            if not gone.numel():
                continue
            candidates, log_emission = self._words.of(state[here[gone]])
            log_move = coming.log_move[row[gone], place[gone]]
            log_after = torch.where(candidates == self._reset, coming.log_anew[row[gone], None], log_move[:, None])
            log_token = (log_emission.double() + log_after).masked_fill(~self._allowed[candidates], -torch.inf)
            tokens[here[gone], t] = candidates.gather(1, pick(log_token)[:, None])[:, 0]
        return tokens


@torch.no_grad()
def infill(
    tables: Tables,
    batch: Batch,
    missing: Bool[Tensor, "B T"],
    num: int,
    belief: Belief | None = None,
    allowed: Bool[Tensor, " X"] | None = None,
    generator: torch.Generator | None = None,
) -> Infilled:
    """p(missing tokens | the rest): each one's distribution, `num` joint samples, and the best filling."""
    size, num_positions = batch.tokens.shape
    # The texts, and their parts before they are put together.
    what = f"{num:,} fillings for each of {size:,} texts of {num_positions:,} tokens"
    require_drawn(num, 5 * 8 * size * num_positions, what, tables.device)
    infiller = Infiller(tables, batch, missing, belief, allowed)
    if bool(infiller.log_prob.isinf().any()):
        row = int(infiller.log_prob.isinf().nonzero()[0, 0])
        raise ImpossibleTextError(
            f"infill: sequence {row} has probability zero whatever is filled in; leave it out, allow more tokens, "
            "or smooth the tables so that every token is possible"
        )
    rows, positions, probs = infiller.probs()
    every_row = torch.arange(size, device=tables.device)
    samples = infiller.sample(every_row.repeat_interleave(num), generator).view(size, num, num_positions)
    best = infiller.best()
    best_log_prob = filled_log_prob(tables, best, batch.lengths, belief) - infiller.log_prob
    return Infilled(
        infiller.log_prob.to(tables.dtype),
        rows,
        positions,
        probs,
        samples,
        best,
        best_log_prob.clamp(max=0.0).to(tables.dtype),
    )


def without_batch(filled: Infilled) -> Infilled:
    """The answer for one sequence; missing tokens have an axis of their own."""
    return replace(
        filled,
        log_prob=filled.log_prob[0],
        samples=filled.samples[0],
        best=filled.best[0],
        best_log_prob=filled.best_log_prob[0],
    )


def filled_log_prob(
    tables: Tables, filled: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], belief: Belief | None
) -> Float[Tensor, " B"]:
    """log p(the filled texts) in float64."""
    scored = score(tables, Batch(filled.clamp(min=0), lengths), belief)
    return scored.token_log_probs.double().sum(1)
