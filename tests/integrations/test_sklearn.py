"""The scikit-learn estimator: scikit-learn's checks, hmmlearn itself as the reference, and pipelines."""

import hmmlearn.hmm
import numpy as np
import pytest
from kinds import close
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks
from test_hmm_bad_input import refused

from vlhmm.integrations.sklearn import CategoricalHMM

A_SEQUENCE = "the rows of X are one sequence: what a row says of its state depends on the rows around it"
EXPECTED_FAILED_CHECKS = {
    "check_methods_sample_order_invariance": A_SEQUENCE,
    "check_methods_subset_invariance": A_SEQUENCE,
}


@parametrize_with_checks(
    [
        CategoricalHMM(n_components=2, n_iter=3),
        CategoricalHMM(n_components=3, n_iter=3, algorithm="map", emissionprob_prior=1.5),
    ],
    expected_failed_checks=lambda estimator: EXPECTED_FAILED_CHECKS,
)
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)


def test_no_more_checks_fail_than_must():
    """The two that are expected fail indeed: else they should not be listed."""
    X = np.array([[0], [1], [1], [0], [2], [2], [1]])
    model = CategoricalHMM(n_components=2, random_state=0).fit(X)
    assert not np.allclose(model.predict_proba(X)[3:4], model.predict_proba(X[3:4]))
    order = np.array([3, 1, 0, 6, 5, 4, 2])
    assert not np.allclose(model.predict_proba(X)[order], model.predict_proba(X[order]))


def random_data(seed: int, symbols: int = 4) -> tuple[np.ndarray, list[int]]:
    random = np.random.default_rng(seed)
    lengths = [7, 1, 12, 3]
    return random.integers(symbols, size=(sum(lengths), 1)), lengths


def both(seed: int, states: int = 3, symbols: int = 4, **settings):
    """The estimator and hmmlearn's, with the same parameters."""
    random = np.random.default_rng(seed)
    models = [kind(states, init_params="", **settings) for kind in (CategoricalHMM, hmmlearn.hmm.CategoricalHMM)]
    start = random.dirichlet(np.ones(states))
    transition, emission = random.dirichlet(np.ones(states), states), random.dirichlet(np.ones(symbols), states)
    for model in models:
        model.startprob_, model.transmat_, model.emissionprob_ = start.copy(), transition.copy(), emission.copy()
    models[1].n_features = symbols
    return models


@pytest.mark.parametrize("seed", range(3))
def test_answers_are_those_of_hmmlearn(seed):
    X, lengths = random_data(seed)
    ours, theirs = both(seed)
    for cut in (lengths, None):
        close(np.array(ours.score(X, lengths=cut)), theirs.score(X, lengths=cut))
        close(ours.predict_proba(X, cut), theirs.predict_proba(X, cut))
        close(ours.score_samples(X, cut)[1], theirs.score_samples(X, cut)[1])
        close(np.array(ours.aic(X, cut)), theirs.aic(X, cut))
        close(np.array(ours.bic(X, cut)), theirs.bic(X, cut))
        for algorithm in ("viterbi", "map"):
            log_prob, states = ours.decode(X, cut, algorithm)
            expected_log_prob, expected_states = theirs.decode(X, cut, algorithm)
            close(np.array(log_prob), expected_log_prob)
            assert (states == expected_states).all()
        assert (ours.predict(X, cut) == theirs.predict(X, cut)).all()


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"params": "te"},
        {"startprob_prior": 2.0, "transmat_prior": 0.7, "emissionprob_prior": np.full((3, 4), 1.3)},
        {"tol": 0.5},
    ],
    ids=["plain", "params", "priors", "tol"],
)
def test_fits_are_those_of_hmmlearn(settings):
    X, lengths = random_data(5)
    ours, theirs = both(5, n_iter=7, **settings)
    ours.fit(X, lengths=lengths)
    theirs.fit(X, lengths=lengths)
    for name in ("startprob_", "transmat_", "emissionprob_"):
        close(getattr(ours, name), getattr(theirs, name))
    close(np.array(ours.monitor_.history), np.array(theirs.monitor_.history))
    assert (ours.monitor_.iter, ours.monitor_.converged) == (theirs.monitor_.iter, theirs.monitor_.converged)
    assert ours.n_features == 4


