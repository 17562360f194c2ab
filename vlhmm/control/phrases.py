"""Automata over the bytes of text: phrases in order, and counts of words.

A word character is a letter, a digit or `_`. Beyond ASCII the first byte of a character decides, which keeps automata
small: Latin-1 signs (U+0080-00BF), punctuation and symbols (U+2000-2FFF) and everything from U+10000 on (pictographs)
are no word characters, all others are.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Int

from vlhmm.control.automaton import Automaton
from vlhmm.control.operations import explore

# What `str.split` cuts at, as far as ASCII goes.
WHITE_SPACE: Final = frozenset(byte for byte in range(128) if chr(byte).isspace())

_CONTINUATION: Final = range(0x80, 0xC0)
_LEADS_OF_OTHERS: Final = (0xC2, 0xE2, *range(0xF0, 0x100))


def _in_word_after(in_word: bool, byte: int) -> bool:
    """Whether the last character is a word character."""
    if byte < 0x80:
        return chr(byte).isalnum() or byte == ord("_")
    return in_word if byte in _CONTINUATION else byte not in _LEADS_OF_OTHERS


def _is_word_character(character: str) -> bool:
    return _in_word_after(False, character.encode()[0])


class Match(NamedTuple):
    """A way to read the text so far: `found` phrases are complete, and the next one is at `node` of its spelling."""

    found: int
    node: int
    open_ended: bool
    """The last phrase found holds only if no word character follows."""


State = tuple[bool, frozenset[Match]]
"""Whether the last character is a word character, and all ways to read the text."""


class Spelling(NamedTuple):
    """The bytes of a phrase as a graph from node 0 to node `end`; upper and lower case are branches."""

    next_node: dict[tuple[int, int], frozenset[int]]
    bytes_at: list[frozenset[int]]
    """Those that each node reads."""
    end: int
    starts_word: bool
    """No word character may stand before it."""
    ends_word: bool


def _spell(phrase: str, *, whole_words: bool, ignore_case: bool) -> Spelling:
    edges: dict[tuple[int, int], set[int]] = {}
    last, num_nodes = 0, 1
    for character in phrase:
        variants = {character, character.lower(), character.upper()} if ignore_case else {character}
        after, num_nodes = num_nodes, num_nodes + 1
        for variant in sorted(variants):
            node = last
            *body, final = variant.encode()
            for byte in body:
                edges.setdefault((node, byte), set()).add(num_nodes)
                node, num_nodes = num_nodes, num_nodes + 1
            edges.setdefault((node, final), set()).add(after)
        last = after
    bytes_at: list[set[int]] = [set() for _ in range(num_nodes)]
    for node, byte in edges:
        bytes_at[node].add(byte)
    return Spelling(
        {key: frozenset(nodes) for key, nodes in edges.items()},
        [frozenset(bytes_) for bytes_ in bytes_at],
        last,
        whole_words and _is_word_character(phrase[0]),
        whole_words and _is_word_character(phrase[-1]),
    )


def phrases_in_order(
    phrases: tuple[str, ...],
    *,
    whole_words: bool,
    ignore_case: bool,
    at_start: bool = False,
    at_end: bool = False,
) -> Automaton:
    """Texts in which the phrases occur one after the other, without overlap.

    `at_start`: the first phrase begins the text, `at_end`: the last one ends it, white space aside.
    """
    spellings = [_spell(phrase, whole_words=whole_words, ignore_case=ignore_case) for phrase in phrases]
    count = len(spellings)
    done = Match(count, 0, False)

    def searching_on(match: Match, byte: int) -> bool:
        if match.node:
            return False
        anchored = (at_start and match.found == 0) or (at_end and match.found == count)
        return not anchored or byte in WHITE_SPACE

    def read(match: Match, in_word: bool, byte: int) -> Iterator[Match]:
        if searching_on(match, byte):
            yield match
        if match.found == count:
            return
        spelling = spellings[match.found]
        if match.node == 0 and spelling.starts_word and in_word:
            return
        for node in spelling.next_node.get((match.node, byte), ()):
            if node == spelling.end:
                yield Match(match.found + 1, 0, spelling.ends_word)
            else:
                yield Match(match.found, node, match.open_ended)

    def step(state: State, byte: int) -> State:
        in_word, matches = state
        if done in matches and not at_end:
            return state
        in_word_now = _in_word_after(in_word, byte)
        # One character of look-ahead: matches that depended on the next character are now confirmed or dropped.
        held = [
            Match(match.found, match.node, False) if match.open_ended else match
            for match in matches
            if not (match.open_ended and in_word_now)
        ]
        targets = {target for match in held for target in read(match, in_word, byte)}
        # A match with more confirmed phrases dominates all others, which are pruned; but the last phrase may be found again.
        finds = {match.found for match in targets if match.node == 0 and not match.open_ended}
        certain = max(finds - {count} if at_end else finds, default=0)
        if certain == count:
            return False, frozenset({done})
        return in_word_now, frozenset(match for match in targets if match.found >= certain)

    alphabet = {byte for spelling in spellings for _, byte in spelling.next_node}
    # Bytes of one kind are equivalent, except as part of a phrase.
    kinds = [(byte in WHITE_SPACE, *(_in_word_after(before, byte) for before in (False, True))) for byte in range(256)]
    class_of_byte = _numbered([(byte if byte in alphabet else -1, kinds[byte]) for byte in range(256)])
    bytes_of_classes = _first_of_each(class_of_byte)

    def successors(state: State) -> Iterator[State]:
        read_here = {
            byte for match in state[1] if match.found < count for byte in spellings[match.found].bytes_at[match.node]
        }
        after: dict[Hashable, State] = {}
        for byte in bytes_of_classes:
            alike: Hashable = byte if byte in read_here else kinds[byte]
            if alike not in after:
                after[alike] = step(state, byte)
            yield after[alike]

    start = (False, frozenset({Match(0, 0, False)}))
    return explore(start, successors, lambda state: any(match.found == count for match in state[1]), class_of_byte)


def number_of_words(at_least: int, at_most: int | None) -> Automaton:
    """Texts of so many words; words are what white space separates."""
    # The count saturates here: larger counts are equivalent.
    enough = at_least if at_most is None else at_most + 1
    class_of_byte = _numbered([byte in WHITE_SPACE for byte in range(256)])
    bytes_of_classes = _first_of_each(class_of_byte)

    def successors(state: tuple[int, bool]) -> Iterator[tuple[int, bool]]:
        count, inside = state
        for byte in bytes_of_classes:
            yield (count, False) if byte in WHITE_SPACE else (count if inside else min(count + 1, enough), True)

    def accepts(state: tuple[int, bool]) -> bool:
        return at_least <= state[0] and (at_most is None or state[0] <= at_most)

    return explore((0, False), successors, accepts, class_of_byte)


def _numbered(kinds: Sequence[Hashable]) -> Int[np.ndarray, " N"]:
    number = {kind: i for i, kind in enumerate(dict.fromkeys(kinds))}
    return np.array([number[kind] for kind in kinds])


def _first_of_each(class_of_byte: Int[np.ndarray, " N"]) -> list[int]:
    """The first byte of each class."""
    first: list[int] = np.unique(class_of_byte, return_index=True)[1].tolist()
    return first
