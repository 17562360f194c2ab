"""The number of states is chosen by sequences that were held out."""

import math

import pytest
import torch
from test_hmm_bad_input import refused

import vlhmm
from vlhmm.selection import Candidate


def test_the_number_of_states_of_clear_data_is_found():
    """Three states that take turns and each emit a word of their own, now and then another one."""
    truth = vlhmm.HMM.from_probabilities(
        [1 / 3] * 3, [[0, 1, 0], [0, 0, 1], [1, 0, 0]], [[0.9, 0.05, 0.05], [0.05, 0.9, 0.05], [0.05, 0.05, 0.9]]
    )
    data = truth.sample(12, 15, seed=0).tokens
    found = vlhmm.select_num_states(data, [1, 2, 3], folds=3, iterations=25, restarts=1)
    assert found.best.num_states == 3
    assert found.hmm.num_states == 3
    assert [one.num_states for one in found.candidates] == [1, 2, 3]
    assert found.candidates[2].held_out > found.candidates[0].held_out + 0.1
    lines = str(found).splitlines()
    assert len(lines) == 4
    assert lines[3].split()[0] == "3"
    assert lines[3].endswith("<- best")


def test_the_held_out_likelihood_is_that_of_each_fold():
    """With one state and many pseudocounts it can be written down: (c + a) / (n + 3 a)."""
    data = [[0, 1], [2, 2, 0]]
    found = vlhmm.select_num_states(data, [1], folds=2, pseudocount=0.5, dtype=torch.float64).candidates[0]

    def log_p(words, counts):
        return sum(math.log((counts[word] + 0.5) / (sum(counts) + 1.5)) for word in words)

    expected = log_p(data[0], [1, 0, 2]) + log_p(data[1], [1, 1, 0])
    assert math.isclose(found.held_out, expected / 5, rel_tol=1e-9)
    assert math.isclose(found.fit.log_prob, log_p([0, 1, 2, 2, 0], [2, 1, 2]), rel_tol=1e-9)


def test_equal_candidates_go_to_the_fewest_states():
    fit = vlhmm.HMM.random(1, 1).fit([[0]])
    found = vlhmm.selection.Selection((Candidate(3, -1.0, fit), Candidate(2, -1.0, fit), Candidate(4, -2.0, fit)))
    assert found.best.num_states == 2


def test_selection_follows_the_seed():
    data = vlhmm.HMM.random(2, 3, seed=0).sample(6, 8, seed=0).tokens
    one, same, other = (
        vlhmm.select_num_states(data, [2], folds=2, iterations=3, seed=seed).candidates[0].held_out
        for seed in (1, torch.Generator().manual_seed(1), 2)
    )
    assert one == same != other


def test_bad_input_is_refused():
    refused(lambda: vlhmm.select_num_states([[0, 1], [1]], [2], folds=3), "2 sequences", "3 folds")
    refused(lambda: vlhmm.select_num_states([[0, 1], [1]], [], folds=2), "num_states")
    refused(lambda: vlhmm.select_num_states([[0, 1], [1]], [0], folds=2), "num_states", r"\b0\b")
    refused(lambda: vlhmm.select_num_states([[0, 1], [1]], [2], folds=1), "folds", r"\b1\b")
    refused(lambda: vlhmm.select_num_states([[0, 1], [5]], [2], 4, folds=2), r"\b5\b", r"\b3\b")
    with pytest.raises(TypeError, match="iteration"):
        vlhmm.select_num_states([[0, 1], [1]], [2], folds=2, iteration=5)
