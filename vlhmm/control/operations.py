"""Automata from automata: exploration, intersection and union, complement, minimisation.

The same record serves over tokens and over the 256 bytes of text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Final, TypeVar

import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.control.automaton import Automaton
from vlhmm.control.minimise import minimised
from vlhmm.control.time_limit import REMEDY, check_time

State = TypeVar("State", bound=Hashable)

# The tables of HMM x automaton grow with the number of states: near this limit they would not fit into memory anyway.
MAX_STATES: Final = 20_000
MAX_STATES_BETWEEN: Final = 1 << 17
"""Over bytes, and of a product before it is minimised: tokens are longer, so that what is left of it may be small."""


class TooManyStates(ValueError):
    """An automaton grew beyond its limit."""

    def __init__(self, limit: int = MAX_STATES, needed: int | None = None) -> None:
        number = f"more than {limit:,}" if needed is None else f"{needed:,}, more than {limit:,}"
        super().__init__(f"the constraint needs {number} automaton states; {REMEDY}")


def explore(
    start: State,
    successors: Callable[[State], Iterable[State]],
    accepts: Callable[[State], bool],
    class_of_symbol: Int[np.ndarray, " X"],
) -> Automaton:
    """The minimal automaton of the states that are reached; `successors` are those that each class in turn leads to."""
    number = {start: 0}
    states = [start]
    next_state: list[list[int]] = []
    accepting: list[bool] = []
    for state in states:
        check_time("automaton states found", len(states))
        row = []
        for target in successors(state):
            if target not in number:
                number[target] = len(states)
                states.append(target)
            row.append(number[target])
        next_state.append(row)
        accepting.append(accepts(state))
        if len(states) > MAX_STATES:
            raise TooManyStates
    return minimised(
        Automaton(
            torch.from_numpy(class_of_symbol.astype(np.int64)),
            torch.tensor(next_state),
            0,
            torch.tensor(accepting),
        )
    )


def intersection(automata: Sequence[Automaton]) -> Automaton:
    """Accepts what all of them accept."""
    return _folded(automata, torch.logical_and)


def union(automata: Sequence[Automaton]) -> Automaton:
    """Accepts what any of them accepts."""
    return _folded(automata, torch.logical_or)


def complement(automaton: Automaton) -> Automaton:
    """Accepts what the automaton does not."""
    return Automaton(automaton.class_of_token, automaton.next_state, automaton.start, ~automaton.accepting)


def _folded(automata: Sequence[Automaton], combine: Callable[[Tensor, Tensor], Tensor]) -> Automaton:
    """A balanced tree of products: large products come last, between automata that are already minimal."""
    automata = list(automata)
    while len(automata) > 1:
        pairs = [_product(first, second, combine) for first, second in zip(automata[::2], automata[1::2], strict=False)]
        automata = pairs + automata[len(pairs) * 2 :]
    return automata[0]


def _product(first: Automaton, second: Automaton, combine: Callable[[Tensor, Tensor], Tensor]) -> Automaton:
    """The minimal automaton of the reachable pairs of states."""
    # Only the pairs of classes that some symbol is in.
    pair_of_symbol = first.class_of_token.numpy() * second.num_classes + second.class_of_token.numpy()
    class_pairs, class_of_symbol = np.unique(pair_of_symbol, return_inverse=True)
    next_first = first.next_state.numpy()[:, class_pairs // second.num_classes]
    next_second = second.next_state.numpy()[:, class_pairs % second.num_classes]

    start = first.start * second.num_states + second.start
    frontier = np.array([start])
    reached = {start}
    while len(frontier):
        check_time("pairs of automaton states found", len(reached))
        targets = next_first[frontier // second.num_states] * second.num_states
        targets += next_second[frontier % second.num_states]
        frontier = np.array([pair for pair in np.unique(targets).tolist() if pair not in reached], dtype=np.int64)
        reached.update(frontier.tolist())
        if len(reached) > MAX_STATES_BETWEEN:
            raise TooManyStates(MAX_STATES_BETWEEN)
    pairs = np.array(sorted(reached))
    of_first, of_second = pairs // second.num_states, pairs % second.num_states
    next_pair = next_first[of_first] * second.num_states + next_second[of_second]
    return minimised(
        Automaton(
            torch.from_numpy(class_of_symbol.astype(np.int64)),
            torch.from_numpy(np.searchsorted(pairs, next_pair)),
            int(np.searchsorted(pairs, start)),
            combine(first.accepting[torch.from_numpy(of_first)], second.accepting[torch.from_numpy(of_second)]),
        )
    )
