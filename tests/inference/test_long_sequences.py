"""Exactness where probabilities run far below what a float can hold, and over a million tokens."""

import resource
import sys

import numpy as np
import pytest
import torch
from oracle import Kind, Oracle, dense_oracle, random_hmm

import vlhmm
from vlhmm.support import blocked_support, dense_support
from vlhmm.tables import Tables
from vlhmm.transitions import TableTransition

every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
scan = pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])
RELATIVE = {torch.float64: 1e-12, torch.float32: 1e-6}

# Two coins, one of them tossed throughout: after 500 'a' the second has probability 1e-477, and it wins in the end.
COINS = Oracle(np.array([0.5, 0.5]), np.eye(2), np.array([[0.9, 0.1], [0.1, 0.9]]))
COMEBACK = np.array([0] * 500 + [1] * 600)


def coins(dtype: torch.dtype, requires_grad: bool = False) -> vlhmm.HMM:
    hmm = vlhmm.HMM.from_probabilities(COINS.start, COINS.transition, COINS.emission, dtype=dtype)
    if not requires_grad:
        return hmm
    tables = hmm.tables
    return vlhmm.HMM(
        Tables(
            tables.support,
            tables.log_start.clone().requires_grad_(),
            TableTransition(tables.transition.log_prob.clone().requires_grad_()),
            tables.log_emission.clone().requires_grad_(),
        )
    )


def comeback_log_prob() -> float:
    """log of half of 0.9^500 0.1^600 + 0.1^500 0.9^600: the second coin's term is all that counts."""
    first = 500 * np.log(0.9) + 600 * np.log(0.1)
    second = 500 * np.log(0.1) + 600 * np.log(0.9)
    return float(np.logaddexp(first, second) - np.log(2))


@scan
@every_dtype
def test_a_state_comes_back_from_1e_minus_477(dtype, parallel):
    hmm = coins(dtype)
    np.testing.assert_allclose(
        hmm.log_prob([COMEBACK], parallel=parallel).item(), comeback_log_prob(), rtol=RELATIVE[dtype]
    )
    expected = COINS.by_messages(COMEBACK).token_log_probs
    actual = hmm.token_log_probs([COMEBACK], parallel=parallel)[0]
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("window", [None, 64, 501])
@every_dtype
def test_the_comeback_shows_in_every_answer(dtype, window):
    hmm = coins(dtype)
    expected = COINS.by_messages(COMEBACK)
    filtered = hmm.filter([COMEBACK], window=window)
    np.testing.assert_allclose(filtered.probs[0], expected.filter, atol=1e-4)
    np.testing.assert_allclose(hmm.posterior([COMEBACK], window=window).dense()[0], expected.posterior, atol=1e-4)
    best = hmm.viterbi([COMEBACK], window=window)
    assert (best.states == 1).all()
    np.testing.assert_allclose(best.log_prob.item(), expected.best_log_prob, rtol=RELATIVE[dtype])
    # The belief after 500 'a' remembers the second coin.
    belief = hmm.filter([COMEBACK[:500]], window=window).belief
    np.testing.assert_allclose(belief.log_probs[0, 1].item(), 500 * np.log(1 / 9), rtol=1e-4)
    total = hmm.log_prob([COMEBACK[:500]]) + hmm.log_prob([COMEBACK[500:]], belief=belief, window=window)
    np.testing.assert_allclose(total.item(), comeback_log_prob(), rtol=RELATIVE[dtype])


@every_dtype
def test_the_comeback_has_the_right_gradient(dtype):
    hmm = coins(dtype, requires_grad=True)
    hmm.log_prob([COMEBACK]).sum().backward()
    tables = hmm.tables
    np.testing.assert_allclose(tables.log_start.grad, [0, 1], atol=1e-4)
    np.testing.assert_allclose(tables.transition.log_prob.grad, [[0, 0], [0, 1099]], rtol=1e-4, atol=1e-3)
    np.testing.assert_allclose(tables.log_emission.grad, [[0, 500], [0, 600]], rtol=1e-4, atol=1e-3)
    counts = coins(dtype).expected_counts([COMEBACK])
    np.testing.assert_allclose(counts.emission, [[0, 500], [0, 600]], rtol=1e-4, atol=1e-3)


@every_dtype
def test_the_comeback_in_sampled_paths(dtype):
    paths = coins(dtype).sample_posterior([COMEBACK], 20, seed=0)
    assert (paths == 1).all()


@scan
@pytest.mark.parametrize("log_leak", [-103.5, -200.0, -1000.0, -80.0])
@every_dtype
def test_tiny_transitions_are_not_zero(dtype, log_leak, parallel):
    """Words 0 and 1 have a state each, and leaving a state has a probability that no float32 can hold."""
    tables = Tables(
        blocked_support(torch.tensor([0, 1]), 2, 1),
        torch.tensor([0.5, 0.5], dtype=dtype).log(),
        TableTransition(torch.tensor([[0.0, log_leak], [log_leak, 0.0]], dtype=dtype)),
        torch.zeros(2, 1, dtype=dtype),
    )
    tokens = [[0, 0, 1, 1, 0, 1]]
    scores = vlhmm.HMM(tables).token_log_probs(tokens, parallel=parallel)
    expected = [np.log(0.5), 0, log_leak, 0, log_leak, log_leak]
    np.testing.assert_allclose(scores[0], expected, rtol=1e-6)
    np.testing.assert_allclose(vlhmm.HMM(tables).posterior(tokens).probs, np.ones((1, 6, 1)))
    np.testing.assert_allclose(vlhmm.HMM(tables).viterbi(tokens).log_prob, [[sum(expected)]], rtol=1e-6)


