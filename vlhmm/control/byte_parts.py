"""Automata over bytes put together from parts: byte strings, alternatives, repetitions, and automata themselves.

A part is a function that adds nodes to a nondeterministic automaton after a given node and returns the node at its end. It
leads nothing back to the node where it begins. None is the part that no text matches.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
import torch

from vlhmm.control.automaton import Automaton
from vlhmm.control.minimise import equal_rows, minimised
from vlhmm.control.operations import MAX_STATES_BETWEEN, TooManyStates, explore
from vlhmm.control.time_limit import check_time

Bytes = frozenset[int]


class Nodes:
    """Nodes joined by sets of bytes, or by nothing."""

    def __init__(self) -> None:
        self.reads: list[list[tuple[Bytes, int]]] = []
        """(bytes, target) of each node."""
        self.skips: list[list[int]] = []

    def new(self) -> int:
        if len(self.reads) >= MAX_STATES_BETWEEN:
            raise TooManyStates(MAX_STATES_BETWEEN)
        if len(self.reads) % 1024 == 0:
            check_time("nodes of the automaton", len(self.reads))
        self.reads.append([])
        self.skips.append([])
        return len(self.reads) - 1

    def closure(self, node: int) -> frozenset[int]:
        """The epsilon closure, restricted to nodes that read a byte or have no outgoing edge."""
        reached = {node}
        todo = [node]
        while todo:
            for target in self.skips[todo.pop()]:
                if target not in reached:
                    reached.add(target)
                    todo.append(target)
        return frozenset(node for node in reached if self.reads[node] or not self.skips[node])


Part = Callable[[Nodes, int], int]


def literal(text: str) -> Part:
    """This text alone."""

    def add(nodes: Nodes, begin: int) -> int:
        for byte in text.encode():
            end = nodes.new()
            nodes.reads[begin].append((frozenset([byte]), end))
            begin = end
        return begin

    return add


def byte_of(*sets: Iterable[int]) -> Part:
    """A byte of each set, one after the other."""

    def add(nodes: Nodes, begin: int) -> int:
        for some in sets:
            end = nodes.new()
            nodes.reads[begin].append((frozenset(some), end))
            begin = end
        return begin

    return add


def sequence(*parts: Part | None) -> Part | None:
    """One after the other."""
    every = [part for part in parts if part is not None]
    if len(every) < len(parts):
        return None

    def add(nodes: Nodes, begin: int) -> int:
        for part in every:
            begin = part(nodes, begin)
        return begin

    return add


def one_of(parts: Iterable[Part | None]) -> Part | None:
    """Any of them."""
    every = [part for part in parts if part is not None]
    if not every:
        return None

    def add(nodes: Nodes, begin: int) -> int:
        ends = [part(nodes, begin) for part in every]
        end = nodes.new()
        for one in ends:
            nodes.skips[one].append(end)
        return end

    return add


def repeated(part: Part | None, at_least: int, at_most: int | None, between: Part | None = None) -> Part | None:
    """So many times, None for any number; `between` stands between two."""
    if at_most is not None and at_most < at_least:
        return None
    if part is None or at_most == 0:
        return literal("") if at_least == 0 else None
    between = between or literal("")

    def add(nodes: Nodes, begin: int) -> int:
        end = nodes.new()
        if at_least == 0:
            nodes.skips[begin].append(end)
        for number in range(max(at_least, 1) if at_most is None else at_most):
            # A new node, so that the loop of the repetition does not lead back into the preceding part.
            first = nodes.new()
            nodes.skips[begin if number == 0 else between(nodes, begin)].append(first)
            begin = part(nodes, first)
            if number + 1 >= at_least:
                nodes.skips[begin].append(end)
        if at_most is None:
            nodes.skips[between(nodes, begin)].append(first)
        return end

    return add


def optional(part: Part | None) -> Part | None:
    """The part, or nothing."""
    return repeated(part, 0, 1)


def automaton(make: Callable[[], Automaton]) -> Part:
    """What an automaton over bytes accepts."""

    def add(nodes: Nodes, begin: int) -> int:
        end = nodes.new()
        embedded(nodes, begin, end, make())
        return end

    return add


def embedded(nodes: Nodes, begin: int, end: int, of_bytes: Automaton) -> list[int]:
    """Adds an automaton between two nodes; returns the node of each of its states."""
    dead = of_bytes.dead_state()
    bytes_of_class: list[list[int]] = [[] for _ in range(of_bytes.num_classes)]
    for byte, class_ in enumerate(of_bytes.class_of_token.tolist()):
        bytes_of_class[class_].append(byte)
    node_of = [nodes.new() for _ in range(of_bytes.num_states)]
    nodes.skips[begin].append(node_of[of_bytes.start])
    sets: dict[Bytes, Bytes] = {}
    for node, row, accepts in zip(node_of, of_bytes.next_state.tolist(), of_bytes.accepting.tolist(), strict=True):
        if accepts:
            nodes.skips[node].append(end)
        bytes_to: dict[int, list[int]] = {}
        for class_, target in enumerate(row):
            if target != dead:
                bytes_to.setdefault(target, []).extend(bytes_of_class[class_])
        for target, found in bytes_to.items():
            some = frozenset(found)
            nodes.reads[node].append((sets.setdefault(some, some), node_of[target]))
    return node_of


def compiled(part: Part | None) -> Automaton:
    """The minimal automaton of the texts that the part matches."""
    nodes = Nodes()
    begin = nodes.new()
    end = nodes.new()
    if part is not None:
        nodes.skips[part(nodes, begin)].append(end)
    number_of: dict[Bytes, int] = {}
    for reads in nodes.reads:
        for some, _ in reads:
            number_of.setdefault(some, len(number_of))
    inside = np.zeros((256, len(number_of)), dtype=np.int64)
    for some, number in number_of.items():
        inside[list(some), number] = 1
    class_of_byte, first = equal_rows(inside)
    classes_of = {some: np.flatnonzero(inside[first, number]).tolist() for some, number in number_of.items()}
    moves = [[(classes_of[some], target) for some, target in reads] for reads in nodes.reads]
    closures: dict[int, frozenset[int]] = {}
    unions: dict[frozenset[int], frozenset[int]] = {frozenset(): frozenset()}

    def closed(targets: frozenset[int]) -> frozenset[int]:
        if targets not in unions:
            for target in targets:
                if target not in closures:
                    closures[target] = nodes.closure(target)
            unions[targets] = frozenset().union(*(closures[target] for target in targets))
        return unions[targets]

    def successors(state: frozenset[int]) -> Iterator[frozenset[int]]:
        targets: list[set[int] | tuple[()]] = [()] * len(first)
        for node in state:
            for classes, target in moves[node]:
                for class_ in classes:
                    targets[class_] = {target}.union(targets[class_])
        return (closed(frozenset(found)) for found in targets)

    return explore(closed(frozenset([begin])), successors, lambda state: end in state, class_of_byte)


def texts(some: Sequence[str]) -> Automaton:
    """The minimal automaton of these texts alone."""
    # A trie, so that common prefixes of ten thousand texts are followed once.
    tree: list[dict[int, int]] = [{}]
    ends: set[int] = set()
    for number, text in enumerate(some):
        if number % 1024 == 0:
            check_time("texts read", number)
        place = 0
        for byte in text.encode():
            if byte not in tree[place]:
                tree[place][byte] = len(tree)
                tree.append({})
            place = tree[place][byte]
        ends.add(place)
        if len(tree) > MAX_STATES_BETWEEN:
            raise TooManyStates(MAX_STATES_BETWEEN)
    # Some bytes are in no UTF-8, so that the last class has one.
    used = sorted({byte for node in tree for byte in node})
    class_of_byte = np.full(256, len(used))
    class_of_byte[used] = np.arange(len(used))
    dead = len(tree)
    next_state = np.full((dead + 1, len(used) + 1), dead)
    for place, node in enumerate(tree):
        for byte, target in node.items():
            next_state[place, class_of_byte[byte]] = target
    accepting = np.zeros(dead + 1, dtype=bool)
    accepting[list(ends)] = True
    return minimised(
        Automaton(torch.from_numpy(class_of_byte), torch.from_numpy(next_state), 0, torch.from_numpy(accepting))
    )
