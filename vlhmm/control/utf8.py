"""Automata over characters turned into automata over the bytes of UTF-8."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from jaxtyping import Int

from vlhmm.control.automaton import Automaton
from vlhmm.control.minimise import equal_rows, minimised
from vlhmm.control.operations import MAX_STATES, TooManyStates

# 256 MB of next states, before they are minimised.
_MAX_CELLS: Final = 1 << 25


def over_bytes(of_characters: Automaton, of_code_point: Int[np.ndarray, " P"]) -> Automaton:
    """The same automaton over UTF-8: its states, each with the nodes of a tree of unfinished characters."""
    tree = _utf8_tree(of_code_point, of_characters.num_classes)
    class_of_byte, bytes_of_class = equal_rows(tree.T)
    tree = tree[:, bytes_of_class]
    num_states, num_classes, num_nodes = of_characters.num_states, of_characters.num_classes, len(tree)
    if num_states * tree.size > _MAX_CELLS:
        raise TooManyStates
    dead = num_states * num_nodes
    # A character read to its end leads to the root of its next state; one just begun stays with its state.
    after = of_characters.next_state.numpy()[:, np.clip(tree, 0, num_classes - 1)] * num_nodes
    within = np.arange(num_states)[:, None, None] * num_nodes + (tree - num_classes)
    next_state = np.where(tree < 0, dead, np.where(tree < num_classes, after, within))
    next_state = np.concatenate([next_state.reshape(dead, -1), np.full((1, len(bytes_of_class)), dead)])
    # A text that stops within a character is no text.
    accepting = torch.zeros(dead + 1, dtype=torch.bool)
    accepting[:dead:num_nodes] = of_characters.accepting
    start = of_characters.start * num_nodes
    automaton = minimised(Automaton(torch.from_numpy(class_of_byte), torch.from_numpy(next_state), start, accepting))
    if automaton.num_states > MAX_STATES:
        raise TooManyStates
    return automaton


def _utf8_tree(of_code_point: Int[np.ndarray, " P"], num_classes: int) -> Int[np.ndarray, "N 256"]:
    """Where each byte leads within a character: to class c as c, to node n as num_classes + n, to nothing as -1.

    Node 0 is the beginning of a character; equal subtrees are one node.
    """
    of_code_point = of_code_point.copy()
    # Surrogates are no text.
    of_code_point[0xD800:0xE000] = -1
    # The nodes before the last byte: equal rows of 64 characters are one.
    rows = of_code_point.reshape(-1, 64)
    before_last, first = equal_rows(rows)
    last_byte = rows[first]
    before_last += num_classes + 1
    # The nodes before the last two; three bytes spell no character below U+0800.
    rows = np.where(np.arange(len(before_last)) < 0x800 // 64, -1, before_last).reshape(-1, 64)
    before_second, first = equal_rows(rows)
    second_byte = rows[first]
    before_second += num_classes + 1 + len(last_byte)
    # The nodes before the last three; four bytes spell none below U+10000, nor beyond U+10FFFF.
    first_byte = np.full((5, 64), -1)
    first_byte.reshape(-1)[0x10 : len(before_second)] = before_second[0x10:]

    num_nodes = 1 + len(last_byte) + len(second_byte) + len(first_byte)
    tree = np.full((num_nodes, 256), -1)
    tree[1:, 0x80:0xC0] = np.concatenate([last_byte, second_byte, first_byte])
    tree[0, :0x80] = of_code_point[:0x80]
    tree[0, 0xC2:0xE0] = before_last[2:32]
    tree[0, 0xE0:0xF0] = before_second[:16]
    tree[0, 0xF0:0xF5] = num_classes + num_nodes - 5 + np.arange(5)
    return tree
