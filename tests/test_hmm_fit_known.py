"""Fitting with states that are known in part, with probabilities that stay fixed, and with restarts."""

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from kinds import close
from oracle import EVERY_KIND, Kind, Oracle, dense_oracle, log_sum, random_hmm
from test_hmm_bad_input import refused
from test_hmm_fit import every_method

import vlhmm
from vlhmm.inference.errors import ImpossibleTextError

SENTENCES = [[0, 1, 2, 3, 1], [3], [2, 2, 1]]


def log_paths(oracle: Oracle, tokens: np.ndarray, states: list[int]) -> np.ndarray:
    """log p(z, x) of every path, -inf where it is not through the known states."""
    log_joint = oracle.log_joint(tokens).copy()
    for path in itertools.product(range(oracle.num_states), repeat=len(tokens)):
        if any(known not in (-1, state) for known, state in zip(states, path, strict=True)):
            log_joint[path] = -np.inf
    return log_joint


def constrained_counts(oracle: Oracle, tokens: np.ndarray, states: list[int]) -> tuple[np.ndarray, ...]:
    log_joint = log_paths(oracle, tokens, states)
    probs = np.exp(log_joint - log_sum(log_joint.ravel(), axis=0))
    counts = [np.zeros_like(table) for table in (oracle.start, oracle.transition, oracle.emission)]
    for path in itertools.product(range(oracle.num_states), repeat=len(tokens)):
        for t, state in enumerate(path):
            counts[2][state, tokens[t]] += probs[path]
            if oracle.after_reset(tokens, t):
                counts[0][state] += probs[path]
            else:
                counts[1][path[t - 1], state] += probs[path]
    return tuple(counts)


def known_in_part(oracle: Oracle, seed: int) -> Iterator[tuple[np.ndarray, list[int]]]:
    """Sentences, and some states of a path that can emit them."""
    random = np.random.default_rng(seed)
    for length in (4, 1, 3):
        tokens = oracle.sentence(length, random)
        probs = oracle.path_probs(tokens)
        path = np.unravel_index(random.choice(probs.size, p=probs.ravel() / probs.sum()), probs.shape)
        yield tokens, [int(state) if random.random() < 0.6 else -1 for state in path]


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if not kind.ugly][::2], ids=str)
def test_em_counts_are_those_of_the_constrained_paths(kind):
    oracle, tables = random_hmm(kind, seed=31)
    known = list(known_in_part(oracle, 1))
    sentences, states = [list(tokens) for tokens, _ in known], [part for _, part in known]
    fitted = vlhmm.HMM(tables).fit(sentences, states=states, iterations=1)
    expected = sum(log_sum(log_paths(oracle, tokens, part).ravel(), axis=0) for tokens, part in known)
    np.testing.assert_allclose(fitted.log_probs[0], expected, rtol=1e-9)
    after = dense_oracle(fitted.hmm.tables)
    np.testing.assert_allclose(
        fitted.log_prob,
        sum(log_sum(log_paths(after, tokens, part).ravel(), axis=0) for tokens, part in known),
        rtol=1e-9,
        atol=1e-12,
    )
    counts = [sum(parts) for parts in zip(*(constrained_counts(oracle, *one) for one in known), strict=True)]
    before = (oracle.start, oracle.transition, oracle.emission)
    for new, old, count in zip((after.start, after.transition, after.emission), before, counts, strict=True):
        used = count.sum(-1, keepdims=True) > 1e-12
        np.testing.assert_allclose(
            np.where(used, new, 0),
            np.where(used, count / np.where(used, count.sum(-1, keepdims=True), 1), 0),
            atol=1e-9,
        )
        np.testing.assert_allclose(np.where(used, 0, new), np.where(used, 0, old), atol=1e-9)


def test_states_that_are_all_known_are_counted():
    """One step of EM gives the frequencies, in every form that states can be given."""
    hmm = vlhmm.HMM.random(2, 3, dtype=torch.float64)
    tokens, states = [[0, 1, 2], [2, 0]], [[0, 0, 1], [1, 0]]
    padded = ([[0, 1, 2], [2, 0, 0]], [[0, 0, 1], [1, 0, 9]])
    for fitted in (
        hmm.fit(tokens, states=states, iterations=1),
        hmm.fit(padded[0], states=padded[1], lengths=[3, 2], iterations=1),
        hmm.fit(tokens, states=[np.array(row) for row in states], iterations=1),
        hmm.fit([torch.tensor(row) for row in tokens], states=[torch.tensor(row) for row in states], iterations=1),
    ):
        close(fitted.hmm.start, [0.5, 0.5])
        close(fitted.hmm.transition, [[0.5, 0.5], [1.0, 0.0]])
        close(fitted.hmm.emission, [[2 / 3, 1 / 3, 0.0], [0.0, 0.0, 1.0]])
    one = hmm.fit(tokens[0], states=states[0], iterations=1)
    close(one.hmm.start, [1.0, 0.0])


