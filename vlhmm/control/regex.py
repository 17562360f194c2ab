"""Regular expressions as automata over the bytes of UTF-8.

Python's own `re` parses the pattern and says which characters a class matches, so the meaning is that of `re.fullmatch`,
Unicode and flags included. What is done here is the automaton: over classes of characters first, which are few, then
over bytes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, lru_cache

# The only parser of Python's syntax there is; it is not documented, so the tests compare with `re.fullmatch`.
from re import _constants, _parser  # type: ignore[attr-defined]
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Int

from vlhmm.control.automaton import Automaton
from vlhmm.control.minimise import equal_rows, minimised
from vlhmm.control.operations import MAX_STATES, TooManyStates, explore, intersection
from vlhmm.control.phrases import WHITE_SPACE
from vlhmm.control.time_limit import check_time
from vlhmm.control.utf8 import over_bytes

_CODE_POINTS: Final = 0x110000
_CHARACTER_FLAGS: Final = re.IGNORECASE | re.ASCII | re.DOTALL
"""Flags that change what a single character matches."""

MAX_PATTERN: Final = 100_000
"""Characters: Python's parser takes about a microsecond for each, and cannot be told to stop."""
MAX_DEPTH: Final = 100
"""Groups may be nested so deep: Python's parser calls itself for each, and how far it gets depends on its version."""
_PARENTHESES: Final = re.compile(r"\\.|\[\^?\]?(?:\\.|[^]\\])*\]|[()]", re.DOTALL)
"""Those that open and close groups, and the escapes and sets that others may hide in."""

_REMEDY: Final = "rewrite it without, or combine constraints with &, | and ~"
_UNSUPPORTED: Final = {
    _constants.ASSERT: "look-around",
    _constants.ASSERT_NOT: "look-around",
    # What (?!) becomes in newer versions of Python.
    _constants.FAILURE: "look-around",
    _constants.GROUPREF: "a reference to a group",
    _constants.GROUPREF_EXISTS: "a reference to a group",
    _constants.ATOMIC_GROUP: "an atomic group",
    _constants.POSSESSIVE_REPEAT: "a possessive repetition",
}
_CATEGORIES: Final = {
    _constants.CATEGORY_DIGIT: r"\d",
    _constants.CATEGORY_NOT_DIGIT: r"\D",
    _constants.CATEGORY_SPACE: r"\s",
    _constants.CATEGORY_NOT_SPACE: r"\S",
    _constants.CATEGORY_WORD: r"\w",
    _constants.CATEGORY_NOT_WORD: r"\W",
}
_START: Final = (_constants.AT_BEGINNING, _constants.AT_BEGINNING_STRING)
_END: Final = (_constants.AT_END, _constants.AT_END_STRING)

Edges = tuple[int, ...]
"""A set of characters: the code points where membership changes."""
_WHITE_SPACE: Final[Edges] = tuple(code for code in range(129) if (code in WHITE_SPACE) != (code - 1 in WHITE_SPACE))


def check_pattern(pattern: str) -> None:
    """Refuses what is no pattern, or none that an automaton can follow."""
    _parsed(pattern)


def pattern_automaton(pattern: str, *, strip: bool = False) -> Automaton:
    """Texts that the pattern matches as a whole; `strip`: once white space at both ends is taken away."""
    nfa = _parsed(pattern)
    classes = _Classes.of([nfa], [_WHITE_SPACE] if strip else [])
    of_characters = _determined(nfa, classes.sets_of_class[0])
    if strip:
        # White space is stripped over characters: over bytes there are several times as many states.
        of_characters = _stripped(of_characters, classes.is_other[0])
    return classes.over_bytes(of_characters)


@dataclass(frozen=True)
class OfCharacters:
    """An automaton over classes of characters."""

    automaton: Automaton
    classes: _Classes

    def class_of(self, code_point: int) -> int:
        """The automaton's class of a character."""
        return int(self.automaton.class_of_token[self.classes.of_code_point[code_point]])

    def over_bytes(self, automaton: Automaton) -> Automaton:
        """An automaton with the classes of this one over bytes; its first states are those of `automaton`."""
        return self.classes.over_bytes(automaton)


