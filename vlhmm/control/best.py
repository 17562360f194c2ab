"""The best text under a constraint: max-product over the pairs of HMM and automaton states.

V[n, s, z] = max over the next n tokens and their states of log p(tokens, states | z), such that s is led to acceptance:

    U[n, s, z'] = max over tokens v of log B(z', v) + V[n - 1, delta(s, v), z']
    V[n, s, z]  = max over z' of log A(z, z') + U[n, s, z']

Letters for axes: N tokens left, S automaton states, C classes of tokens, E edges, X tokens, Z states.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.control.automaton import Automaton
from vlhmm.control.possible import ended_states
from vlhmm.control.product import CHUNK_BYTES
from vlhmm.memory import require_memory
from vlhmm.tables import Tables


@dataclass(frozen=True)
class BestContinuation:
    tokens: list[int]
    states: list[int]
    log_prob: float
    """log p(tokens, states | the past)."""


@torch.no_grad()
def best_constrained(
    tables: Tables,
    automaton: Automaton,
    log_ahead: Float[Tensor, " Z"],
    steps: int,
    *,
    eos_id: int | None = None,
) -> BestContinuation | None:
    """The likeliest tokens with their states that the automaton accepts; None where all have probability zero.

    `log_ahead` is log p(the first token's state | the past). Of `steps` tokens, or with `eos_id` and an automaton made by
    `ending_at` of up to so many: after EOS there are no further tokens, so they add nothing to the score.
    """
    return BestConstrained(tables, automaton, steps, eos_id).text(log_ahead)


class BestConstrained:
    """The table U of a constraint, from which the best text after any past is read."""

    def __init__(self, tables: Tables, automaton: Automaton, steps: int, eos_id: int | None) -> None:
        num_states, device = tables.num_states, tables.device
        require_memory(
            num_states
            * tables.log_emission.element_size()
            * ((steps + 2) * automaton.num_states + automaton.num_classes),
            f"the best of {steps} tokens over {automaton.num_states:,} automaton states x {num_states:,} states",
            "ask for fewer tokens, or for a simpler constraint",
            device,
        )
        self.tables = tables
        self.automaton = automaton
        self.steps = steps
        self.next_state = automaton.next_state.to(device)
        self.log_accepting = torch.where(automaton.accepting.to(device), 0.0, -torch.inf).to(tables.dtype)
        self.ended = (ended_states(automaton) & (eos_id is not None)).to(device)
        self.of_class = self._class_best()
        self.log_reset = self._log_reset()
        # U, from one token left on, and the value after the reset token (a restart from the start distribution).
        self.ahead: list[Float[Tensor, "S Z"]] = []
        self.anew = [self.log_accepting]
        value = self.log_accepting[:, None].expand(-1, num_states)
        for _ in range(steps):
            ahead = self._over_tokens(value)
            self.ahead.append(ahead)
            self.anew.append(torch.where(self.ended, 0.0, (tables.log_start + ahead).amax(1)))
            value = torch.where(self.ended[:, None], 0.0, self._over_states(ahead))

    def text(self, log_ahead: Float[Tensor, " Z"]) -> BestContinuation | None:
        tables, automaton = self.tables, self.automaton
        state = automaton.start
        log_prob = (log_ahead + self.ahead[-1][state]).amax()
        if log_prob.isinf():
            return None
        tokens, states = list[int](), list[int]()
        for left in range(self.steps, 0, -1):
            hidden = int((log_ahead + self.ahead[left - 1][state]).argmax())
            token = self._token(hidden, state, left)
            tokens.append(token)
            states.append(hidden)
            state = int(automaton.next_state[state, automaton.class_of_token[token]])
            if self.ended[state]:
                break
            log_ahead = self._row(hidden) if token != tables.reset_token else tables.log_start
        return BestContinuation(tokens, states, float(log_prob))

    def _token(self, hidden: int, state: int, left: int) -> int:
        """The token that state `hidden` emits on the best way."""
        automaton, reset = self.automaton, self.tables.reset_token
        if left == 1:
            after = self.log_accepting
        else:
            after = torch.where(self.ended, 0.0, (self._row(hidden) + self.ahead[left - 2]).amax(1))
        gains = self.of_class[:, hidden] + after[self.next_state[state]]
        best = int(gains.argmax())
        if reset is not None and self.log_reset is not None:
            following = automaton.next_state[state, automaton.class_of_token[reset]]
            if self.log_reset[hidden] + self.anew[left - 1][following] > gains[best]:
                return reset
        words = (automaton.class_of_token == best).nonzero()[:, 0].to(self.tables.device)
        if reset is not None:
            words = words[words != reset]
        emits = self.tables.support.states_of(words) == hidden
        log_emission = self.tables.log_emission[words].masked_fill(~emits, -torch.inf).amax(1)
        return int(words[log_emission.argmax()])

    def _row(self, hidden: int) -> Float[Tensor, " Z"]:
        return self.tables.transition.log_rows(torch.tensor([hidden], device=self.tables.device))[0]

    def _over_tokens(self, value: Float[Tensor, "S Z"]) -> Float[Tensor, "S Z"]:
        """U from V: a few automaton states at a time, over all classes."""
        num_classes, num_states = self.of_class.shape
        states_at_once = max(1, CHUNK_BYTES // (8 * num_classes * num_states))
        ahead = torch.cat(
            [(value[following] + self.of_class).amax(1) for following in self.next_state.split(states_at_once)]
        )
        reset = self.tables.reset_token
        if reset is None or self.log_reset is None:
            return ahead
        anew = self.anew[-1][self.next_state[:, self.automaton.class_of_token[reset]]]
        return torch.maximum(ahead, self.log_reset + anew[:, None])

    def _over_states(self, ahead: Float[Tensor, "S Z"]) -> Float[Tensor, "S Z"]:
        """V from U: max-plus products, a few rows of the transition at a time."""
        every = torch.arange(self.tables.num_states, device=ahead.device)
        parts = []
        for states in every.split(max(1, CHUNK_BYTES // (8 * ahead.numel()))):
            parts.append((self.tables.transition.log_rows(states)[:, None] + ahead).amax(2).T)
        return torch.cat(parts, dim=1)

    def _class_best(self) -> Float[Tensor, "C Z"]:
        """max of log B(z, v) over the tokens v of each class, the reset token left out."""
        tables, support, device = self.tables, self.tables.support, self.tables.device
        class_of_token = self.automaton.class_of_token.to(device)
        best = tables.log_emission.new_full((self.automaton.num_classes * tables.num_states,), -torch.inf)
        words_at_once = max(1, CHUNK_BYTES // (16 * support.states_per_word))
        for words in torch.arange(tables.num_words, device=device).split(words_at_once):
            log_emission = tables.log_emission[words]
            if tables.reset_token is not None:
                log_emission = log_emission.masked_fill((words == tables.reset_token)[:, None], -torch.inf)
            cell = class_of_token[words, None] * tables.num_states + support.states_of(words)
            best.scatter_reduce_(0, cell.flatten(), log_emission.flatten(), "amax")
        return best.view(self.automaton.num_classes, -1)

    def _log_reset(self) -> Float[Tensor, " Z"] | None:
        """log B(z, reset token)."""
        tables, support = self.tables, self.tables.support
        if tables.reset_token is None:
            return None
        log_reset = torch.full_like(tables.log_start, -torch.inf)
        log_reset[support.states_of_group[support.group_of_word[tables.reset_token]]] = tables.log_emission[
            tables.reset_token
        ]
        return log_reset
