"""The time-parallel scan gives what the serial recursion gives."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from oracle import EVERY_KIND, Kind, ragged, random_hmm

import vlhmm
from vlhmm.tables import Tables
from vlhmm.transitions import TableTransition

every_kind = pytest.mark.parametrize("kind", EVERY_KIND, ids=str)


def close(actual: torch.Tensor, expected: torch.Tensor, tolerance: float = 1e-10) -> None:
    np.testing.assert_allclose(actual.detach().numpy(), expected.detach().numpy(), rtol=tolerance, atol=tolerance)


def sentences_of(oracle, lengths) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(0)
    return ragged([oracle.sentence(length, random) for length in lengths], padding=-1)


@pytest.mark.parametrize("lengths", [(2, 1), (17, 1, 9)], ids=str)
@every_kind
def test_parallel_equals_serial(kind, lengths):
    oracle, tables = random_hmm(kind, seed=31)
    hmm = vlhmm.HMM(tables)
    tokens, ends = sentences_of(oracle, lengths)
    belief = hmm.filter(sentences_of(oracle, (2,) * len(lengths))[0]).belief
    for past in (None, belief):
        close(hmm.log_prob(tokens, ends, past, parallel=True), hmm.log_prob(tokens, ends, past))
        close(hmm.token_log_probs(tokens, ends, past, parallel=True), hmm.token_log_probs(tokens, ends, past))
        close(hmm.token_log_probs(tokens, ends, past, parallel=True, window=5), hmm.token_log_probs(tokens, ends, past))


@every_kind
def test_parallel_equals_serial_in_float32(kind):
    oracle, tables = random_hmm(kind, seed=32, dtype=torch.float32)
    hmm = vlhmm.HMM(tables)
    tokens, lengths = sentences_of(oracle, (40, 11))
    parallel = hmm.log_prob(tokens, lengths, parallel=True)
    assert parallel.dtype == torch.float32
    close(parallel, hmm.log_prob(tokens, lengths), tolerance=1e-5)


def test_parallel_never_drops_a_gradient():
    """Asked for both, it gives the serial gradient or refuses: a loss that silently trains nothing is worse."""
    oracle, tables = random_hmm(Kind("blocked", "table", reset=True), seed=33)
    tokens, lengths = sentences_of(oracle, (12, 1, 7))
    serial, parallel = (leaves(tables) for _ in range(2))
    vlhmm.HMM(serial).log_prob(tokens, lengths).sum().backward()
    try:
        log_prob = vlhmm.HMM(parallel).log_prob(tokens, lengths, parallel=True)
    except ValueError:
        return
    assert log_prob.requires_grad
    log_prob.sum().backward()
    close(parallel.log_start.grad, serial.log_start.grad)
    close(parallel.transition.log_prob.grad, serial.transition.log_prob.grad)
    close(parallel.log_emission.grad, serial.log_emission.grad)


def leaves(tables: Tables) -> Tables:
    return Tables(
        tables.support,
        tables.log_start.clone().requires_grad_(),
        TableTransition(tables.transition.log_prob.clone().requires_grad_()),
        tables.log_emission.clone().requires_grad_(),
        tables.reset_token,
    )


@given(st.sampled_from(EVERY_KIND), st.integers(0, 2**31), st.integers(1, 70))
def test_parallel_scores_any_sentence(kind, seed, length):
    oracle, tables = random_hmm(kind, seed)
    sentence = oracle.sentence(length, np.random.default_rng(seed))
    scores = vlhmm.HMM(tables).token_log_probs([sentence], parallel=True)
    np.testing.assert_allclose(scores[0], oracle.by_messages(sentence).token_log_probs, rtol=1e-9, atol=1e-9)
