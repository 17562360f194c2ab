"""Sentences of probability zero: -inf and 0 from the impossible token on, never NaN, neighbours untouched."""

import numpy as np
import pytest
import torch
from oracle import EVERY_KIND, Oracle, ragged, random_hmm

import vlhmm
from vlhmm.tables import Tables
from vlhmm.transitions import TableTransition

every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
scan = pytest.mark.parametrize("parallel", [False, True], ids=["serial", "parallel"])

# States only move up, and word w is emitted by states w and w - 1: a sentence never comes back from 2 to 0.
START = np.array([0.7, 0.3, 0.0])
TRANSITION = np.array([[0.6, 0.4, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
EMISSION = np.array([[0.8, 0.2, 0.0], [0.0, 0.9, 0.1], [0.0, 0.0, 1.0]])
ORACLE = Oracle(START, TRANSITION, EMISSION)

POSSIBLE_ROWS = [0, 2, 3, 5]
TOKENS = torch.tensor(
    [
        [0, 0, 1, 1, 2],  # possible
        [0, 1, 2, 0, 1],  # impossible at 3, possible again if one forgot why
        [0, 2, 2, 2, 2],  # possible
        [1, 1, 1, 2, 2],  # possible
        [1, 2, 2, 2, 0],  # impossible at the last position
        [0, 1, 1, -9, 0],  # possible: its length is 3
    ]
)
LENGTHS = torch.tensor([5, 5, 5, 5, 5, 3])
FIRST_IMPOSSIBLE = {1: 3, 4: 4}


def the_hmm(dtype=torch.float64) -> vlhmm.HMM:
    return vlhmm.HMM.from_probabilities(START, TRANSITION, EMISSION, dtype=dtype)


def sentence(row: int) -> np.ndarray:
    return TOKENS[row, : LENGTHS[row]].numpy()


def possible_part(row: int) -> np.ndarray:
    return sentence(row)[: FIRST_IMPOSSIBLE.get(row, len(sentence(row)))]


def close(actual, expected) -> None:
    np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=1e-5, atol=1e-6)


def with_gradient(dtype: torch.dtype) -> Tables:
    tables = the_hmm(dtype).tables
    return Tables(
        tables.support,
        tables.log_start.clone().requires_grad_(),
        TableTransition(tables.transition.log_prob.clone().requires_grad_()),
        tables.log_emission.clone().requires_grad_(),
    )


def test_the_example_is_what_it_says():
    for row in range(len(TOKENS)):
        expected = FIRST_IMPOSSIBLE.get(row)
        impossible = np.flatnonzero(np.isneginf(ORACLE.token_log_probs(sentence(row))))
        assert (impossible[0] if len(impossible) else None) == expected


@scan
@every_dtype
def test_impossible_scores_are_minus_infinity(dtype, parallel):
    hmm = the_hmm(dtype)
    log_prob = hmm.log_prob(TOKENS, LENGTHS, parallel=parallel)
    token_log_probs = hmm.token_log_probs(TOKENS, LENGTHS, parallel=parallel)
    for row in range(len(TOKENS)):
        close(log_prob[row], ORACLE.log_prob(sentence(row)))
        close(token_log_probs[row, : LENGTHS[row]], ORACLE.token_log_probs(sentence(row)))
        assert (token_log_probs[row, LENGTHS[row] :] == 0).all()


@every_dtype
@pytest.mark.parametrize("window", [None, 1, 2, 3])
def test_filter_and_posterior_are_zero_from_there_on(dtype, window):
    hmm = the_hmm(dtype)
    filtered = hmm.filter(TOKENS, LENGTHS, window=window)
    posterior = hmm.posterior(TOKENS, LENGTHS, window=window)
    for row in range(len(TOKENS)):
        end = len(possible_part(row))
        close(filtered.probs[row, :end], ORACLE.filter(possible_part(row)))
        # Before the impossible token the posterior is that of the possible part.
        close(posterior.probs[row, :end], ORACLE.posterior(possible_part(row)))
        assert (filtered.probs[row, end:] == 0).all()
        assert (posterior.probs[row, end:] == 0).all()
        assert (posterior.dense()[row, end:] == 0).all()
        assert torch.isneginf(filtered.belief.log_probs[row]).all() == (row in FIRST_IMPOSSIBLE)
    assert not filtered.belief.log_probs.isnan().any()


@every_dtype
def test_gradient_is_that_of_the_possible_part(dtype):
    tables, expected = with_gradient(dtype), with_gradient(dtype)
    vlhmm.HMM(tables).log_prob(TOKENS, LENGTHS).sum().backward()
    parts = ragged([possible_part(row) for row in range(len(TOKENS))])
    vlhmm.HMM(expected).log_prob(*parts).sum().backward()
    for actual, wanted in (
        (tables.log_start.grad, expected.log_start.grad),
        (tables.transition.log_prob.grad, expected.transition.log_prob.grad),
        (tables.log_emission.grad, expected.log_emission.grad),
    ):
        assert actual.isfinite().all()
        close(actual, wanted.numpy())


@scan
@every_dtype
def test_impossible_rows_leave_the_others_untouched(dtype, parallel):
    hmm = the_hmm(dtype)
    together = hmm.token_log_probs(TOKENS, LENGTHS, parallel=parallel)[POSSIBLE_ROWS]
    alone = hmm.token_log_probs(TOKENS[POSSIBLE_ROWS], LENGTHS[POSSIBLE_ROWS], parallel=parallel)
    close(together, alone.numpy())
    tables, expected = with_gradient(dtype), with_gradient(dtype)
    vlhmm.HMM(tables).log_prob(TOKENS, LENGTHS)[POSSIBLE_ROWS].sum().backward()
    vlhmm.HMM(expected).log_prob(TOKENS[POSSIBLE_ROWS], LENGTHS[POSSIBLE_ROWS]).sum().backward()
    close(tables.log_start.grad, expected.log_start.grad.numpy())
    close(tables.transition.log_prob.grad, expected.transition.log_prob.grad.numpy())
    close(tables.log_emission.grad, expected.log_emission.grad.numpy())


@every_dtype
def test_impossible_past_makes_an_impossible_future(dtype):
    hmm = the_hmm(dtype)
    belief = hmm.filter(TOKENS[:2], LENGTHS[:2]).belief
    token_log_probs = hmm.token_log_probs([[2, 2], [2, 2]], belief=belief)
    assert token_log_probs[0].isfinite().all()
    assert torch.isneginf(token_log_probs[1]).all()
    filtered = hmm.filter([[2, 2], [2, 2]], belief=belief)
    assert (filtered.probs[1] == 0).all()
    assert torch.isneginf(filtered.belief.log_probs[1]).all()
    next_probs = hmm.next_token_probs(belief)
    close(next_probs[0], ORACLE.next_token_probs(sentence(0)))
    assert (next_probs[1] == 0).all()


def test_impossible_past_stays_impossible_over_a_reset():
    hmm = vlhmm.HMM.from_probabilities(START, TRANSITION, EMISSION, reset_token=1)
    # 2 then 0 cannot be; that 1 resets afterwards does not undo it.
    assert torch.isneginf(hmm.token_log_probs([[2, 0, 1, 0, 0]])[0, 1:]).all()
    belief = hmm.filter([[2, 0, 1]]).belief
    assert torch.isneginf(hmm.log_prob([[0, 0]], belief=belief)).all()


def below_possible_rows(row: int) -> torch.Tensor:
    """A batch whose one impossible row is `row`, the last."""
    return TOKENS[[0] * row + [row]]


@pytest.mark.parametrize(("row", "position"), FIRST_IMPOSSIBLE.items())
def test_viterbi_names_row_and_position(row, position):
    with pytest.raises(ValueError, match=rf"\b{row}\b.*position {position}\b"):
        the_hmm().viterbi(below_possible_rows(row))


@pytest.mark.parametrize(("row", "position"), FIRST_IMPOSSIBLE.items())
def test_sample_posterior_names_row_and_position(row, position):
    with pytest.raises(ValueError, match=rf"\b{row}\b.*position {position}\b"):
        the_hmm().sample_posterior(below_possible_rows(row), 2)


@pytest.mark.parametrize("method", ["em", "adam"])
def test_fit_names_row_and_position(method):
    with pytest.raises(ValueError, match=r"1\b.*position 3\b"):
        the_hmm().fit([sentence(0), sentence(1)], method=method)


@pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.zeros], ids=str)
def test_every_sentence_of_an_hmm_with_zeros(kind):
    """All sentences of three words, possible or not, in one batch."""
    for seed in range(3):
        oracle, tables = random_hmm(kind, seed)
        tokens = torch.cartesian_prod(*[torch.arange(oracle.num_words)] * 3)
        hmm = vlhmm.HMM(tables)
        token_log_probs, filtered = hmm.token_log_probs(tokens), hmm.filter(tokens)
        posterior = hmm.posterior(tokens)
        assert not posterior.probs.isnan().any()
        for b, sentence in enumerate(tokens.numpy()):
            expected = oracle.token_log_probs(sentence)
            close(token_log_probs[b], expected)
            close(filtered.probs[b].sum(1), np.isfinite(expected).astype(float))
            close(posterior.probs[b].sum(1), np.isfinite(expected).astype(float))
