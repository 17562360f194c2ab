"""One sequence, a padded batch and a ragged list get the same answers, and what is drawn follows its seed."""

import numpy as np
import pytest
import torch
from test_hmm_bad_input import refused

import vlhmm

RAGGED = [[0, 1, 2, 3], [3], [2, 2, 1]]
PADDED, LENGTHS = [[0, 1, 2, 3], [3, 9, 9, 9], [2, 2, 1, 9]], [4, 1, 3]
HMM = vlhmm.HMM.random(3, 4, seed=2, dtype=torch.float64)
GAPS = [[True, False, True, False], [True], [False, False, True]]

PER_SEQUENCE = {
    "log_prob": lambda x, **k: HMM.log_prob(x, **k),
    "token_log_probs": lambda x, **k: HMM.token_log_probs(x, **k),
    "filter": lambda x, **k: HMM.filter(x, **k).probs,
    "posterior": lambda x, **k: HMM.posterior(x, **k).probs,
    "posterior.dense": lambda x, **k: HMM.posterior(x, **k).dense(),
    "entropy.position": lambda x, **k: HMM.posterior_entropy(x, **k).position,
    "entropy.path": lambda x, **k: HMM.posterior_entropy(x, **k).path,
    "viterbi": lambda x, **k: HMM.viterbi(x, **k).states,
    "viterbi.log_prob": lambda x, **k: HMM.viterbi(x, k=3, **k).log_prob,
    "sample_posterior": lambda x, **k: HMM.sample_posterior(x, 5, seed=0, **k)[..., 0] >= 0,
}
every_query = pytest.mark.parametrize("query", PER_SEQUENCE.values(), ids=PER_SEQUENCE)


@every_query
def test_ragged_lists_are_padded_batches(query):
    expected = query(PADDED, lengths=LENGTHS)
    for ragged in (RAGGED, tuple(RAGGED), [np.array(row) for row in RAGGED], [torch.tensor(row) for row in RAGGED]):
        assert torch.equal(query(ragged), expected)


@every_query
def test_one_sequence_is_answered_without_a_batch_axis(query):
    for row in RAGGED:
        expected = query([row])
        for one in (row, tuple(row), np.array(row), torch.tensor(row), [torch.tensor(token) for token in row]):
            answer = query(one)
            assert answer.shape == expected.shape[1:]
            assert torch.equal(answer, expected[0])


def test_counts_and_fits_are_the_same():
    counts = HMM.expected_counts(PADDED, LENGTHS)
    assert torch.equal(HMM.expected_counts(RAGGED).transition, counts.transition)
    one = HMM.expected_counts(RAGGED[0])
    assert torch.equal(one.emission, HMM.expected_counts([RAGGED[0]]).emission)
    assert HMM.fit(RAGGED[0], iterations=2).log_probs == HMM.fit([RAGGED[0]], iterations=2).log_probs
    assert HMM.fit(torch.tensor(RAGGED[0]), iterations=2).log_probs == HMM.fit([RAGGED[0]], iterations=2).log_probs


def test_infilling_takes_ragged_gaps_and_single_texts():
    gaps = [[*row, *[False] * (4 - len(row))] for row in GAPS]
    expected = HMM.infill(PADDED, gaps, LENGTHS, num=2, seed=0)
    filled = HMM.infill(RAGGED, GAPS, num=2, seed=0)
    for name in ("log_prob", "rows", "positions", "probs", "samples", "best", "best_log_prob"):
        assert torch.equal(getattr(filled, name), getattr(expected, name))
    one = HMM.infill(RAGGED[0], GAPS[0], num=2, seed=0)
    batch = HMM.infill([RAGGED[0]], [GAPS[0]], num=2, seed=0)
    assert (one.log_prob.shape, one.samples.shape, one.best.shape) == ((), (2, 4), (4,))
    assert one.probs.shape == (2, 4)
    assert torch.equal(one.best, batch.best[0])
    assert torch.equal(one.samples, batch.samples[0])
    refused(lambda: HMM.infill(RAGGED, GAPS[:2]), "missing", "shape")


