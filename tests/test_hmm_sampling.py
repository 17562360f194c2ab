"""Samples follow the distributions they are drawn from."""

import itertools

import numpy as np
import pytest
import torch
from kinds import every_kind, some_sentences
from oracle import EVERY_KIND, Kind, ragged, random_hmm

import vlhmm


def assert_drawn_from(counts: np.ndarray, probs: np.ndarray) -> None:
    """Chi-square within six standard deviations of its mean; nothing impossible is ever drawn."""
    assert (counts[probs == 0] == 0).all()
    # The statistic is chi-square only where several draws are expected: rarer cells are pooled, rarest first.
    order = np.argsort(probs, axis=None)
    expected, observed = counts.sum() * probs.flatten()[order], counts.flatten()[order]
    pool = int(np.searchsorted(expected.cumsum(), 10)) + 1
    expected = np.append(expected[:pool].sum(), expected[pool:])
    observed = np.append(observed[:pool].sum(), observed[pool:])
    freedom = max(1, len(expected) - 1)
    assert ((observed - expected) ** 2 / expected).sum() < freedom + 6 * np.sqrt(2 * freedom)


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.reset or not kind.zeros], ids=str)
def test_samples_follow_the_joint_distribution(kind):
    oracle, tables = random_hmm(kind, seed=12)
    drawn = vlhmm.HMM(tables).sample(20_000, 2, seed=0)
    assert drawn.states.shape == drawn.tokens.shape == (20_000, 2)
    states, words = oracle.num_states, oracle.num_words
    exact = np.zeros((states, states, words, words))
    for first, second in itertools.product(range(words), repeat=2):
        exact[:, :, first, second] = oracle.joint(np.array([first, second]))
    cells = (*drawn.states.T.numpy(), *drawn.tokens.T.numpy())
    counts = np.bincount(np.ravel_multi_index(cells, exact.shape), minlength=exact.size).reshape(exact.shape)
    assert_drawn_from(counts, exact)


@every_kind
def test_posterior_samples_follow_the_posterior(kind):
    oracle, tables = random_hmm(kind, seed=13)
    sentences = some_sentences(oracle, 13, lengths=(3, 1, 2))
    paths = vlhmm.HMM(tables).sample_posterior(
        *(ragged(sentences)[0], 5_000),
        lengths=ragged(sentences)[1],
        seed=0,
    )
    assert paths.shape == (3, 5_000, 3)
    for row, sentence in zip(paths.numpy(), sentences, strict=True):
        exact = oracle.path_probs(sentence)
        assert (row[:, len(sentence) :] == -1).all()
        cells = np.ravel_multi_index(tuple(row[:, : len(sentence)].T), exact.shape)
        assert_drawn_from(np.bincount(cells, minlength=exact.size).reshape(exact.shape), exact)


def test_generator_decides_the_sample():
    _, tables = random_hmm(Kind("blocked", "softmax", reset=False), seed=1)
    hmm = vlhmm.HMM(tables)
    first, again, other = (hmm.sample(5, 20, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.states, again.states)
    assert not torch.equal(first.states, other.states)
    tokens = first.tokens
    paths = [hmm.sample_posterior(tokens, 4, seed=seed) for seed in (1, 1, 2)]
    assert torch.equal(paths[0], paths[1])
    assert not torch.equal(paths[0], paths[2])
