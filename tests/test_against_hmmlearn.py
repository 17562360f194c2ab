"""The same answers as hmmlearn's CategoricalHMM, which shares nothing with this package."""

import numpy as np
import pytest
import torch
from hmmlearn import _hmmc
from hmmlearn.hmm import CategoricalHMM
from oracle import Kind, random_hmm

import vlhmm

LENGTHS = [60, 1, 25, 40]


@pytest.fixture(params=range(3), ids=lambda seed: f"seed{seed}")
def pair(request):
    """One random HMM in both libraries, and some sentences drawn from it."""
    oracle, tables = random_hmm(Kind("dense", "table", reset=False), seed=request.param)
    peer = CategoricalHMM(n_components=oracle.num_states, n_features=oracle.num_words, n_iter=1, init_params="", tol=0)
    peer.startprob_, peer.transmat_, peer.emissionprob_ = oracle.start, oracle.transition, oracle.emission
    random = np.random.default_rng(request.param)
    return vlhmm.HMM(tables), peer, [oracle.sentence(length, random) for length in LENGTHS]


def padded(sentences: list[np.ndarray]) -> torch.Tensor:
    tokens = torch.full((len(LENGTHS), max(LENGTHS)), -1)
    for row, sentence in zip(tokens, sentences, strict=True):
        row[: len(sentence)] = torch.as_tensor(sentence)
    return tokens


def test_score_equals_hmmlearn(pair):
    hmm, peer, sentences = pair
    expected = [peer.score(sentence[:, None]) for sentence in sentences]
    np.testing.assert_allclose(hmm.log_prob(padded(sentences), LENGTHS), expected, rtol=1e-10)


def test_posterior_equals_hmmlearn(pair):
    hmm, peer, sentences = pair
    dense = hmm.posterior(padded(sentences), LENGTHS).dense()
    for row, sentence in zip(dense, sentences, strict=True):
        np.testing.assert_allclose(row[: len(sentence)], peer.predict_proba(sentence[:, None]), atol=1e-10)


def test_filter_equals_hmmlearn(pair):
    hmm, peer, sentences = pair
    probs = hmm.filter(padded(sentences), LENGTHS).probs
    for row, sentence in zip(probs, sentences, strict=True):
        evidence = peer._compute_log_likelihood(sentence[:, None])
        _, forward = _hmmc.forward_log(peer.startprob_, peer.transmat_, evidence)
        expected = np.exp(forward - np.logaddexp.reduce(forward, axis=1, keepdims=True))
        np.testing.assert_allclose(row[: len(sentence)], expected, atol=1e-10)


def test_viterbi_equals_hmmlearn(pair):
    hmm, peer, sentences = pair
    best = hmm.viterbi(padded(sentences), LENGTHS)
    for states, log_prob, sentence in zip(best.states[:, 0], best.log_prob[:, 0], sentences, strict=True):
        expected, _ = peer.decode(sentence[:, None])
        np.testing.assert_allclose(log_prob, expected, rtol=1e-10)
        # Paths that use the same factors in another order are as good: the score is unique, the path is not.
        path = states[: len(sentence)].numpy()
        factors = [peer.startprob_[path[0]], *peer.transmat_[path[:-1], path[1:]], *peer.emissionprob_[path, sentence]]
        np.testing.assert_allclose(np.log(factors).sum(), expected, rtol=1e-10)


def test_em_step_equals_hmmlearn(pair):
    hmm, peer, sentences = pair
    counts = hmm.expected_counts(padded(sentences), LENGTHS)
    peer.fit(np.concatenate(sentences)[:, None], lengths=LENGTHS)
    emission = counts.emission.T
    np.testing.assert_allclose(counts.start / counts.start.sum(), peer.startprob_, atol=1e-10)
    np.testing.assert_allclose(counts.transition / counts.transition.sum(1, keepdim=True), peer.transmat_, atol=1e-10)
    np.testing.assert_allclose(emission / emission.sum(1, keepdim=True), peer.emissionprob_, atol=1e-10)
