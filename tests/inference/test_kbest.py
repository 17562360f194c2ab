"""The k best paths against the sorted enumeration of all paths, and the entropy of the posterior over them."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import TOLERANCE, close, every_kind, some_sentences
from oracle import EVERY_KIND, Kind, ragged, random_hmm

import vlhmm
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.kbest import stable_top

MANY = 100

some_kinds = pytest.mark.parametrize("kind", EVERY_KIND[::3], ids=str)


def check_paths(oracle, sentence, states, log_prob, dtype=torch.float64) -> None:
    """Sorted, distinct, each with its own probability, and none is missing."""
    joint = oracle.joint(sentence)
    with np.errstate(divide="ignore"):
        expected = np.sort(np.log(joint[joint > 0]).ravel())[::-1][: log_prob.shape[0]]
    num = len(expected)
    np.testing.assert_allclose(log_prob[:num], expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    assert torch.isneginf(log_prob[num:]).all()
    assert (states[num:] == -1).all()
    paths = [tuple(path) for path in states[:num, : len(sentence)].tolist()]
    assert len(set(paths)) == num
    assert (states[:, len(sentence) :] == -1).all()
    for path, value in zip(paths, log_prob.tolist(), strict=False):
        np.testing.assert_allclose(np.log(joint[path]), value, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@every_kind
def test_k_best_paths_are_the_sorted_enumeration(kind):
    oracle, tables = random_hmm(kind, seed=3)
    sentences = some_sentences(oracle, 3, lengths=(5, 1, 3))
    for k in (2, 7, MANY):
        best = vlhmm.HMM(tables).viterbi(*ragged(sentences), k=k)
        assert best.states.shape == (3, k, 5)
        for row, sentence in enumerate(sentences):
            check_paths(oracle, sentence, best.states[row], best.log_prob[row])


def test_a_source_may_place_its_second_path_before_the_second_of_a_better_source():
    hmm = vlhmm.HMM.from_probabilities([0.9, 0.1], [[0.4, 0.6], [0, 1]], [[0, 1], [0.6, 0.4]])
    best = hmm.viterbi([[1, 1, 0]], k=3)
    assert best.states[0].tolist() == [[0, 0, 1], [0, 1, 1], [1, 1, 1]]
    expected = np.log([0.9 * 0.4 * 0.6 * 0.6, 0.9 * 0.6 * 0.4 * 0.6, 0.1 * 0.4 * 0.4 * 0.6])
    np.testing.assert_allclose(best.log_prob[0], expected, rtol=1e-6)


@pytest.mark.parametrize("k", [3, 4, 5, 8])
@every_kind
def test_few_of_many_paths_are_the_right_ones(kind, k):
    """Small k is where candidates are left out: with k above the number of paths into a state all of them are compared."""
    for seed in range(4):
        oracle, tables = random_hmm(kind, seed)
        sentence = oracle.sentence(5, np.random.default_rng(seed))
        best = vlhmm.HMM(tables).viterbi(sentence[None], k=k)
        check_paths(oracle, sentence, best.states[0], best.log_prob[0])


# Few paths are drawn more often than many: with many, most cases have no candidate to leave out.
some_k = st.one_of(st.integers(1, 9), st.integers(1, MANY))


@settings(max_examples=60)
@given(st.sampled_from(EVERY_KIND), st.integers(0, 2**31), st.integers(1, 6), some_k, st.integers(1, 7))
def test_any_k_and_window_of_any_hmm(kind, seed, length, k, window):
    oracle, tables = random_hmm(kind, seed)
    sentence = oracle.sentence(length, np.random.default_rng(seed))
    best = vlhmm.HMM(tables).viterbi(sentence[None], k=k, window=window)
    check_paths(oracle, sentence, best.states[0], best.log_prob[0])


def test_float32_finds_the_same_scores():
    oracle, tables = random_hmm(Kind("blocked", "softmax", reset=True), 5, torch.float32)
    sentence = oracle.sentence(6, np.random.default_rng(5))
    best = vlhmm.HMM(tables).viterbi(sentence[None], k=40)
    assert best.log_prob.dtype == torch.float32
    check_paths(oracle, sentence, best.states[0], best.log_prob[0], torch.float32)


@pytest.mark.parametrize("k", [1, 4])
@some_kinds
def test_a_past_is_summed_out(kind, k):
    oracle, tables = random_hmm(kind, seed=8)
    hmm = vlhmm.HMM(tables)
    whole = oracle.sentence(5, np.random.default_rng(8))
    past, rest = whole[:2], whole[2:]
    best = hmm.viterbi(rest[None], k=k, belief=hmm.filter(past[None]).belief)
    # Every path of the rest, over all the states that the past may have had.
    joint = oracle.joint(whole).sum((0, 1)) / np.exp(oracle.log_prob(past))
    expected = np.sort(np.log(joint[joint > 0]).ravel())[::-1][:k]
    close(best.log_prob[0, : len(expected)], expected)
    for path, log_prob in zip(best.states[0, : len(expected)].tolist(), expected, strict=True):
        np.testing.assert_allclose(np.log(joint[tuple(path)]), log_prob, rtol=1e-10)


def test_ties_are_decided_by_the_first_state():
    # All paths are equally likely.
    hmm = vlhmm.HMM.from_probabilities([0.25] * 4, [[0.25] * 4] * 4, [[0.5, 0.5]] * 4)
    best = hmm.viterbi([[0, 1]], k=16)
    assert best.states[0, 0].tolist() == [0, 0]
    assert len({tuple(path) for path in best.states[0].tolist()}) == 16
    assert torch.equal(best.states, hmm.viterbi([[0, 1]], k=16).states)


@given(st.lists(st.integers(-3, 3), min_size=1, max_size=12), st.data())
def test_the_top_of_equal_values_is_the_first(values, data):
    k = data.draw(st.integers(1, len(values)))
    numbers = torch.tensor([-np.inf if value == -3 else float(value) for value in values])
    best, index = stable_top(numbers, k)
    expected = sorted(range(len(values)), key=lambda i: (-float(numbers[i]), i))[:k]
    assert index.tolist() == expected
    assert best.tolist() == numbers[expected].tolist()


def test_many_candidates_are_compared_in_parts(monkeypatch):
    oracle, tables = random_hmm(Kind("dense", "table", reset=False), seed=2)
    monkeypatch.setattr("vlhmm.inference.kbest.STEP_BYTES", {"cpu": 1})
    sentence = oracle.sentence(4, np.random.default_rng(2))
    best = vlhmm.HMM(tables).viterbi(np.stack([sentence, sentence]), k=20)
    for row in range(2):
        check_paths(oracle, sentence, best.states[row], best.log_prob[row])


@pytest.mark.parametrize("k", [0, 101])
def test_k_out_of_range_is_refused(k):
    _, tables = random_hmm(Kind("dense", "table", reset=False), seed=2)
    with pytest.raises(ValueError, match=f"k is {k}, but it must be between 1 and 100"):
        vlhmm.HMM(tables).viterbi([[0, 1]], k=k)


def test_an_impossible_text_is_refused():
    hmm = vlhmm.HMM.from_probabilities([1, 0], [[1, 0], [0, 1]], [[1, 0], [0, 1]])
    with pytest.raises(ImpossibleTextError, match="sequence 1 has probability zero from position 1"):
        hmm.viterbi([[0, 0], [0, 1]], k=3)
    with pytest.raises(ImpossibleTextError, match="sequence 1 has probability zero from position 1"):
        hmm.posterior_entropy([[0, 0], [0, 1]])


@every_kind
def test_entropies_are_those_of_the_enumerated_posterior(kind):
    oracle, tables = random_hmm(kind, seed=4)
    sentences = some_sentences(oracle, 4, lengths=(5, 1, 3))
    hmm = vlhmm.HMM(tables)
    for window in (None, 2):
        entropy = hmm.posterior_entropy(*ragged(sentences), window=window)
        for row, sentence in enumerate(sentences):
            close(entropy.path[row], entropy_of(oracle.path_probs(sentence).ravel()))
            close(entropy.position[row, : len(sentence)], [entropy_of(probs) for probs in oracle.posterior(sentence)])
            assert (entropy.position[row, len(sentence) :] == 0).all()


@some_kinds
def test_entropy_after_a_past(kind):
    oracle, tables = random_hmm(kind, seed=6)
    hmm = vlhmm.HMM(tables)
    whole = oracle.sentence(5, np.random.default_rng(6))
    entropy = hmm.posterior_entropy(whole[None, 2:], belief=hmm.filter(whole[None, :2]).belief)
    close(entropy.path[0], entropy_of(oracle.path_probs(whole).sum((0, 1)).ravel()))


def test_pairs_of_states_are_taken_in_parts(monkeypatch):
    oracle, tables = random_hmm(Kind("blocked", "table", reset=True), seed=9)
    monkeypatch.setattr("vlhmm.inference.entropy.STEP_BYTES", {"cpu": 1})
    sentence = oracle.sentence(5, np.random.default_rng(9))
    close(vlhmm.HMM(tables).posterior_entropy(sentence[None]).path[0], entropy_of(oracle.path_probs(sentence).ravel()))


def entropy_of(probs: np.ndarray) -> float:
    positive = probs[probs > 0]
    return float(-(positive * np.log(positive)).sum())