def searched(patterns: Sequence[str], apart: Sequence[str], at_least: int, at_most: int | None) -> OfCharacters:
    r"""Texts of so many characters in each of which every pattern is found, as by `re.search`; `\w` and `\d` are of ASCII.

    The characters of each pattern in `apart` have classes of their own.
    """
    everything = f"(?s:.{{{at_least},{'' if at_most is None else at_most}}})"
    nfas = [_parsed(f"(?s:.*)(?a:{pattern})(?s:.*)") for pattern in patterns] + [_parsed(everything)]
    classes = _Classes.of(nfas, [_characters(one, 0) for one in apart])
    parts = [_determined(nfa, sets) for nfa, sets in zip(nfas, classes.sets_of_class, strict=True)]
    both = intersection(parts)
    # One class for each class of characters: minimisation must not merge classes that are to stay distinct.
    every = torch.arange(len(both.class_of_token))
    apart_still = Automaton(every, both.next_state[:, both.class_of_token], both.start, both.accepting)
    return OfCharacters(apart_still, classes)


@dataclass(frozen=True)
class _Classes:
    """Equivalence classes of characters."""

    of_code_point: Int[np.ndarray, " P"]
    sets_of_class: list[list[frozenset[int]]]
    """Of each NFA, the sets that each class is in, by the NFA's numbers."""
    is_other: list[Bool[np.ndarray, " N"]]
    """Of each other set, the classes that are in it."""

    @classmethod
    def of(cls, nfas: Sequence[_Nfa], others: Sequence[Edges]) -> _Classes:
        sets: list[Edges] = []
        begins = []
        for nfa in nfas:
            begins.append(len(sets))
            for one, flags in nfa.sets:
                check_time("sets of characters", len(sets))
                sets.append(_characters(one, flags))
        of_code_point, sets_of_class = _character_classes([*sets, *others])
        own = [
            [
                frozenset(number - begin for number in found if begin <= number < begin + len(nfa.sets))
                for found in sets_of_class
            ]
            for nfa, begin in zip(nfas, begins, strict=True)
        ]
        is_other = [np.array([len(sets) + number in found for found in sets_of_class]) for number in range(len(others))]
        return cls(of_code_point, own, is_other)

    def over_bytes(self, of_characters: Automaton) -> Automaton:
        return over_bytes(of_characters, of_characters.class_of_token.numpy()[self.of_code_point])


@dataclass
class _Nfa:
    """Nodes joined by sets of characters, or by nothing (anywhere, at the start or at the end of the text)."""

    pattern: str
    reads: list[list[tuple[int, int]]] = field(default_factory=list)
    """(number of the set, target) of each node."""
    skips: list[list[tuple[Any, int]]] = field(default_factory=list)
    """(anchor or None, target) of each node."""
    sets: dict[tuple[str, int], int] = field(default_factory=dict)
    """Patterns of single characters and their flags, numbered."""

    def node(self) -> int:
        if len(self.reads) >= MAX_STATES:
            raise TooManyStates
        self.reads.append([])
        self.skips.append([])
        return len(self.reads) - 1

    def add(self, items: Any, flags: int, begin: int) -> int:
        """Adds what the parsed items match after node `begin`; returns the node at its end."""
        for operation, argument in items:
            begin = self._add_one(operation, argument, flags, begin)
        return begin

    def _add_one(self, operation: Any, argument: Any, flags: int, begin: int) -> int:
        if operation in _UNSUPPORTED:
            raise ValueError(
                f"the pattern {self.pattern!r} has {_UNSUPPORTED[operation]}, which no automaton can follow; {_REMEDY}"
            )
        if operation is _constants.SUBPATTERN:
            _, added, removed, items = argument
            if added & _parser.TYPE_FLAGS:
                flags &= ~_parser.TYPE_FLAGS
            return self.add(items, (flags | added) & ~removed, begin)
        if operation is _constants.BRANCH:
            end = self.node()
            for items in argument[1]:
                self.skips[self.add(items, flags, begin)].append((None, end))
            return end
        if operation in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            return self._add_repeat(*_merged_repeats(*argument), flags, begin)
        end = self.node()
        if operation is _constants.AT:
            self.skips[begin].append((self._anchor(argument, flags), end))
        else:
            one = _class_pattern(operation, argument), flags & _CHARACTER_FLAGS
            self.reads[begin].append((self.sets.setdefault(one, len(self.sets)), end))
        return end

    def _add_repeat(self, at_least: int, at_most: int, items: Any, flags: int, begin: int) -> int:
        for _ in range(at_least):
            begin = self._copy(items, flags, begin)
        end = self.node()
        if at_most is _constants.MAXREPEAT:
            # A new node, so that the loop of the repetition does not lead back into the preceding part.
            self.skips[begin].append((None, end))
            self.skips[self._copy(items, flags, end)].append((None, end))
            after = self.node()
            self.skips[end].append((None, after))
            return after
        for _ in range(at_most - at_least):
            self.skips[begin].append((None, end))
            begin = self._copy(items, flags, begin)
        self.skips[begin].append((None, end))
        return end

    def _copy(self, items: Any, flags: int, begin: int) -> int:
        # An empty item would add no node, and repeating it would never reach the limit.
        fresh = self.node()
        self.skips[begin].append((None, fresh))
        return self.add(items, flags, fresh)

    def _anchor(self, anchor: Any, flags: int) -> Any:
        multiline = flags & re.MULTILINE and anchor in (_constants.AT_BEGINNING, _constants.AT_END)
        if multiline or anchor not in (*_START, *_END):
            name = "a line anchor of (?m)" if multiline else r"a word boundary (\b or \B)"
            raise ValueError(f"the pattern {self.pattern!r} has {name}, which is not supported; {_REMEDY}")
        return anchor

    def closure(self, nodes: Iterable[int], anchors: tuple[Any, ...]) -> frozenset[int]:
        """The epsilon closure: nodes that are reached without reading, through these anchors."""
        reached = set(nodes)
        todo = list(reached)
        while todo:
            for anchor, target in self.skips[todo.pop()]:
                if target not in reached and (anchor is None or anchor in anchors):
                    reached.add(target)
                    todo.append(target)
        return frozenset(reached)