def test_a_belief_keeps_its_batch_axis():
    belief = HMM.filter([0, 1]).belief
    assert belief.log_probs.shape == (1, 3)
    whole = HMM.log_prob([0, 1, 2])
    torch.testing.assert_close(HMM.log_prob([2], belief=belief) + HMM.log_prob([0, 1]), whole)


def test_streams_take_ragged_lists():
    stream, other = HMM.stream(num=3), HMM.stream(num=3)
    fed = stream.feed([[0, 1], [], [2]])
    assert torch.equal(fed, other.feed([[0, 1], [0, 0], [2, 0]], lengths=[2, 0, 1]))
    assert stream.num_tokens.tolist() == [2, 0, 1]
    assert repr(stream) == "Stream(3 texts, 3 tokens fed, 3 states, 4 words)"
    refused(lambda: stream.feed([[0, 1], [], [2]], lengths=[2, 0, 1]), "lengths", "different lengths")
    one = HMM.stream()
    # A stream and a whole sequence may round differently.
    torch.testing.assert_close(
        one.feed([0, 1, 2], lengths=[2])[0, :2], HMM.token_log_probs([0, 1]), rtol=1e-14, atol=0.0
    )


def test_bad_sequences_are_refused():
    refused(lambda: HMM.log_prob([0, 1], lengths=[2]), "lengths", "one sequence")
    refused(lambda: HMM.log_prob(RAGGED, lengths=[4, 1, 3]), "lengths", "different lengths")
    refused(lambda: HMM.log_prob([[0, 1], []]), r"tokens\[1\]", r"\b1\b")
    refused(lambda: HMM.log_prob([[0, 1], [0.5]]), r"tokens\[1\]", "float")
    refused(lambda: HMM.log_prob([[0, 1], [17]]), r"\b17\b", r"\b3\b")
    refused(lambda: HMM.log_prob([[0, 1], 2]), "tokens")
    refused(lambda: HMM.log_prob(["the", "cat"]), "tokens")
    refused(lambda: HMM.log_prob("the"), "tokens")
    refused(lambda: HMM.log_prob([[[0], [1]], [[0]]]), r"tokens\[0\]", "one-dimensional")


DRAWN = {
    "sample": lambda seed: HMM.sample(4, 30, seed=seed).tokens,
    "sample_posterior": lambda seed: HMM.sample_posterior([0, 1, 2, 3] * 5, 4, seed=seed),
    "infill": lambda seed: HMM.infill([0] * 30, [True] * 30, num=4, seed=seed).samples,
    "fit": lambda seed: HMM.fit(RAGGED * 5, batch_size=1, iterations=2, seed=seed).hmm.start,
}
every_draw = pytest.mark.parametrize("draw", DRAWN.values(), ids=DRAWN)


@every_draw
def test_what_is_drawn_follows_the_seed(draw):
    first, again, other = draw(1), draw(1), draw(2)
    assert torch.equal(first, again)
    assert torch.equal(first, draw(torch.Generator().manual_seed(1)))
    assert not torch.equal(first, other)
    torch.manual_seed(5)
    unseeded = draw(None)
    torch.manual_seed(5)
    assert torch.equal(draw(None), unseeded)


def test_generator_is_the_older_name_of_seed():
    with pytest.warns(DeprecationWarning, match="seed="):
        old = HMM.sample(2, 5, generator=torch.Generator().manual_seed(1)).tokens
    assert torch.equal(old, HMM.sample(2, 5, seed=1).tokens)
    assert torch.equal(old, HMM.sample(2, 5, torch.Generator().manual_seed(1)).tokens)
    refused(lambda: HMM.sample(2, 5, seed=1, generator=torch.Generator()), "both")
