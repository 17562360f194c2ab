"""The smallest automaton of a language: states that nothing tells apart become one, and so do classes.

Letters for axes: S automaton states, C classes of tokens, E edges, N rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
import torch
from jaxtyping import Bool, Int, UInt64

from vlhmm.control.automaton import Automaton, Distinct, Incoming, steps_to
from vlhmm.control.time_limit import check_time

CELLS_AT_ONCE: Final = 1 << 18


def minimised(automaton: Automaton) -> Automaton:
    """The minimal automaton: the same language with the fewest states and classes."""
    automaton = _reachable(automaton)
    next_state = automaton.next_state.numpy()
    class_of_class, classes = equal_rows(next_state.T)
    if len(classes) < automaton.num_classes:
        next_state = np.ascontiguousarray(next_state[:, classes])
    block_of_state, states = _equivalent_states(next_state, automaton.accepting.numpy())
    next_block = block_of_state[next_state[states]]
    class_again, classes = equal_rows(next_block.T)
    return Automaton(
        torch.from_numpy(class_again[class_of_class])[automaton.class_of_token],
        torch.from_numpy(np.ascontiguousarray(next_block[:, classes])),
        int(block_of_state[automaton.start]),
        automaton.accepting[torch.from_numpy(states)],
    )


def equal_rows(table: Int[np.ndarray, "N M"]) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " G"]]:
    """Which of G groups of equal rows each row is in, numbered as they first occur; and the first row of each."""
    seed = 0
    while True:
        _, first, group = np.unique(_hashed(table, seed), return_index=True, return_inverse=True)
        # Sorting hashes is many times faster than sorting rows; this comparison detects collisions, so the result is exact.
        others = np.flatnonzero(first[group] != np.arange(len(table)))
        if all(np.array_equal(table[part], table[first[group[part]]]) for part in _parts(others, table.shape[1])):
            return _as_they_occur(group, first)
        seed += 1


def _as_they_occur(
    group: Int[np.ndarray, " N"], first: Int[np.ndarray, " G"]
) -> tuple[Int[np.ndarray, " N"], Int[np.ndarray, " G"]]:
    order = np.argsort(first)
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    return rank[group], first[order]


def _hashed(table: Int[np.ndarray, "N M"], seed: int) -> UInt64[np.ndarray, " N"]:
    """A sum with random odd weights, modulo 2^64."""
    weights = _random(seed, table.shape[1])
    keys = np.empty(len(table), dtype=np.uint64)
    for part in _parts(np.arange(len(table)), table.shape[1]):
        keys[part] = table[part].astype(np.uint64) @ weights
    return keys


def _random(seed: int, size: int) -> UInt64[np.ndarray, " M"]:
    """Odd numbers."""
    return np.random.default_rng(seed).integers(1 << 63, size=size, dtype=np.uint64) * 2 + 1


def _parts(rows: Int[np.ndarray, " N"], width: int) -> Iterator[Int[np.ndarray, " P"]]:
    """A few rows at a time: no second table is made."""
    at_once = 1 + CELLS_AT_ONCE // max(1, width)
    for first in range(0, len(rows), at_once):
        check_time("rows of automaton states compared", len(rows))
        yield rows[first : first + at_once]


def _reachable(automaton: Automaton) -> Automaton:
    """The same automaton without states that nothing leads to and classes that no token is in."""
    used, class_of_token = automaton.class_of_token.unique(return_inverse=True)
    every_class = len(used) == automaton.num_classes
    next_state = (automaton.next_state if every_class else automaton.next_state[:, used]).numpy()
    seen = np.zeros(automaton.num_states, dtype=bool)
    seen[automaton.start] = True
    frontier = np.array([automaton.start])
    distinct = Distinct(automaton.num_states)
    while len(frontier):
        check_time("automaton states to be minimised", automaton.num_states)
        targets = next_state[frontier].ravel()
        frontier = distinct(targets[~seen[targets]])
        seen[frontier] = True
    if seen.all():
        return Automaton(class_of_token, torch.from_numpy(next_state), automaton.start, automaton.accepting)
    # Numbers of the states that are left, in their old order.
    number = np.cumsum(seen) - 1
    return Automaton(
        class_of_token,
        torch.from_numpy(number[next_state[seen]]),
        int(number[automaton.start]),
        automaton.accepting[torch.from_numpy(seen)],
    )


def _equivalent_states(
    next_state: Int[np.ndarray, "S C"], accepting: Bool[np.ndarray, " S"]
) -> tuple[Int[np.ndarray, " S"], Int[np.ndarray, " G"]]:
    """Blocks of states that accept the same, numbered as they first occur; and the first state of each.

    It begins with how far states are from acceptance and from refusal: that spares a round for every step of a count.
    """
    incoming = Incoming(next_state)
    block, _ = equal_rows(np.column_stack([steps_to(accepting, incoming), steps_to(~accepting, incoming)]))
    seed = 0
    while True:
        block = _Refinement(next_state, incoming, block, seed).blocks()
        _, first, group = np.unique(block, return_index=True, return_inverse=True)
        after = group[next_state]
        # Every split is valid, but a hash collision may hide one: then refine again with another seed.
        if np.array_equal(after, after[first[group]]):
            return _as_they_occur(group, first)
        block, seed = group, seed + 1


class _Refinement:
    """Blocks are split by the blocks that their states lead to, until nothing changes.

    As in Hopcroft's algorithm the largest part of a block keeps its number, and only states that lead to one with a new number
    are looked at again: in total O(E log S), and a long chain, such as a count, takes one short round a link.
    The blocks that a state leads to are compared by a hash, a sum over its edges that is kept up to date edge by edge.
    """

    def __init__(
        self, next_state: Int[np.ndarray, "S C"], incoming: Incoming, block: Int[np.ndarray, " S"], seed: int
    ) -> None:
        num_states, num_classes = next_state.shape
        self.weight_of_class, self.value_of_block = np.split(_random(seed, num_classes + num_states), [num_classes])
        self.incoming, self.distinct = incoming, Distinct(num_states)
        self.block = block.copy()
        self.num_blocks = int(block.max()) + 1
        self.size = np.bincount(block, minlength=num_states)
        self.keys = np.zeros(num_states, dtype=np.uint64)
        for column, weight in enumerate(self.weight_of_class):
            self.keys += self.value_of_block[block[next_state[:, column]]] * weight
        # The common key of the settled states of a block, which are not examined again.
        self.settled_key = np.zeros(num_states, dtype=np.uint64)

    def blocks(self) -> Int[np.ndarray, " S"]:
        again = np.arange(len(self.block))
        while len(again):
            check_time("automaton states to be minimised", len(self.block))
            again = self._renumbered(*self._split(again[self.size[self.block[again]] > 1]))
        return self.block

    def _split(self, states: Int[np.ndarray, " N"]) -> tuple[Int[np.ndarray, " M"], Int[np.ndarray, " M"]]:
        """The states that get a new block, and which; all but `states` have the key of their block."""
        if not len(states):
            return states, states
        block, keys = self.block[states], self.keys[states]
        order = np.lexsort((keys, block))
        states, block, keys = states[order], block[order], keys[order]
        # Groups of states with one block and one key, and the blocks they are of, in one order.
        begin = np.flatnonzero(_differs(block) | _differs(keys))
        count = np.diff(begin, append=len(states))
        of_group, key = block[begin], keys[begin]
        first_group = np.flatnonzero(_differs(of_group))
        blocks = of_group[first_group]
        place = np.repeat(np.arange(len(blocks)), np.diff(first_group, append=len(of_group)))
        settled = self.size[blocks] - np.add.reduceat(count, first_group)
        joins = (settled[place] > 0) & (key == self.settled_key[of_group])
        settled += np.add.reduceat(np.where(joins, count, 0), first_group)
        # The largest group keeps the block's number.
        rank = np.lexsort((np.where(joins, 0, count), place))
        largest = rank[np.append(first_group[1:], len(of_group)) - 1]
        keeps = (count[largest] > settled) & ~joins[largest]
        moves = ~joins
        moves[largest[keeps]] = False

        number = np.zeros(len(begin), dtype=np.int64)
        number[moves] = self._new_blocks(count[moves], key[moves])
        moving = np.repeat(moves, count)
        changed, numbers = [states[moving]], [np.repeat(number, count)[moving]]
        leaves = keeps & (settled > 0)
        if leaves.any():
            # Settled states are the minority of their block, so they get the new number: they are found by a scan over all states.
            number_of_block = np.full(len(self.size), -1)
            number_of_block[blocks[leaves]] = self._new_blocks(settled[leaves], self.settled_key[blocks[leaves]])
            new_number = number_of_block[self.block]
            new_number[states[np.repeat(~joins, count)]] = -1
            changed.append(np.flatnonzero(new_number >= 0))
            numbers.append(new_number[changed[-1]])
        self.settled_key[blocks[keeps]] = key[largest[keeps]]
        every, new = np.concatenate(changed), np.concatenate(numbers)
        np.subtract.at(self.size, self.block[every], 1)
        return every, new

    def _new_blocks(self, sizes: Int[np.ndarray, " M"], keys: UInt64[np.ndarray, " M"]) -> Int[np.ndarray, " M"]:
        numbers = self.num_blocks + np.arange(len(sizes))
        self.num_blocks += len(sizes)
        self.size[numbers], self.settled_key[numbers] = sizes, keys
        return numbers

    def _renumbered(self, states: Int[np.ndarray, " M"], numbers: Int[np.ndarray, " M"]) -> Int[np.ndarray, " N"]:
        """Gives the states their new blocks; returns those that lead to one of them, whose keys have changed."""
        change = self.value_of_block[numbers] - self.value_of_block[self.block[states]]
        self.block[states] = numbers
        edges, degree = self.incoming.edges(states)
        source, weight = self.incoming.source[edges], self.weight_of_class[self.incoming.class_[edges]]
        np.add.at(self.keys, source, weight * np.repeat(change, degree))
        return self.distinct(source)


def _differs(values: np.ndarray) -> Bool[np.ndarray, " N"]:
    """From the value before; true for the first."""
    differs = np.ones(len(values), dtype=bool)
    np.not_equal(values[1:], values[:-1], out=differs[1:])
    return differs