def _parsed(pattern: str) -> _Nfa:
    """An NFA from node 0 to node 1."""
    if len(pattern) > MAX_PATTERN:
        raise ValueError(
            f"the pattern has {len(pattern):,} characters, at most {MAX_PATTERN:,} are allowed; "
            "make it smaller, or combine constraints with &, | and ~"
        )
    depth = _depth(pattern)
    if depth > MAX_DEPTH:
        raise ValueError(
            f"groups are nested {depth} deep in a pattern of {len(pattern)} characters, at most {MAX_DEPTH} are allowed; "
            "remove groups that have no effect"
        )
    nfa = _Nfa(pattern)
    begin, end = nfa.node(), nfa.node()
    try:
        parsed = _parser.parse(pattern)
        nfa.skips[nfa.add(parsed, parsed.state.flags, begin)].append((None, end))
    except re.error as error:
        where = (
            "" if error.pos is None else f" at position {error.pos}: {pattern[: error.pos]}⟨here⟩{pattern[error.pos :]}"
        )
        raise ValueError(f"the pattern {pattern!r} is no regular expression: {error.msg}{where}") from None
    except (OverflowError, RecursionError) as error:
        raise ValueError(f"a pattern of {len(pattern)} characters is too large ({error}); make it smaller") from None
    return nfa


def _merged_repeats(at_least: int, at_most: int, items: Any) -> tuple[int, int, Any]:
    """A repetition of a repetition as one, where it means the same: (X{a,b}){c,d} for X{ac,bd}, if no number between is left out."""
    while len(items) == 1:
        operation, argument = items[0]
        if operation is _constants.SUBPATTERN and not argument[1] and not argument[2]:
            items = argument[3]
            continue
        if operation not in (_constants.MAX_REPEAT, _constants.MIN_REPEAT):
            break
        inner_least, inner_most, inner = argument
        # The counts for k and k + 1 rounds must leave no gap; the gap is widest for the smallest k.
        reach = inner_most if inner_most is _constants.MAXREPEAT and at_least else at_least * inner_most
        if at_least < at_most and (at_least + 1) * inner_least > reach + 1:
            break
        unlimited = at_most is _constants.MAXREPEAT or inner_most is _constants.MAXREPEAT
        at_most = _constants.MAXREPEAT if unlimited and at_most and inner_most else at_most * inner_most
        at_least *= inner_least
        items = inner
    return at_least, at_most, items