def test_several_columns_are_independent_given_the_state():
    """Two columns answer as one whose symbols are their pairs."""
    random = np.random.default_rng(0)
    X = random.integers([2, 3], size=(9, 2))
    pair = CategoricalHMM(2, random_state=0, init_params="", n_iter=1, tol=-1)
    pair.startprob_, pair.transmat_ = [0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]]
    pair.emissionprob_ = [[[0.2, 0.8, 0.0], [0.5, 0.5, 0.0]], [[0.1, 0.4, 0.5], [0.6, 0.3, 0.1]]]
    joint = clone(pair)
    joint.startprob_, joint.transmat_ = pair.startprob_, pair.transmat_
    first, second = np.array(pair.emissionprob_)
    joint.emissionprob_ = np.einsum("za,zb->zab", first[:, :2], second).reshape(2, 6)
    together = X[:, :1] * 3 + X[:, 1:]
    lengths = [5, 1, 3]
    close(np.array(pair.score(X, lengths=lengths)), joint.score(together, lengths=lengths))
    close(pair.predict_proba(X, lengths), joint.predict_proba(together, lengths))
    assert (pair.predict(X, lengths) == joint.predict(together, lengths)).all()
    pair.fit(X, lengths=lengths)
    joint.fit(together, lengths=lengths)
    close(pair.transmat_, joint.transmat_)
    close(pair.startprob_, joint.startprob_)
    # Of pairs the counts of the first column are the sums over the second.
    close(pair.emissionprob_[0][:, :2], joint.emissionprob_.reshape(2, 2, 3).sum(2))
    close(pair.emissionprob_[1], joint.emissionprob_.reshape(2, 2, 3).sum(1))
    symbols, states = pair.sample(50)
    assert symbols.shape == (50, 2)
    assert states.shape == (50,)


def test_a_grid_search_finds_the_number_of_states():
    truth = CategoricalHMM(2)
    truth.startprob_, truth.transmat_ = [1.0, 0.0], [[0.0, 1.0], [1.0, 0.0]]
    truth.emissionprob_ = [[0.9, 0.1], [0.1, 0.9]]
    X, _ = truth.sample(150, random_state=0)
    search = GridSearchCV(CategoricalHMM(random_state=0, n_iter=20, n_features=2), {"n_components": [1, 2]}, cv=3)
    assert search.fit(X).best_params_ == {"n_components": 2}


def test_samples_have_the_frequencies_of_the_model():
    model, _ = both(1)
    X, states = model.sample(4000, random_state=0)
    moves = np.zeros((3, 3))
    np.add.at(moves, (states[:-1], states[1:]), 1)
    np.testing.assert_allclose(moves / moves.sum(1, keepdims=True), model.transmat_, atol=0.06)
    for state in range(3):
        often = np.bincount(X[states == state, 0], minlength=4) / (states == state).sum()
        np.testing.assert_allclose(often, model.emissionprob_[state], atol=0.06)
    again, _ = model.sample(4000, random_state=0)
    assert (again == X).all()
    assert model.sample(3, currstate=2)[1][0] == 2


def test_a_copy_can_be_fitted_to_other_symbols():
    model = CategoricalHMM(2, random_state=0).fit([[0], [1], [0]])
    assert model.n_features == 2
    assert clone(model).fit([[0], [5], [1]]).n_features == 6
    assert clone(CategoricalHMM(2, n_features=9)).fit([[0], [1], [0]]).n_features == 9


def test_bad_input_is_refused():
    X, lengths = random_data(0)
    model = CategoricalHMM(2, random_state=0).fit(X, lengths=lengths)
    refused(lambda: model.fit(X, lengths), "lengths=", r"\b23\b")
    refused(lambda: model.score(X, lengths), "lengths=")
    refused(lambda: model.fit(X, lengths=[3, 4]), "sum to 7", r"\b23\b")
    refused(lambda: model.predict(X, [23.0]), "lengths")
    refused(lambda: model.predict(X, [24, -1]), "positive")
    refused(lambda: model.predict([[7]]), r"\b7\b", r"\b4\b")
    refused(lambda: model.fit([[0.5]]), r"0\.5", "integers")
    refused(lambda: model.fit([[-1], [0]]), "-1")
    refused(lambda: CategoricalHMM(2, n_features=3).fit(X), r"symbol 3", "n_features is 3")
    refused(lambda: CategoricalHMM(0).fit(X), "n_components")
    refused(lambda: CategoricalHMM(2, params="sx").fit(X), "params", "sx")
    refused(lambda: CategoricalHMM(2, implementation="fast").fit(X), "implementation")
    refused(lambda: model.decode(X, algorithm="best"), "best", "viterbi")
    refused(lambda: model.predict(np.concatenate([X, X], axis=1)), "2 features|2 columns")
