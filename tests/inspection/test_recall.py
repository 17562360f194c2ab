"""Perplexity with a bounded memory: every context length against windows that are enumerated one by one."""

from typing import Any

import numpy as np
import pytest
import torch
from kinds import SEEDS, close, every_kind
from oracle import EVERY_KIND, Kind, Oracle, random_hmm
from texts import as_text, result

import vlhmm
from vlhmm.inspection.recall import Recall, Stationary, recall, stationary
from vlhmm.support import dense_support
from vlhmm.tables import Tables
from vlhmm.transitions import TableTransition

LONGEST = 3


def recalled(tables: Tables, ids: Any, begin: np.ndarray, longest: int = LONGEST, streams: int = 1) -> Recall:
    made: Recall = result(recall(tables, as_text(ids), torch.as_tensor(begin), longest, streams))
    return made


def settled(tables: Tables, **options: Any) -> Stationary:
    made: Stationary = result(stationary(tables, torch.ones(tables.num_states), **options))
    return made


def log_prob_from(oracle: Oracle, begin: np.ndarray, ids: np.ndarray) -> float:
    """log p of a window whose first state is drawn from `begin`, over all its paths."""
    joint = np.ones(())
    for position, token in enumerate(ids):
        step = begin if position == 0 else oracle.start if oracle.after_reset(ids, position) else oracle.transition
        joint = joint[..., None] * (step * oracle.emission[:, token])
    return float(np.log(joint.sum()))


@every_kind
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("streams", [1, 3])
def test_each_context_length_is_windows_begun_anew(kind: Kind, seed: int, streams: int) -> None:
    oracle, tables = random_hmm(kind, seed)
    random = np.random.default_rng(seed)
    ids, begin = oracle.sentence(19, random), random.dirichlet(np.ones(oracle.num_states))
    expected = np.zeros(LONGEST + 1)
    for context in range(LONGEST + 1):
        for t in range(LONGEST, len(ids)):
            window = ids[t - context : t + 1]
            expected[context] += log_prob_from(oracle, begin, window)
            expected[context] -= log_prob_from(oracle, begin, window[:-1]) if context else 0.0
    found = recalled(tables, ids, begin, streams=streams)
    assert found.num_tokens == 16
    close(found.log_probs, expected)


def test_without_memory_all_contexts_are_equal() -> None:
    row = np.array([0.2, 0.5, 0.3])
    emission = np.array([[0.7, 0.3], [0.1, 0.9], [0.5, 0.5]])
    hmm = vlhmm.HMM.from_probabilities(row, np.tile(row, (3, 1)), emission, dtype=torch.float64)
    found = recalled(hmm.tables, [0, 1, 1, 0, 1, 0, 0, 1], row).log_probs
    np.testing.assert_allclose(found, float(found[0]))


def test_the_longest_context_is_the_whole_text_where_that_is_all() -> None:
    oracle, tables = random_hmm(Kind("dense", "table", reset=False), 1)
    ids = oracle.sentence(6, np.random.default_rng(0))
    found = recalled(tables, ids, oracle.start, longest=5)
    assert found.num_tokens == 1
    assert float(found.log_probs[5]) == pytest.approx(oracle.token_log_probs(ids)[5], rel=1e-10)


# A chain that hardly ever leaves its states settles in no bounded number of steps.
@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if not kind.ugly], ids=str)
def test_a_step_leaves_the_stationary_distribution_as_it_is(kind: Kind) -> None:
    oracle, tables = random_hmm(kind, 1)
    found = settled(tables, tolerance=1e-12, most=20_000)
    probs = found.probs.numpy()
    resets = np.zeros(len(probs)) if oracle.reset_token is None else oracle.emission[:, oracle.reset_token]
    following = (probs * (1 - resets)) @ oracle.transition + (probs @ resets) * oracle.start
    np.testing.assert_allclose(following, probs, atol=1e-11)
    assert probs.sum() == pytest.approx(1)
    assert found.change <= 1e-12


def test_a_chain_that_alternates_settles_too() -> None:
    hmm = vlhmm.HMM.from_probabilities([1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]], np.eye(2))
    found = result(stationary(hmm.tables, torch.tensor([1.0, 0.0])))
    np.testing.assert_allclose(found.probs, 0.5, atol=1e-3)


@pytest.mark.parametrize(("longest", "message"), [(0, "longest context is 0"), (9, "a longer text than 4")])
def test_contexts_that_the_text_cannot_have_are_refused(longest: int, message: str) -> None:
    _, tables = random_hmm(Kind("dense", "table", reset=False), 1)
    with pytest.raises(ValueError, match=message):
        recalled(tables, [0, 1, 0, 1], np.ones(tables.num_states), longest)


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.ugly], ids=str)
def test_what_is_too_small_for_float64_is_not_lost(kind: Kind) -> None:
    """Also where a text has a probability of 1e-1000: the oracle sums over paths in log space."""
    oracle, tables = random_hmm(kind, 0)
    random = np.random.default_rng(0)
    ids = oracle.rare_sentence(6, random)
    hmm = vlhmm.HMM(tables)
    found = recalled(tables, ids, oracle.start, longest=1).log_probs
    pairs = [ids[t - 1 : t + 1] for t in range(1, len(ids))]
    begun = [float(hmm.log_prob(pair[None]) - hmm.log_prob(pair[None, :1])) for pair in pairs]
    close(found[1], np.array(sum(begun)))
    apart = [float(hmm.log_prob(pair[None, 1:])) for pair in pairs]
    close(found[0], np.array(sum(apart)))


def test_a_state_that_float64_loses_is_not_forgotten() -> None:
    """exp(-500) of a start and exp(-500) of a word: no product of them is a number, and yet it explains all that follows."""
    far = -500.0
    words = torch.tensor([[-0.7, far], [far, -0.7]], dtype=torch.float64)
    rest = torch.log(-torch.expm1(words.logsumexp(0, keepdim=True)))
    stay = torch.tensor([[0.0, -torch.inf], [-torch.inf, 0.0]], dtype=torch.float64)
    tables = Tables(
        dense_support(3, 2), torch.tensor([0.0, far]).double(), TableTransition(stay), torch.cat([words, rest])
    )
    found = recalled(tables, [0, 1, 1, 1, 1], tables.log_start.exp().numpy(), longest=4)
    # After all but the last word: surely state 1, of which the paths are 2 far, not 3.
    assert float(found.log_probs[4]) == pytest.approx(-0.7, rel=1e-9)