@every_method
def test_unknown_states_are_no_states(options):
    hmm = vlhmm.HMM.random(3, 4, seed=1, dtype=torch.float64)
    nothing = [[-1] * len(sentence) for sentence in SENTENCES]
    plain, same = (hmm.fit(SENTENCES, iterations=3, seed=0, states=states, **options) for states in (None, nothing))
    close(same.hmm.transition, plain.hmm.transition.numpy())
    np.testing.assert_allclose(same.log_probs, plain.log_probs, rtol=1e-12)


@every_method
def test_known_states_raise_the_probability_of_tokens_and_states_together(options):
    hmm = vlhmm.HMM.random(3, 4, seed=1, dtype=torch.float64)
    states = [[0, -1, 2, -1, -1], [1], [-1, -1, 0]]
    fitted = hmm.fit(SENTENCES, states=states, iterations=15, tolerance=-np.inf, seed=0, **options)
    oracle, before = dense_oracle(fitted.hmm.tables), dense_oracle(hmm.tables)
    joint = [
        sum(log_sum(log_paths(one, np.array(x), z).ravel(), axis=0) for x, z in zip(SENTENCES, states, strict=True))
        for one in (before, oracle)
    ]
    np.testing.assert_allclose(fitted.log_prob, joint[1], rtol=1e-9)
    assert joint[1] > joint[0] + 0.5


MASKS = {
    "start": [True, False, False],
    "transition": [[False, True, False], [True, True, True], [False, False, False]],
    "emission": [[False, False, True, True], [False] * 4, [True, True, True, False]],
}


@every_method
def test_fixed_probabilities_stay_bit_for_bit(options):
    hmm = vlhmm.HMM.random(3, 4, seed=5)
    fitted = hmm.fit(SENTENCES, fixed=MASKS, iterations=8, tolerance=-np.inf, seed=0, restarts=1, **options).hmm
    for name, mask in MASKS.items():
        mask = torch.tensor(mask)
        before, after = getattr(hmm, name), getattr(fitted, name)
        assert torch.equal(after[mask], before[mask])
        torch.testing.assert_close(after.sum(-1), torch.ones(after.shape[:-1]), rtol=1e-5, atol=1e-5)
        assert not torch.equal(after[~mask], before[~mask])


def test_the_m_step_with_fixed_probabilities_is_the_best_of_a_grid():
    """Under a fixed 0.3 the free two share 0.7 as their counts say: p = 0.7 c / (c + c')."""
    hmm = vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[0.3, 0.5, 0.2]], dtype=torch.float64)
    fitted = hmm.fit([[0, 0, 0, 1, 2, 2, 2]], fixed={"emission": [[True, False, False]]}, iterations=1).hmm
    close(fitted.emission, [[0.3, 0.7 / 4, 0.7 * 3 / 4]])
    grid = [
        vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[0.3, p, 0.7 - p]], dtype=torch.float64).log_prob(
            [0, 0, 0, 1, 2, 2, 2]
        )
        for p in np.linspace(0.01, 0.69, 137)
    ]
    assert fitted.log_prob([0, 0, 0, 1, 2, 2, 2]) >= max(grid)


@every_method
def test_zeros_stay_zeros_with_restarts(options):
    transition = [[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]]
    emission = [[0.5, 0.5, 0.0, 0.0], [0.25] * 4, [0.0, 0.2, 0.4, 0.4]]
    hmm = vlhmm.HMM.from_probabilities([0.5, 0.5, 0.0], transition, emission)
    fitted = hmm.fit([[0, 1, 2, 3], [1, 2]], restarts=2, iterations=4, tolerance=-np.inf, seed=3, **options).hmm
    assert (fitted.transition[hmm.transition == 0] == 0).all()
    assert (fitted.emission[hmm.emission == 0] == 0).all()
    assert fitted.start[2] == 0


def test_params_are_those_of_hmmlearn():
    hmm = vlhmm.HMM.random(3, 4, seed=5)
    for params in ("", "s", "t", "e", "st", "te", "ste"):
        fitted = hmm.fit(SENTENCES, params=params, iterations=2).hmm
        for letter, name in zip("ste", ("start", "transition", "emission"), strict=True):
            assert torch.equal(getattr(fitted, name), getattr(hmm, name)) == (letter not in params)


def test_pseudocounts_are_added_to_what_is_not_zero():
    hmm = vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[0.5, 0.25, 0.25, 0.0]], dtype=torch.float64)
    fitted = hmm.fit([[0, 0, 1]], pseudocount=0.5, iterations=1).hmm
    close(fitted.emission, [[2.5 / 4.5, 1.5 / 4.5, 0.5 / 4.5, 0.0]])


