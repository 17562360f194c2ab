"""Constraints decided by listing every continuation of a small HMM, in float64."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import torch
from oracle import Oracle

from vlhmm.control.automaton import Automaton


def random_automaton(num_tokens: int, seed: int, num_states: int | None = None) -> Automaton:
    """Complete and deterministic, otherwise anything; sometimes with states that never accept."""
    random = np.random.default_rng(seed)
    states = num_states or int(random.integers(1, 5))
    classes = int(random.integers(1, num_tokens + 1))
    # No class is empty.
    class_of_token = random.permutation([*range(classes), *random.integers(classes, size=num_tokens - classes)])
    return Automaton(
        torch.tensor(class_of_token),
        torch.tensor(random.integers(states, size=(states, classes))),
        int(random.integers(states)),
        torch.tensor(random.random(states) < 0.4),
    )


def continuations(oracle: Oracle, prefix: np.ndarray, length: int) -> dict[tuple[int, ...], float]:
    """p(continuation | prefix) of every continuation of `length` tokens."""
    past = oracle.log_prob(prefix)
    return {
        tokens: math.exp(oracle.log_prob(np.array([*prefix, *tokens], dtype=int)) - past)
        for tokens in product(range(oracle.num_words), repeat=length)
    }


def accepted(oracle: Oracle, automaton: Automaton, prefix: np.ndarray, length: int) -> dict[tuple[int, ...], float]:
    """Those that the automaton accepts."""
    every = continuations(oracle, prefix, length)
    return {tokens: prob for tokens, prob in every.items() if automaton.accepts(tokens)}
