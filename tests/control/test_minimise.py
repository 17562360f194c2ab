"""Minimal automata against a plain partition refinement, on automata with long chains and many equal states."""

import numpy as np
import pytest
import torch

from vlhmm.control import minimise
from vlhmm.control.automaton import Automaton
from vlhmm.control.minimise import equal_rows, minimised


def number_of_futures(automaton: Automaton) -> int:
    """Moore's algorithm by the book, on the states that are reached."""
    next_state = automaton.next_state[:, automaton.class_of_token.unique()].tolist()
    reached, todo = {automaton.start}, [automaton.start]
    while todo:
        new = set(next_state[todo.pop()]) - reached
        reached |= new
        todo += new
    label: dict[int, object] = {state: bool(automaton.accepting[state]) for state in reached}
    while True:
        finer = {state: (label[state], *(label[target] for target in next_state[state])) for state in reached}
        names: dict[object, int] = {}
        numbered = {state: names.setdefault(finer[state], len(names)) for state in sorted(reached)}
        if len(names) == len(set(label.values())):
            return len(names)
        label = dict(numbered)


def large_automaton(seed: int) -> Automaton:
    """Of a few states that were copied, chained, and led astray here and there."""
    random = np.random.default_rng(seed)
    num_states, num_classes = int(random.integers(1, 120)), int(random.integers(1, 5))
    kinds = int(random.integers(1, num_states + 1))
    of_kind = random.integers(kinds, size=(kinds, num_classes))
    kind = random.integers(kinds, size=num_states)
    by_kind = [np.flatnonzero(kind == one) for one in range(kinds)]
    next_state = np.array([[random.choice(by_kind[k]) if len(by_kind[k]) else 0 for k in of_kind[one]] for one in kind])
    chained = random.random(num_states) < random.choice([0, 0.3, 0.9])
    next_state[chained, 0] = (np.flatnonzero(chained) + 1) % num_states
    accepting = (random.random(kinds) < random.choice([0.02, 0.5]))[kind]
    class_of_token = np.append(np.arange(num_classes), random.integers(num_classes, size=2))
    return Automaton(torch.tensor(class_of_token), torch.tensor(next_state), 0, torch.tensor(accepting))


@pytest.mark.parametrize("seed", range(150))
def test_large_automata_have_as_many_states_as_futures(seed: int) -> None:
    automaton = large_automaton(seed)
    small = minimised(automaton)
    assert small.num_states == number_of_futures(automaton)
    random = np.random.default_rng(seed)
    for _ in range(50):
        tokens = random.integers(automaton.num_tokens, size=random.integers(40)).tolist()
        assert small.accepts(tokens) == automaton.accepts(tokens)


def test_equal_hashes_merge_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    random = minimise._random
    monkeypatch.setattr(minimise, "_random", lambda seed, size: random(seed, size) * (seed > 0))
    assert equal_rows(np.array([[1, 2], [3, 4], [1, 2]]))[0].tolist() == [0, 1, 0]
    for seed in range(20):
        automaton = large_automaton(seed)
        assert minimised(automaton).num_states == number_of_futures(automaton)


def test_more_states_than_16_bits_count() -> None:
    # A binary tree of 17 levels whose leaves lead to the root: how deep a text has come is all that counts.
    size = (1 << 17) - 1
    child = 2 * torch.arange(size)[:, None] + torch.tensor([1, 2])
    depth = torch.arange(1, size + 1).double().log2().floor()
    automaton = Automaton(torch.tensor([0, 1]), torch.where(child < size, child, 0), 0, depth == 3)
    small = minimised(automaton)
    assert (small.num_states, small.num_classes) == (17, 1)
    assert [length for length in range(40) if small.accepts(([0, 1] * 20)[:length])] == [3, 20, 37]