@scan
@every_dtype
def test_a_whole_tile_may_underflow(dtype, parallel):
    """Two states for each of two words: every path out of the first word's states costs about exp(-300)."""
    random = np.random.default_rng(0)
    log_transition = np.log(random.dirichlet(np.ones(4), size=4))
    log_transition[:2, 2:] -= 300
    log_transition[:2] -= np.logaddexp.reduce(log_transition[:2], axis=1, keepdims=True)
    tables = Tables(
        blocked_support(torch.tensor([0, 1]), 2, 2),
        torch.full((4,), 0.25, dtype=torch.float64).log(),
        TableTransition(torch.tensor(log_transition)),
        torch.zeros(2, 2, dtype=torch.float64),
    )
    sentence = np.array([0, 1, 0, 0, 1, 1, 0, 1])
    expected = dense_oracle(tables).by_messages(sentence)
    hmm = vlhmm.HMM(tables.to(dtype=dtype))
    np.testing.assert_allclose(
        hmm.token_log_probs([sentence], parallel=parallel)[0], expected.token_log_probs, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(hmm.posterior([sentence]).dense()[0], expected.posterior, atol=1e-4)


@every_dtype
def test_unlikely_emissions_are_not_zero(dtype):
    """A word that its states emit with probability exp(-150)."""
    log_emission = torch.tensor([[0.0, 0.0], [-150.0, -151.0]], dtype=dtype)
    tables = Tables(
        dense_support(2, 2),
        torch.tensor([0.5, 0.5], dtype=dtype).log(),
        TableTransition(torch.tensor([[0.9, 0.1], [0.1, 0.9]], dtype=dtype).log()),
        log_emission,
    )
    sentence = np.array([1, 0, 1, 1, 1, 0])
    expected = dense_oracle(tables).by_messages(sentence)
    hmm = vlhmm.HMM(tables)
    np.testing.assert_allclose(hmm.token_log_probs([sentence])[0], expected.token_log_probs, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(hmm.posterior([sentence]).dense()[0], expected.posterior, rtol=1e-4, atol=1e-5)


def test_small_probabilities_survive_the_conversion():
    """1e-45 and 1e-80 as float64 probabilities: the logarithm is taken before the rounding to float32."""
    for leak in (1e-45, 1e-80):
        transition = np.array([[1 - leak, leak], [0.5, 0.5]])
        hmm = vlhmm.HMM.from_probabilities([1, 0], transition, np.eye(2), dtype=torch.float32)
        np.testing.assert_allclose(hmm.log_prob([[0, 1]]).item(), np.log(leak), rtol=1e-6)


@pytest.mark.parametrize("support", ["dense", "blocked"])
def test_thousands_of_tokens_equal_the_messages(support):
    oracle, tables = random_hmm(Kind(support, "table", reset=True), seed=41)
    sentence = oracle.sentence(3_000, np.random.default_rng(0))
    expected = oracle.by_messages(sentence)
    hmm = vlhmm.HMM(tables)
    np.testing.assert_allclose(hmm.token_log_probs([sentence])[0], expected.token_log_probs, rtol=1e-8, atol=1e-9)
    np.testing.assert_allclose(hmm.posterior([sentence]).dense()[0], expected.posterior, atol=1e-9)
    np.testing.assert_allclose(hmm.viterbi([sentence]).log_prob.item(), expected.best_log_prob, rtol=1e-12)


@pytest.mark.parametrize("support", ["dense", "blocked"])
def test_a_million_tokens_do_not_drift(support):
    _, tables = random_hmm(Kind(support, "table", reset=False), seed=42)
    double, single = vlhmm.HMM(tables), vlhmm.HMM(tables.to(dtype=torch.float32))
    tokens = double.sample(1_000, 1_000, seed=0).tokens.view(1, 1_000_000)
    # Without gradients a text this long is scored by the scan.
    with torch.no_grad():
        assert abs(single.log_prob(tokens).item() / double.log_prob(tokens).item() - 1) < 1e-6
    some = tokens[:, :10_000]
    serial = [hmm.log_prob(some, parallel=False).item() for hmm in (single, double)]
    assert abs(serial[0] / serial[1] - 1) < 1e-6


def peak_bytes() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def test_memory_does_not_grow_with_the_square_of_the_states():
    """Tiles of 8,000 positions with 256 states would take 2 GiB at once."""
    states = 256
    generator = torch.Generator().manual_seed(0)
    tables = Tables(
        blocked_support(torch.tensor([0, 0, 1, 1]), 2, states),
        torch.randn(2 * states, generator=generator).log_softmax(0),
        TableTransition(torch.randn(2 * states, 2 * states, generator=generator).log_softmax(1)),
        torch.randn(2, 2, states, generator=generator).log_softmax(1).flatten(0, 1).requires_grad_(),
    )
    tokens = torch.randint(4, (1, 8_000), generator=generator)
    before = peak_bytes()
    vlhmm.HMM(tables).log_prob(tokens).sum().backward()
    assert tables.log_emission.grad.isfinite().all()
    np.testing.assert_allclose(tables.log_emission.grad.sum().item(), 8_000, rtol=1e-3)
    assert peak_bytes() - before < 2**30
