"""Probabilities far below the smallest float32: no answer depends on where a text is cut, nor on the type."""

import numpy as np
import pytest
import torch
from kinds import every_dtype
from oracle import EVERY_KIND, random_hmm

import vlhmm

ugly_kinds = pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.ugly], ids=str)
RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-5}


def cut_log_probs(hmm: vlhmm.HMM, sentence: np.ndarray) -> dict[str, float]:
    """log p of a sentence by every way of cutting it."""
    tokens = torch.tensor(sentence)[None]
    found = {f"window {window}": hmm.log_prob(tokens, window=window).item() for window in (None, 1, 2, 3)}
    found["parallel"] = hmm.log_prob(tokens, parallel=True).item()
    carried = hmm.filter(tokens[:, :2]).belief
    found["carried"] = (hmm.log_prob(tokens[:, :2]) + hmm.log_prob(tokens[:, 2:], belief=carried)).item()
    stream = hmm.stream()
    found["stream"] = sum(stream.feed(token[None]).item() for token in tokens[0])
    return found


@ugly_kinds
@every_dtype
def test_every_cut_of_a_rare_sentence_gives_its_probability(kind, dtype):
    for seed in range(2):
        oracle, tables = random_hmm(kind, seed, dtype)
        hmm = vlhmm.HMM(tables)
        sentence = oracle.rare_sentence(5, np.random.default_rng(seed))
        expected = oracle.log_prob(sentence)
        for way, found in cut_log_probs(hmm, sentence).items():
            np.testing.assert_allclose(found, expected, rtol=RELATIVE[dtype], atol=RELATIVE[dtype], err_msg=way)
        for window in (None, 1, 2):
            close = RELATIVE[dtype] * (1 + abs(expected))
            probs = hmm.posterior(sentence[None], window=window).dense()[0]
            np.testing.assert_allclose(probs, oracle.posterior(sentence), rtol=0, atol=close)
            probs = hmm.filter(sentence[None], window=window).probs[0]
            assert probs.sum(1).numpy() == pytest.approx(1, abs=close)


@every_dtype
def test_a_state_that_underflows_at_once_is_not_forgotten(dtype):
    """The state that word 0 leaves all but impossible is the one that must have emitted it."""
    hmm = vlhmm.HMM.from_probabilities(
        [1.0, 1.8303351471409566e-26],
        [[1.0, 4.545788350072666e-49], [0.0, 1.0]],
        [[4.8212294929272924e-48, 1.0, 8.925478719906323e-99], [1.0, 0.0, 8.236284899548581e-29]],
        dtype=dtype,
    )
    for found in cut_log_probs(hmm, np.array([0, 2, 1, 2, 2])).values():
        assert found == pytest.approx(-575.36337475, rel=1e-6)
    for window in (None, 1, 2):
        probs = hmm.posterior([[0, 2, 1, 2, 2]], window=window).probs[0, :, 0]
        np.testing.assert_allclose(probs, [1, 1, 1, 0, 0], atol=1e-5)


@every_dtype
def test_a_start_that_underflows_after_a_reset(dtype):
    """The belief stands on the reset token, and only the state that hardly ever begins emits what follows."""
    hmm = vlhmm.HMM.from_probabilities(
        [1.0, 1e-60], [[0.5, 0.5], [0.5, 0.5]], [[1.0, 0.0], [0.5, 0.5]], reset_token=0, dtype=dtype
    )
    belief = hmm.filter([[0]]).belief
    for k in (1, 2):
        best = hmm.viterbi([[1]], k=k, belief=belief)
        assert best.states[0, 0].tolist() == [1]
        assert best.log_prob[0, 0].item() == pytest.approx(np.log(1e-60) + np.log(0.5), rel=1e-6)


def test_small_moves_do_not_outweigh_what_was_lost():
    """No transition is zero, yet what underflows of the state, 1e-45, is as much as a move of 1e-44 brings."""
    move = 1e-44
    hmm = vlhmm.HMM.from_probabilities(
        [1.0, 1e-45], [[1 - move, move], [move, 1 - move]], [[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float32
    )
    double = hmm.to(dtype=torch.float64)
    for window in (None, 1):
        found, expected = (one.token_log_probs([[0, 0, 2]], window=window)[0, 2].item() for one in (hmm, double))
        assert found == pytest.approx(expected, rel=1e-6)