def test_restarts_keep_the_best_and_follow_the_seed():
    truth = vlhmm.HMM.random(4, 6, seed=0, concentration=0.2)
    data = truth.sample(8, 20, seed=0).tokens
    # From equal states EM cannot leave.
    equal = vlhmm.HMM.from_probabilities([0.5, 0.5], [[0.5, 0.5]] * 2, [[1 / 6] * 6] * 2)
    alone, fitted, again = (
        equal.fit(data, iterations=20, restarts=restarts, seed=1, lengths=None) for restarts in (0, 3, 3)
    )
    assert alone.restart_log_probs == ()
    assert len(fitted.restart_log_probs) == 4
    assert fitted.log_prob == max(fitted.restart_log_probs) > alone.log_prob + 1
    assert fitted.restart_log_probs[0] == alone.log_prob
    assert fitted.restart_log_probs == again.restart_log_probs
    np.testing.assert_allclose(fitted.hmm.log_prob(data).double().sum(), fitted.log_prob, rtol=1e-5)


def test_criteria_are_those_of_the_free_parameters():
    hmm = vlhmm.HMM.random(3, 4, seed=5)
    fitted = hmm.fit(SENTENCES, iterations=3)
    assert fitted.num_parameters == hmm.num_parameters == 2 + 3 * 2 + 3 * 3
    assert fitted.aic == 2 * 17 - 2 * fitted.log_prob
    assert fitted.bic == 17 * math.log(9) - 2 * fitted.log_prob
    assert not fitted.converged
    assert hmm.fit(SENTENCES, iterations=300, tolerance=1e-3).converged
    # Of the rows with fixed entries: 1, 1 and 0 in the transition; 1, 3 and 0 in the emission.
    assert hmm.fit(SENTENCES, iterations=1, fixed=MASKS).num_parameters == 1 + (1 + 0 + 2) + (1 + 3 + 0)
    assert hmm.fit(SENTENCES, iterations=1, params="t").num_parameters == 6
    assert "converged=False" in repr(fitted)
    assert "\n" not in repr(fitted)


@pytest.mark.parametrize("kind", [Kind("blocked", "low-rank", False), Kind("uniform", "softmax", False)], ids=str)
def test_parameters_of_other_forms_are_those_stored(kind):
    oracle, tables = random_hmm(kind, seed=3)
    emission = int(((oracle.emission > 0).sum(1) - 1).clip(0).sum())
    states = oracle.num_states
    if kind.transition == "low-rank":
        transition = states + 2 * (states - 1)
    else:
        transition = tables.transition.out.numel() + tables.transition.into.numel()
    assert vlhmm.HMM(tables).num_parameters == states - 1 + transition + emission


def test_bad_knowledge_is_refused():
    hmm = vlhmm.HMM.from_probabilities([0.5, 0.5], [[0.5, 0.5]] * 2, [[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]])
    refused(lambda: hmm.fit([[0, 1], [2]], states=[[0, 1]]), r"\b1\b", r"\b2\b")
    refused(lambda: hmm.fit([[0, 1], [2]], states=[[0, 1], [1, 1]]), r"states\[1\]", r"\b1 tokens")
    refused(lambda: hmm.fit([[0, 1]], states=[[0, 2]]), r"states\[0\]\[1\] is 2", r"\b1\b", "-1")
    refused(lambda: hmm.fit([[0, 1]], states=[[0, -2]]), "-2")
    refused(lambda: hmm.fit([[0, 1]], states=[[0.0, 1.0]]), "float")
    refused(lambda: hmm.fit([[0, 2]], states=[[1, 0]]), r"states\[0\]\[1\]", "cannot emit token 2")
    refused(lambda: hmm.fit([[0, 1]], params="stx"), "stx", "ste")
    refused(lambda: hmm.fit([[0, 1]], fixed={"startprob": True}), "startprob", "start, transition or emission")
    refused(lambda: hmm.fit([[0, 1]], fixed={"transition": [True, False]}), r"\(2, 2\)")
    refused(lambda: hmm.fit([[0, 1]], fixed={"start": [0.5, 0.5]}), "True and False")
    refused(lambda: hmm.fit([[0, 1]], restarts=-1), "restarts")
    refused(lambda: hmm.fit([[0, 1]], pseudocount=-0.5), "pseudocount")
    refused(lambda: hmm.fit([[0, 1]], "adam", pseudocount=0.5), "adam")
    never = vlhmm.HMM.from_probabilities([1.0, 0.0], [[1.0, 0.0], [0.5, 0.5]], [[0.5, 0.5], [0.5, 0.5]])
    with pytest.raises(ImpossibleTextError, match="sequence 0"):
        never.fit([[0, 1]], states=[[-1, 1]])
