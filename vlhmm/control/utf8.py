"""Automata over characters turned into automata over the bytes of UTF-8."""

from __future__ import annotations

from typing import Final

import numpy as np
import torch
from jaxtyping import Int

from vlhmm.control.automaton import Automaton
from vlhmm.control.minimise import equal_rows
from vlhmm.control.operations import MAX_STATES_BETWEEN, TooManyStates

# 128 MB of next states, before equal ones are one.
_MAX_CELLS: Final = 1 << 25


def over_bytes(of_characters: Automaton, of_code_point: Int[np.ndarray, " P"]) -> Automaton:
    """The same automaton over UTF-8: its states, each with the nodes of a tree of unfinished characters.

    Of a minimal automaton the result is minimal, as (state, node) pairs are told apart by where they lead, last byte first.
    Between characters, and with so many bytes to come, states accept nothing in common but what a dead state does.
    """
    tree, levels = _utf8_tree(of_code_point, of_characters.num_classes)
    class_of_byte, bytes_of_class = equal_rows(tree.T)
    tree = tree[:, bytes_of_class]
    num_states, num_classes, num_nodes = of_characters.num_states, of_characters.num_classes, len(tree)
    if num_states * tree.size > _MAX_CELLS:
        raise TooManyStates(MAX_STATES_BETWEEN)
    dead = of_characters.dead_state()
    dead, num_found = (num_states, num_states + 1) if dead is None else (dead, num_states)
    # Where each state leads by each entry of the tree: a class, a node, or -1, the last column, which is nothing.
    leads = np.full((num_states, num_classes + num_nodes + 1), dead, dtype=np.int32)
    leads[:, :num_classes] = of_characters.next_state
    found = [np.full((num_found, len(bytes_of_class)), dead, dtype=np.int32)]
    for nodes in levels:
        rows = leads[:, tree[nodes]].reshape(-1, len(bytes_of_class))
        # Together with the dead state's row, which comes first.
        group, first = equal_rows(np.concatenate([found[0][[dead]], rows]))
        leads[:, num_classes + nodes] = np.where(group == 0, dead, num_found + group - 1)[1:].reshape(num_states, -1)
        found.append(rows[first[1:] - 1])
        num_found += len(first) - 1
        if num_found > MAX_STATES_BETWEEN:
            raise TooManyStates(MAX_STATES_BETWEEN)
    found[0][:num_states] = leads[:, tree[0]]
    # A text must not end within a character: only states between characters accept.
    accepting = torch.zeros(num_found, dtype=torch.bool)
    accepting[:num_states] = of_characters.accepting
    next_state = torch.from_numpy(np.concatenate(found)).long()
    return Automaton(torch.from_numpy(class_of_byte), next_state, of_characters.start, accepting)


def _utf8_tree(
    of_code_point: Int[np.ndarray, " P"], num_classes: int
) -> tuple[Int[np.ndarray, "N 256"], list[Int[np.ndarray, " L"]]]:
    """Where each byte leads within a character: to class c as c, to node n as num_classes + n, to nothing as -1.

    Node 0 is the beginning of a character; equal subtrees are one node. Also the other nodes by the bytes that are to come:
    those before the last, before the last two, before the last three.
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
    return tree, np.split(np.arange(1, num_nodes), np.cumsum([len(last_byte), len(second_byte)]))
