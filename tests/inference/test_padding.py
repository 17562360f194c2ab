"""Padding says nothing: answers of sequences in a batch padded beyond all windows are those of the sequences alone."""

import pytest
import torch
from oracle import Kind, random_hmm

import vlhmm

LENGTHS = torch.tensor([5, 3])
PADDED = 40

windows = pytest.mark.parametrize("window", [2, 5, 7])
some_kinds = pytest.mark.parametrize(
    "kind",
    [
        Kind("dense", "table", reset=True),
        Kind("blocked", "block-factored", reset=False),
        Kind("uniform", "table", True),
    ],
    ids=str,
)


def padded(hmm: vlhmm.HMM) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens alone, and with padding of which most windows consist."""
    tokens = hmm.sample(2, 5, torch.Generator().manual_seed(0)).tokens
    more = torch.full((2, PADDED), -1)
    more[:, :5] = tokens
    return tokens, more


def same(actual: torch.Tensor, expected: torch.Tensor, padding: float, axis: int) -> None:
    """Equal up to the end of the unpadded batch, `padding` from there on."""
    assert actual.shape[axis] == PADDED
    inside, outside = actual.narrow(axis, 0, 5), actual.narrow(axis, 5, PADDED - 5)
    torch.testing.assert_close(inside, expected, rtol=1e-10, atol=1e-10)
    assert (outside == padding).all()


@windows
@some_kinds
def test_padding_changes_no_answer(kind, window):
    _, tables = random_hmm(kind, seed=31)
    hmm = vlhmm.HMM(tables)
    alone, tokens = padded(hmm)
    asked, whole = (tokens, LENGTHS), (alone, LENGTHS)
    torch.testing.assert_close(hmm.log_prob(*asked, window=window), hmm.log_prob(*whole))
    for parallel in (False, True):
        expected = hmm.token_log_probs(*whole)
        same(hmm.token_log_probs(*asked, window=window, parallel=parallel), expected, 0, 1)
    filtered, expected = hmm.filter(*asked, window=window), hmm.filter(*whole)
    same(filtered.probs, expected.probs, 0, 1)
    torch.testing.assert_close(filtered.belief.log_probs, expected.belief.log_probs)
    assert torch.equal(filtered.belief.token, expected.belief.token)
    same(hmm.posterior(*asked, window=window).probs, hmm.posterior(*whole).probs, 0, 1)
    entropy, expected = hmm.posterior_entropy(*asked, window=window), hmm.posterior_entropy(*whole)
    same(entropy.position, expected.position, 0, 1)
    torch.testing.assert_close(entropy.path, expected.path)
    for k in (1, 3):
        paths, expected = hmm.viterbi(*asked, k=k, window=window), hmm.viterbi(*whole, k=k)
        same(paths.states, expected.states, -1, 2)
        torch.testing.assert_close(paths.log_prob, expected.log_prob)
    drawn = hmm.sample_posterior(tokens, 3, LENGTHS, window=window)
    assert drawn.shape == (2, 3, PADDED)
    assert ((drawn >= 0) == (torch.arange(PADDED) < LENGTHS[:, None])[:, None]).all()


@some_kinds
def test_padding_beyond_the_default_window(kind, monkeypatch):
    """The same of the queries that choose their window themselves, with and without gradients."""
    monkeypatch.setattr("vlhmm.inference.gather.CPU_WINDOW_BYTES", 1 << 9)
    monkeypatch.setattr("vlhmm.inference.score.default_window", lambda tables, size: 4)
    _, tables = random_hmm(kind, seed=32)
    hmm = vlhmm.HMM(tables)
    alone, tokens = padded(hmm)
    counts, expected = hmm.expected_counts(tokens, LENGTHS), hmm.expected_counts(alone, LENGTHS)
    for name in ("start", "transition", "emission"):
        torch.testing.assert_close(getattr(counts, name), getattr(expected, name))
    missing = torch.zeros(2, PADDED, dtype=torch.bool)
    missing[:, 1] = True
    filled, expected = hmm.infill(tokens, missing, LENGTHS), hmm.infill(alone, missing[:, :5], LENGTHS)
    torch.testing.assert_close(filled.probs, expected.probs)
    torch.testing.assert_close(filled.best_log_prob, expected.best_log_prob)
    same(filled.best, expected.best, -1, 1)
    assert filled.samples.shape == (2, 1, PADDED)
    log_probs = hmm.stream(2).feed(tokens, LENGTHS)
    same(log_probs, hmm.token_log_probs(alone, LENGTHS), 0, 1)


def test_a_short_text_in_a_long_batch():
    hmm = vlhmm.HMM.from_probabilities([0.5, 0.5], [[0.5, 0.5], [0.1, 0.9]], [[0.9, 0.1], [0.1, 0.9]])
    tokens = torch.zeros(2, 20_000, dtype=torch.int64)
    assert hmm.posterior(tokens, [10, 7]).probs.shape == (2, 20_000, 2)
    assert hmm.token_log_probs(tokens, [10, 7]).shape == (2, 20_000)
    assert hmm.token_log_probs(tokens[:1], [10]).shape == (1, 20_000)
