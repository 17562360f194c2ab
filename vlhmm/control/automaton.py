"""Deterministic automata over tokens: what a constraint is once a tokenizer is known.

Letters for axes: S automaton states, C classes of tokens, X tokens.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable
from dataclasses import dataclass
from typing import SupportsIndex

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.control.time_limit import check_time


@dataclass(frozen=True)
class Automaton:
    """A deterministic, complete finite automaton over token ids; all tensors are on the CPU.

    Tokens that no state distinguishes share a class, so the table has C columns and not one for every token.

    Example:
        >>> from vlhmm.control import Automaton
        >>> classes, table = torch.tensor([0, 1, 1]), torch.tensor([[1, 0], [1, 1]])
        >>> contains_0 = Automaton(classes, table, start=0, accepting=torch.tensor([False, True]))
        >>> contains_0.accepts([1, 0, 2]), contains_0.accepts([1, 2])
        (True, False)
    """

    class_of_token: Int[Tensor, " X"]
    """The class of each token."""
    next_state: Int[Tensor, "S C"]
    """The state after a state has read a token of a class."""
    start: int
    """The initial state."""
    accepting: Bool[Tensor, " S"]
    """Whether a text may stop in each state."""

    @property
    def num_states(self) -> int:
        """Number of states of the automaton, S."""
        return self.next_state.shape[0]

    @property
    def num_classes(self) -> int:
        """Number of classes of tokens, C."""
        return self.next_state.shape[1]

    @property
    def num_tokens(self) -> int:
        """Size of the vocabulary, X."""
        return self.class_of_token.shape[0]

    def run(self, tokens: Iterable[SupportsIndex], state: int | None = None) -> int:
        """Return the state after reading `tokens`.

        Args:
            tokens: Token ids.
            state: Where to begin; None: the initial state.

        Returns:
            The state.

        Raises:
            ValueError: A token id is out of range.

        Example:
            >>> from vlhmm.control import Automaton
            >>> classes, table = torch.tensor([0, 1, 1]), torch.tensor([[1, 0], [1, 1]])
            >>> contains_0 = Automaton(classes, table, start=0, accepting=torch.tensor([False, True]))
            >>> contains_0.run([1, 2]), contains_0.run([1, 0])
            (0, 1)
        """
        class_of_token, next_state = self.class_of_token.numpy(), self.next_state.numpy()
        current = self.start if state is None else state
        for token in map(operator.index, tokens):
            if not 0 <= token < self.num_tokens:
                raise ValueError(
                    f"token id {token} is outside 0..{self.num_tokens - 1}; "
                    "compile the constraint with the tokenizer that made these ids"
                )
            current = int(next_state[current, class_of_token[token]])
        return current

    def accepts(self, tokens: Iterable[SupportsIndex]) -> bool:
        """Return whether the sequence of tokens is accepted.

        Args:
            tokens: Token ids.

        Returns:
            Whether the state after the last token accepts.

        Raises:
            ValueError: A token id is out of range.

        Example:
            >>> from vlhmm.control import Automaton
            >>> classes, table = torch.tensor([0, 1, 1]), torch.tensor([[1, 0], [1, 1]])
            >>> contains_0 = Automaton(classes, table, start=0, accepting=torch.tensor([False, True]))
            >>> contains_0.accepts([2, 0])
            True
        """
        return bool(self.accepting[self.run(tokens)])

    def shortest(self) -> Float[Tensor, " S"]:
        """Compute the smallest number of tokens from each state to an accepting one.

        Returns:
            Numbers of tokens (S,), infinity where no accepting state can be reached.

        Example:
            >>> from vlhmm.control import Automaton
            >>> classes, table = torch.tensor([0, 1, 1]), torch.tensor([[1, 0], [1, 1]])
            >>> contains_0 = Automaton(classes, table, start=0, accepting=torch.tensor([False, True]))
            >>> contains_0.shortest()
            tensor([1., 0.])
        """
        next_state = self.next_state[:, self.class_of_token.unique()]
        steps = torch.from_numpy(steps_to(self.accepting.numpy(), Incoming(next_state.numpy())))
        return torch.where(steps < 0, torch.inf, steps.float())

    @property
    def is_empty(self) -> bool:
        """Whether no sequence of tokens is accepted."""
        return bool(self.shortest()[self.start].isinf())

    def ending_at(self, eos_id: int, *, required: bool) -> Automaton:
        """Return the automaton of texts that end at EOS, which gets a class of its own.

        From a state that accepts, EOS leads to a new, absorbing state that accepts; from any other, to a dead one.

        Args:
            eos_id: The EOS token.
            required: Only texts that end at EOS are accepted. Without it a text may also be cut off in a state that accepts.

        Returns:
            A new automaton.

        Raises:
            ValueError: `eos_id` is not in the vocabulary.

        Example:
            >>> from vlhmm.control import Automaton
            >>> classes, table = torch.tensor([0, 1, 1]), torch.tensor([[1, 0], [1, 1]])
            >>> contains_0 = Automaton(classes, table, start=0, accepting=torch.tensor([False, True]))
            >>> ended = contains_0.ending_at(2, required=True)
            >>> ended.accepts([1, 0]), ended.accepts([1, 0, 2])
            (False, True)
        """
        if not 0 <= eos_id < self.num_tokens:
            raise ValueError(
                f"the end-of-text token is {eos_id}, outside 0..{self.num_tokens - 1}; compile with its own tokenizer"
            )
        others = torch.arange(self.num_tokens) != eos_id
        kept, class_of_other = self.class_of_token[others].unique(return_inverse=True)
        class_of_token = torch.full((self.num_tokens,), len(kept))
        class_of_token[others] = class_of_other

        ended, dead = self.num_states, self.dead_state()
        if dead is None:
            dead = self.num_states + 1
        num_states = max(ended, dead) + 1
        # New states stay where they are.
        next_state = torch.arange(num_states)[:, None].repeat(1, len(kept) + 1)
        next_state[: self.num_states, :-1] = self.next_state[:, kept]
        next_state[: self.num_states, -1] = torch.where(self.accepting, ended, dead)
        accepting = torch.zeros(num_states, dtype=torch.bool)
        if not required:
            accepting[: self.num_states] = self.accepting
        accepting[ended] = True
        return Automaton(class_of_token, next_state, self.start, accepting)

    def dead_state(self) -> int | None:
        """Find a state that is never left and does not accept.

        Returns:
            Its number; None: there is no such state.

        Example:
            >>> from vlhmm.control import Automaton
            >>> classes, table = torch.tensor([0, 1]), torch.tensor([[1, 0], [1, 1]])
            >>> Automaton(classes, table, start=0, accepting=torch.tensor([True, False])).dead_state()
            1
        """
        stays = (self.next_state == torch.arange(self.num_states)[:, None]).all(dim=1)
        dead = (stays & ~self.accepting).nonzero()
        return int(dead[0]) if len(dead) else None


class Incoming:
    """The edges that lead to each state, those of one state after those of another."""

    def __init__(self, next_state: Int[np.ndarray, "S C"]) -> None:
        num_states, num_classes = next_state.shape
        target = next_state.ravel()
        # Numpy sorts 16 bits at a time in linear time.
        order = np.argsort((target & 0xFFFF).astype(np.uint16), kind="stable")
        if num_states > 1 << 16:
            order = order[np.argsort((target[order] >> 16).astype(np.uint16), kind="stable")]
        self.source, self.class_ = np.divmod(order.astype(np.int32), np.int32(num_classes))
        """Where each edge comes from, and the class that it reads."""
        self._end = np.bincount(target, minlength=num_states).cumsum()
        self._degree = np.diff(self._end, prepend=0)

    @property
    def num_states(self) -> int:
        return len(self._end)

    def edges(self, states: Int[np.ndarray, " N"]) -> tuple[Int[np.ndarray, " E"], Int[np.ndarray, " N"]]:
        """Those that lead to `states`, one state after the other, and how many to each."""
        degree, end = self._degree[states], self._end[states]
        if len(states) == 1:
            return np.arange(end[0] - degree[0], end[0]), degree
        return np.repeat(end - degree.cumsum(), degree) + np.arange(degree.sum()), degree


def steps_to(goal: Bool[np.ndarray, " S"], incoming: Incoming) -> Int[np.ndarray, " S"]:
    """The least number of edges from each state to one of `goal`; -1 where none lead there."""
    steps = np.where(goal, 0, -1)
    frontier, distance, distinct = np.flatnonzero(goal), 0, Distinct(incoming.num_states)
    while len(frontier):
        check_time("automaton states to be searched", incoming.num_states)
        distance += 1
        source = incoming.source[incoming.edges(frontier)[0]]
        frontier = distinct(source[steps[source] < 0])
        steps[frontier] = distance
    return steps


class Distinct:
    """Each of some states once, in any order; for few of many, faster than sorting."""

    def __init__(self, num_states: int) -> None:
        self._place = np.empty(num_states, dtype=np.int64)

    def __call__(self, states: Int[np.ndarray, " N"]) -> Int[np.ndarray, " M"]:
        every = np.arange(len(states))
        # Of several writes to one place exactly one wins, so each distinct value is found once.
        self._place[states] = every
        kept: Int[np.ndarray, " M"] = states[self._place[states] == every]
        return kept
