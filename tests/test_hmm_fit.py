"""Laws of `HMM.fit`: Baum-Welch never loses likelihood, every result is an HMM, gradients climb too."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import EVERY_KIND, Kind, dense_oracle, random_hmm

import vlhmm
from vlhmm.transitions import TableTransition

every_method = pytest.mark.parametrize(
    "options",
    [{"method": "em"}, {"method": "em", "batch_size": 2}, {"method": "adam"}],
    ids=["em", "mini-batch em", "adam"],
)


def text(seed: int, lengths=(12, 1, 7, 20)) -> tuple[list[np.ndarray], vlhmm.HMM]:
    """Sentences of one random HMM, and another one to start from."""
    kind = Kind("dense", "table", reset=False)
    oracle, _ = random_hmm(kind, seed)
    random = np.random.default_rng(seed)
    sentences = [oracle.sentence(length, random) for length in lengths]
    states = 3
    begin = vlhmm.HMM.from_probabilities(
        random.dirichlet(np.ones(states)),
        random.dirichlet(np.ones(states), size=states),
        random.dirichlet(np.ones(oracle.num_words), size=states),
    )
    return sentences, begin


def total_log_prob(hmm: vlhmm.HMM, sentences: list[np.ndarray]) -> float:
    return sum(hmm.log_prob([sentence]).item() for sentence in sentences)


def assert_is_hmm(hmm: vlhmm.HMM) -> None:
    oracle = dense_oracle(hmm.tables)
    for table in (oracle.start, oracle.transition, oracle.emission):
        assert np.isfinite(table).all()
        np.testing.assert_allclose(table.sum(-1), 1.0, atol=1e-9)


@settings(max_examples=12)
@given(st.sampled_from(EVERY_KIND), st.integers(0, 2**31), st.integers(1, 3), st.integers(1, 12))
def test_likelihood_never_falls(kind, seed, num_sentences, length):
    oracle, tables = random_hmm(kind, seed)
    random = np.random.default_rng(seed)
    sentences = [oracle.sentence(length, random) for _ in range(num_sentences)]
    fitted = vlhmm.HMM(tables).fit(sentences, method="em", iterations=4, tolerance=-np.inf)
    # A sentence that is all but certain has a log p next to 0: it is known to the rounding of 1.
    history = [*fitted.log_probs, total_log_prob(fitted.hmm, sentences)]
    assert len(fitted.log_probs) == 4
    np.testing.assert_allclose(history[0], total_log_prob(vlhmm.HMM(tables), sentences), rtol=1e-9, atol=1e-14)
    assert (np.diff(history) >= -1e-8).all()
    assert_is_hmm(fitted.hmm)
    assert fitted.hmm.tables.reset_token == tables.reset_token


@pytest.mark.parametrize("kind", EVERY_KIND, ids=str)
def test_em_step_normalises_enumerated_counts(kind):
    oracle, tables = random_hmm(kind, seed=51)
    random = np.random.default_rng(0)
    sentences = [oracle.sentence(length, random) for length in (4, 3, 1)]
    fitted = dense_oracle(vlhmm.HMM(tables).fit(sentences, method="em", iterations=1).hmm.tables)
    counts = [sum(parts) for parts in zip(*map(oracle.counts, sentences), strict=True)]
    old = (oracle.start, oracle.transition, oracle.emission)
    for new, before, count in zip((fitted.start, fitted.transition, fitted.emission), old, counts, strict=True):
        used = count.sum(-1, keepdims=True) > 0
        expected = np.where(used, count / np.where(used, count.sum(-1, keepdims=True), 1), before)
        np.testing.assert_allclose(new, expected, atol=1e-9)


@every_method
def test_rows_without_counts_stay_proper(options):
    """State 2 is never entered and word 3 never seen."""
    start, transition = [0.5, 0.5, 0.0], [[0.5, 0.5, 0.0], [0.3, 0.7, 0.0], [0.2, 0.2, 0.6]]
    emission = [[0.4, 0.3, 0.2, 0.1], [0.1, 0.2, 0.3, 0.4], [0.25] * 4]
    hmm = vlhmm.HMM.from_probabilities(start, transition, emission, dtype=torch.float64)
    fitted = hmm.fit([[0, 1, 2, 1], [2, 2], [0]], iterations=5, **options).hmm
    assert_is_hmm(fitted)
    after = dense_oracle(fitted.tables)
    np.testing.assert_allclose(after.transition[2], transition[2], atol=1e-9)
    np.testing.assert_allclose(after.emission[2], emission[2], atol=1e-9)
    assert after.start[2] == 0


@every_method
def test_fitting_improves_on_the_beginning(options):
    sentences, begin = text(seed=1)
    before = total_log_prob(begin, sentences)
    generator = torch.Generator().manual_seed(0)
    fitted = begin.fit(sentences, iterations=15, tolerance=-np.inf, seed=generator, **options)
    assert len(fitted.log_probs) == 15
    assert total_log_prob(fitted.hmm, sentences) > before + 1
    assert_is_hmm(fitted.hmm)
    # The HMM that was fitted is another one.
    assert total_log_prob(begin, sentences) == before


def test_mini_batch_of_everything_at_rate_one_is_em():
    sentences, begin = text(seed=2)
    whole = begin.fit(sentences, iterations=3, tolerance=-np.inf)
    batched = begin.fit(sentences, iterations=3, tolerance=-np.inf, batch_size=len(sentences), learning_rate=1.0)
    np.testing.assert_allclose(batched.log_probs, whole.log_probs, rtol=1e-9)
    assert isinstance(whole.hmm.tables.transition, TableTransition)
    np.testing.assert_allclose(
        batched.hmm.tables.transition.log_prob.exp(), whole.hmm.tables.transition.log_prob.exp(), atol=1e-9
    )


def test_sequences_come_in_any_form():
    _, begin = text(seed=3)
    rows = [[0, 1, 1, 0], [1, 1, 0, 0]]
    forms = [
        rows,
        [np.array(row) for row in rows],
        [torch.tensor(row) for row in rows],
        np.array(rows),
        torch.tensor(rows),
    ]
    histories = [begin.fit(form, iterations=3, tolerance=-np.inf).log_probs for form in forms]
    for history in histories:
        np.testing.assert_allclose(history, histories[0], rtol=1e-9)
    padded = begin.fit([[0, 1, 1, 0], [1, 1, -9, 99]], lengths=[4, 2], iterations=3, tolerance=-np.inf)
    ragged = begin.fit([[0, 1, 1, 0], [1, 1]], iterations=3, tolerance=-np.inf)
    np.testing.assert_allclose(padded.log_probs, ragged.log_probs, rtol=1e-9)


def test_impossible_sequence_in_a_mini_batch_keeps_its_number():
    """Word 2 is never emitted; the order of mini-batches is random, the number in the message is not."""
    hmm = vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[0.5, 0.5, 0.0]])
    sentences = [[0, 1]] * 5 + [[0, 1, 2]] + [[1, 0]] * 2
    for seed in range(3):
        with pytest.raises(ValueError, match=r"\b5\b.*position 2\b"):
            hmm.fit(sentences, batch_size=2, seed=seed)


@pytest.mark.parametrize("log_prob", [-90.0, -700.0, -1000.0])
def test_mini_batches_keep_what_is_beneath_every_float(log_prob: float) -> None:
    """A batch without word 2 leaves it (1 - rate) of its probability, however small that is."""
    tables = vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[0.5, 0.5, 0.0]], dtype=torch.float64).tables
    tables.log_emission[2] = log_prob
    fitted = vlhmm.HMM(tables).fit([[0, 1]], iterations=1, batch_size=1, learning_rate=0.25, seed=0)
    assert fitted.hmm.log_prob([[2]]).item() == pytest.approx(log_prob + math.log(0.75), rel=1e-12)
