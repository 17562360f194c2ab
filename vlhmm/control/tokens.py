"""The next token under a constraint: N(v) = p(v, constraint met | prefix) and D(v) = p(v | prefix), for every token v.

With a(z) = p(the next token's state is z | prefix), n tokens left and the automaton in state s:

    N(v) = sum over z of a(z) B(z, v) C[n - 1, delta(s, v), z]        D(v) = sum over z of a(z) B(z, v)

Letters for axes: R rows of a batch, S automaton states, C classes of tokens, X tokens, Z states, K states of a token.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.control.layout import NextLogProbs, layout_of
from vlhmm.control.product import CHUNK_BYTES, Lookahead, TransitionMatrix
from vlhmm.tables import Belief, Tables


class ConstrainedTokens:
    """An HMM's tables and a constraint's look-ahead, laid out for one token after the other."""

    def __init__(self, tables: Tables, ahead: Lookahead, transition: TransitionMatrix | None = None) -> None:
        self.tables = tables
        self.ahead = ahead
        self.transition = transition or TransitionMatrix(tables)
        self._class_of_token = ahead.automaton.class_of_token.to(tables.device)
        self._layout = layout_of(tables, ahead)

    @property
    def num_bytes(self) -> int:
        return self.ahead.num_bytes + self.tables.log_emission.numel() * self.tables.log_emission.element_size()

    def log_ahead(self, belief: Belief | None) -> Float[Tensor, "R Z"]:
        """log a(z) after `belief`; without one, of a text's first token, with R = 1."""
        return self.tables.log_start[None] if belief is None else self.transition.log_ahead(belief)

    def log_ahead_after(self, log_ahead: Float[Tensor, "R Z"], tokens: Int[Tensor, " R"]) -> Float[Tensor, "R Z"]:
        """log a(z) one token later. After a token that is impossible by the HMM it is reset to log start."""
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
        return of_class.to(self.tables.device)[:, self._class_of_token]

    def log_met_anew(self, states: Sequence[int], left: int) -> Float[Tensor, "R X"]:
        """log P(the tokens after the next meet the constraint), with the belief reset to the start distribution after it."""
        following = self.ahead.automaton.next_state[list(states)].to(self.tables.device)
        return self.ahead.log_met_anew[left - 1, following][:, self._class_of_token]

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
        """N and D by sums in log space, a few tokens at a time: the slow fallback without underflow."""
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
                met = log_met[self._class_of_token[words, None], cells]
                row_joint.append((log_prob + met).logsumexp(1))
            joint.append(torch.cat(row_joint))
            prob.append(torch.cat(row_prob))
        return NextLogProbs(torch.stack(joint), torch.stack(prob))
