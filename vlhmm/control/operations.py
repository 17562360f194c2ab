"""Automata from automata: exploration, intersection and union, complement, minimisation.

The same record serves over tokens and over the 256 bytes of text.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Final, TypeVar

import numpy as np
import torch
from jaxtyping import Int, UInt64
from torch import Tensor

from vlhmm.control.automaton import Automaton

State = TypeVar("State", bound=Hashable)

# Tables of the product with an HMM grow with the states, so a constraint near this limit is of no use anyway.
MAX_STATES: Final = 20_000


class TooManyStates(ValueError):
    """An automaton grew beyond `MAX_STATES`."""

    def __init__(self) -> None:
        super().__init__(
            f"the constraint needs more than {MAX_STATES:,} automaton states; use fewer or shorter phrases, "
            "smaller counts, or a regular expression without long counted repetitions"
        )


def explore(
    start: State,
    step: Callable[[State, int], State],
    accepts: Callable[[State], bool],
    class_of_symbol: Int[np.ndarray, " X"],
) -> Automaton:
    """The minimal automaton of the states that `step` reaches; it is called with the first symbol of each class."""
    _, symbols = np.unique(class_of_symbol, return_index=True)
    number = {start: 0}
    states = [start]
    next_state: list[list[int]] = []
    for state in states:
        row = []
        for symbol in symbols.tolist():
            target = step(state, symbol)
            if target not in number:
                number[target] = len(states)
                states.append(target)
            row.append(number[target])
        next_state.append(row)
        if len(states) > MAX_STATES:
            raise TooManyStates
    return minimised(
        Automaton(
            torch.from_numpy(class_of_symbol.astype(np.int64)),
            torch.tensor(next_state),
            0,
            torch.tensor([accepts(state) for state in states]),
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


def minimised(automaton: Automaton) -> Automaton:
    """The same language with the fewest states and classes."""
    automaton = _reachable(automaton)
    next_state = automaton.next_state.numpy()
    block_of_state, states = _equivalent_states(automaton)
    next_block = block_of_state[next_state[states]]
    class_of_class, classes = equal_rows(next_block.T)
    return Automaton(
        torch.from_numpy(class_of_class)[automaton.class_of_token],
        torch.from_numpy(np.ascontiguousarray(next_block[:, classes])),
        int(block_of_state[automaton.start]),
        automaton.accepting[torch.from_numpy(states)],
    )


def equal_rows(table: Int[np.ndarray, "N M"]) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " G"]]:
    """Which of G groups of equal rows each row is in, numbered as they first occur; and the first row of each."""
    seed = 0
    while True:
        keys = _hashed(table, seed)
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        # Sorting hashes is many times faster than sorting rows; this comparison makes it exact.
        if np.array_equal(table, table[first[group]]):
            break
        seed += 1
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[group], first[order]


def _hashed(table: Int[np.ndarray, "N M"], seed: int) -> UInt64[np.ndarray, " N"]:
    weights = np.random.default_rng(seed).integers(1 << 63, size=(2, table.shape[1]), dtype=np.uint64) * 2 + 1
    keys = np.zeros(len(table), dtype=np.uint64)
    # Column by column: no second table of 64-bit numbers.
    for column in range(table.shape[1]):
        mixed = (table[:, column].astype(np.uint64) + weights[0, column]) * weights[1, column]
        keys += (mixed ^ (mixed >> np.uint64(29))) * weights[0, column]
    return keys


def _folded(automata: Sequence[Automaton], combine: Callable[[Tensor, Tensor], Tensor]) -> Automaton:
    """Pairwise and then pairs of pairs: the large products come last, of automata already minimal."""
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
        targets = next_first[frontier // second.num_states] * second.num_states
        targets += next_second[frontier % second.num_states]
        frontier = np.array([pair for pair in np.unique(targets).tolist() if pair not in reached], dtype=np.int64)
        reached.update(frontier.tolist())
        if len(reached) > MAX_STATES:
            raise TooManyStates
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


def _reachable(automaton: Automaton) -> Automaton:
    """The same automaton without states that nothing leads to and classes that no token is in."""
    used, class_of_token = automaton.class_of_token.unique(return_inverse=True)
    next_state = automaton.next_state[:, used].numpy()
    seen = np.zeros(automaton.num_states, dtype=bool)
    seen[automaton.start] = True
    frontier = np.array([automaton.start])
    while len(frontier):
        targets = np.unique(next_state[frontier])
        frontier = targets[~seen[targets]]
        seen[frontier] = True
    # Numbers of the states that are left, in their old order.
    number = np.cumsum(seen) - 1
    return Automaton(
        class_of_token,
        torch.from_numpy(number[next_state[seen]]),
        int(number[automaton.start]),
        automaton.accepting[torch.from_numpy(seen)],
    )


def _equivalent_states(automaton: Automaton) -> tuple[Int[np.ndarray, " S"], Int[np.ndarray, " G"]]:
    """Moore's refinement: blocks of states, split by where each class leads until nothing changes; the first of each.

    It begins with how far states are from acceptance and from refusal: that spares a round for every step of a count.
    """
    next_state = automaton.next_state.numpy()
    distances = torch.stack([automaton.shortest(), complement(automaton).shortest()], dim=1)
    block_of_state, first = equal_rows(distances.nan_to_num(posinf=-1).long().numpy())
    while True:
        finer, first_of_finer = equal_rows(np.column_stack([block_of_state, block_of_state[next_state]]))
        if len(first_of_finer) == len(first):
            return block_of_state, first
        block_of_state, first = finer, first_of_finer