def _depth(pattern: str) -> int:
    """How deep groups are nested; parentheses in comments count too."""
    depth = deepest = 0
    for found in _PARENTHESES.finditer(pattern):
        depth += (found[0] == "(") - (found[0] == ")")
        deepest = max(deepest, depth)
    return deepest


def _class_pattern(operation: Any, argument: Any) -> str:
    """The pattern of a single character, written again."""
    if operation is _constants.ANY:
        return "."
    if operation is _constants.NOT_LITERAL:
        return f"[^{_escaped(argument)}]"
    if operation is _constants.LITERAL:
        return f"[{_escaped(argument)}]"
    assert operation is _constants.IN, operation
    inside = ""
    for kind, value in argument:
        if kind is _constants.NEGATE:
            inside += "^"
        elif kind is _constants.RANGE:
            inside += f"{_escaped(value[0])}-{_escaped(value[1])}"
        elif kind is _constants.CATEGORY:
            inside += _CATEGORIES[value]
        else:
            inside += _escaped(value)
    return f"[{inside}]"


def _escaped(code_point: int) -> str:
    return f"\\U{code_point:08x}"


@cache
def _every_character() -> str:
    return "".join(map(chr, range(_CODE_POINTS)))


@lru_cache(maxsize=1024)
def _characters(class_pattern: str, flags: int) -> Edges:
    """The characters that `re` finds the pattern to match, under these flags."""
    runs = re.finditer(f"{class_pattern}+", _every_character(), flags)
    return tuple(edge for run in runs for edge in run.span())


def _character_classes(sets: list[Edges]) -> tuple[Int[np.ndarray, " P"], list[frozenset[int]]]:
    """The class of every code point, and the sets that each class is in."""
    begins = np.unique([0, *(edge for edges in sets for edge in edges if edge < _CODE_POINTS)])
    inside = np.zeros((len(begins), len(sets)), dtype=np.int64)
    for number, edges in enumerate(sets):
        inside[:, number] = np.searchsorted(edges, begins, side="right") % 2
    of_interval, first = equal_rows(inside)
    of_code_point = np.repeat(of_interval, np.diff(begins, append=_CODE_POINTS))
    return of_code_point, [frozenset(np.flatnonzero(inside[interval]).tolist()) for interval in first]


def _determined(nfa: _Nfa, sets_of_class: list[frozenset[int]]) -> Automaton:
    """The subset construction, over classes of characters."""
    State = tuple[bool, frozenset[int]]

    def successors(state: State) -> Iterator[State]:
        targets: dict[int, set[int]] = {}
        for node in state[1]:
            for number, target in nfa.reads[node]:
                targets.setdefault(number, set()).add(target)
        # Classes that are in the same of these sets lead to the same nodes.
        after: dict[frozenset[int], State] = {}
        for sets in sets_of_class:
            read = sets.intersection(targets)
            if read not in after:
                after[read] = False, nfa.closure(set().union(*(targets[number] for number in read)), ())
            yield after[read]

    def accepts(state: State) -> bool:
        at_start, nodes = state
        return 1 in nfa.closure(nodes, (*_START, *_END) if at_start else _END)

    return explore((True, nfa.closure([0], _START)), successors, accepts, np.arange(len(sets_of_class)))


def _stripped(automaton: Automaton, is_space: Bool[np.ndarray, " N"]) -> Automaton:
    """Texts that are accepted once white space at both ends is taken away.

    A state is one of the automaton's, with whether the text up to its last character that is no white space is accepted;
    the last state is that of no such character yet.
    """
    class_of_symbol, first = equal_rows(np.column_stack([automaton.class_of_token.numpy(), is_space]))
    space = is_space[first]
    next_state = automaton.next_state.numpy()[:, automaton.class_of_token.numpy()[first]]
    accepting = automaton.accepting.numpy()

    flags = np.arange(2)[:, None]
    after = 2 * next_state[:, None] + np.where(space, flags, accepting[next_state][:, None])
    before = len(next_state) * 2
    from_before = np.where(space, before, 2 * next_state[automaton.start] + accepting[next_state[automaton.start]])
    return minimised(
        Automaton(
            torch.from_numpy(class_of_symbol),
            torch.from_numpy(np.concatenate([after.reshape(before, -1), from_before[None]])),
            before,
            torch.from_numpy(np.append(np.tile([False, True], len(next_state)), accepting[automaton.start])),
        )
    )
