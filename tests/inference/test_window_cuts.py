"""Long sequences are cut into windows to bound memory: no answer depends on where the cuts fall."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from oracle import EVERY_KIND, Kind, ragged, random_hmm

import vlhmm
from vlhmm.cluster import Blocks
from vlhmm.inference import score
from vlhmm.inference.gather import Batch
from vlhmm.models import neural_hmm
from vlhmm.tables import Tables
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step
from vlhmm.transitions import TableTransition

every_kind = pytest.mark.parametrize("kind", EVERY_KIND, ids=str)


def close(actual: torch.Tensor, expected: torch.Tensor) -> None:
    np.testing.assert_allclose(actual.detach().numpy(), expected.detach().numpy(), rtol=1e-10, atol=1e-10)


def sentences_of(oracle, lengths) -> tuple[torch.Tensor, torch.Tensor]:
    random = np.random.default_rng(0)
    return ragged([oracle.sentence(length, random) for length in lengths], padding=-1)


@pytest.mark.parametrize("window", [3, 8])
@every_kind
def test_answers_do_not_depend_on_the_window(kind, window):
    check_answers(kind, window)


@pytest.mark.parametrize("window", [1, 2, 7, 9, 100])
@pytest.mark.parametrize("support", ["blocked", "uniform"])
def test_windows_may_be_of_any_length(support, window):
    check_answers(Kind(support, "table", reset=True), window)


def check_answers(kind: Kind, window: int) -> None:
    oracle, tables = random_hmm(kind, seed=21)
    hmm = vlhmm.HMM(tables)
    # Rows that end inside, at the end of, and long before a window.
    tokens, lengths = sentences_of(oracle, (9, 1, 6, 8))
    belief = hmm.filter(sentences_of(oracle, (2, 2, 2, 2))[0]).belief
    for past in (None, belief):
        close(hmm.log_prob(tokens, lengths, past, window=window), hmm.log_prob(tokens, lengths, past))
        close(hmm.token_log_probs(tokens, lengths, past, window=window), hmm.token_log_probs(tokens, lengths, past))
        cut, whole = hmm.filter(tokens, lengths, past, window=window), hmm.filter(tokens, lengths, past)
        close(cut.probs, whole.probs)
        close(cut.belief.log_probs, whole.belief.log_probs)
        assert torch.equal(cut.belief.token, whole.belief.token)
        smooth = hmm.posterior(tokens, lengths, past, window=window)
        close(smooth.probs, hmm.posterior(tokens, lengths, past).probs)
    best = hmm.viterbi(tokens, lengths, window=window)
    close(best.log_prob, hmm.viterbi(tokens, lengths).log_prob)
    for states, log_prob, sentence, end in zip(best.states, best.log_prob, tokens, lengths, strict=True):
        assert (states[0, end:] == -1).all()
        close(log_prob[0], path_log_prob(oracle, sentence[:end].numpy(), states[0, :end].numpy()))


def path_log_prob(oracle, tokens: np.ndarray, path: np.ndarray) -> torch.Tensor:
    log_prob = 0.0
    for t, (token, state) in enumerate(zip(tokens, path, strict=True)):
        step = oracle.start if oracle.after_reset(tokens, t) else oracle.transition[path[t - 1]]
        log_prob += np.log(step[state]) + np.log(oracle.emission[state, token])
    return torch.tensor(log_prob)


@pytest.mark.parametrize("reset", [False, True])
@pytest.mark.parametrize("window", [1, 5])
@pytest.mark.parametrize("support", ["dense", "blocked", "cloned", "uniform"])
def test_gradient_does_not_depend_on_the_window(support, window, reset):
    oracle, tables = random_hmm(Kind(support, "table", reset), seed=22)
    tokens, lengths = sentences_of(oracle, (12, 1, 7))
    weights = torch.linspace(-1.0, 1.0, tokens.numel(), dtype=torch.float64).view(tokens.shape)
    gradients = []
    for window_or_none in (None, window):
        start = tables.log_start.clone().requires_grad_()
        table = tables.transition.log_prob.clone().requires_grad_()
        emission = tables.log_emission.clone().requires_grad_()
        hmm = vlhmm.HMM(Tables(tables.support, start, TableTransition(table), emission, tables.reset_token))
        token_log_probs = hmm.token_log_probs(tokens, lengths, window=window_or_none)
        gradients.append(torch.autograd.grad((weights * token_log_probs).sum(), (start, table, emission)))
    for actual, expected in zip(*gradients, strict=True):
        close(actual, expected)


@settings(max_examples=15)
@given(st.sampled_from(EVERY_KIND), st.integers(0, 2**31), st.integers(1, 40), st.integers(2, 50))
def test_any_window_of_any_hmm(kind, seed, length, window):
    oracle, tables = random_hmm(kind, seed)
    tokens = torch.tensor(oracle.sentence(length, np.random.default_rng(seed)))[None]
    hmm = vlhmm.HMM(tables)
    messages = oracle.by_messages(tokens[0].numpy())
    close(hmm.token_log_probs(tokens, window=window)[0], torch.tensor(messages.token_log_probs))
    close(hmm.posterior(tokens, window=window).dense()[0], torch.tensor(messages.posterior))
    close(hmm.viterbi(tokens, window=window).log_prob[0, 0], torch.tensor(messages.best_log_prob, dtype=torch.float64))


def test_a_text_of_several_windows_is_not_captured_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where windows end is asked of the device, which a capture does not allow."""
    oracle, tables = random_hmm(Kind("blocked", "softmax", reset=False), seed=23)
    tokens, lengths = sentences_of(oracle, (8, 8))
    monkeypatch.setattr(score, "kernels_take", lambda tables: True)
    for window, captured in ((8, True), (7, False)):
        monkeypatch.setattr(score, "default_window", lambda tables, size, window=window: window)
        assert score.can_be_captured(tables, Batch(tokens, lengths)) == captured


@pytest.mark.parametrize("transition", ["softmax", "block-factored"])
def test_training_does_not_depend_on_the_window(transition: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long text is trained on window by window, each made again in the backward pass: the same loss and gradients."""
    oracle, _ = random_hmm(Kind("blocked", "table", reset=False), seed=24)
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(oracle.emission.shape[1], (2, 23), generator=generator)
    blocks = Blocks(np.arange(oracle.emission.shape[1]) % 2, 2)
    found = []
    for window in (23, 5):
        monkeypatch.setattr(score, "default_window", lambda tables, size, window=window: window)
        model = neural_hmm(blocks, 4, 8, transition=transition).double()
        step = Step(model, TrainSettings(batch_size=2, window=23, state_dropout=0.5, clip=0.0))
        for number in range(2):
            step(tokens, 1e-2, fresh=number == 0)
        found.append((step.loss.clone(), [parameter.grad.clone() for parameter in step.parameters]))
    (whole, gradients), (cut, cut_gradients) = found
    close(cut, whole)
    for actual, expected in zip(cut_gradients, gradients, strict=True):
        close(actual, expected)
