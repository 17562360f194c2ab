"""The HMM cell of Buys et al.: an exact HMM, and each switch as its formula says."""

from dataclasses import replace

import pytest
import torch
from small_baselines import HMM, random_tokens, small
from torch import Tensor

import vlhmm
from vlhmm.baselines import BuysHMMSettings, NeuralScorer
from vlhmm.baselines.buys_hmm import BuysHMM

X, Z = 9, 8


def scores(model: BuysHMM, tokens: torch.Tensor) -> torch.Tensor:
    return NeuralScorer(model).score_window(tokens, torch.full((len(tokens),), tokens.shape[1]), None)[0]


def cell(name: str) -> BuysHMM:
    model = small(name)
    assert isinstance(model, BuysHMM)
    return model


def log_emission(model: BuysHMM) -> Tensor:
    """log p(x | z), (X, Z)."""
    return (model.emission + model.bias[:, None]).log_softmax(dim=0)


def test_all_switches_off_is_an_exact_hmm() -> None:
    model = cell("hmm")
    exact = vlhmm.HMM.from_probabilities(
        torch.full((Z,), 1 / Z).double(),
        model.transition.detach().softmax(-1),
        log_emission(model).detach().exp().T,
    )
    tokens = random_tokens(X, 3, 20)
    torch.testing.assert_close(scores(model, tokens), exact.token_log_probs(tokens), rtol=1e-10, atol=1e-10)


def test_gradients_are_those_of_an_exact_hmm() -> None:
    tokens = random_tokens(X, 2, 6)
    model = cell("hmm")
    model(tokens, model.start_state(2), None).token_log_probs.sum().backward()
    copy = cell("hmm")
    log_transition, log_emitted = copy.transition.log_softmax(-1), log_emission(copy)
    total = torch.zeros(()).double()
    for row in tokens:
        # In log space, without any of the cell's scaling.
        alpha = torch.full((Z,), -torch.tensor(float(Z)).double().log()).double() + log_emitted[row[0]]
        for token in row[1:]:
            alpha = torch.logsumexp(alpha[:, None] + log_transition, dim=0) + log_emitted[token]
        total = total + torch.logsumexp(alpha, dim=0)
    total.backward()
    for ours, theirs in zip(model.parameters(), copy.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "name",
    ["hmm", "hmm-add", "hmm-gate", "hmm-delayed-transition", "hmm-sigmoid", "hmm-rnn", "hmm-sigmoid-rnn"],
)
@torch.no_grad()
def test_each_switch_is_its_formula(name: str) -> None:
    """Word by word and with whole (Z, Z) matrices, as the paper's text has it."""
    model, tokens = cell(name), random_tokens(X, 1, 7)[0]
    settings = model.settings
    emission = log_emission(model).exp()
    state, expected = torch.full((Z,), 1 / Z).double(), []
    for position, token in enumerate(tokens):
        if position:
            logits = model.transition.T.clone()
            if model.word_input is not None:
                values = model.word_input(model.emission[tokens[position - 1]])[:, None]
                logits = logits + values if settings.transition_input == "add" else logits * values.sigmoid()
            if settings.delay_transition_softmax:
                pre = logits @ updated
                state = pre.sigmoid() if settings.state == "sigmoid" else pre.softmax(0)
            else:
                state = logits.softmax(0) @ updated
        if settings.delay_emission_softmax:
            expected.append((model.emission @ state + model.bias).log_softmax(0)[token])
        else:
            expected.append((state @ emission[token] / state.sum()).log())
        updated = state * emission[token]
        updated = updated / updated.sum()
    torch.testing.assert_close(scores(model, tokens[None])[0], torch.stack(expected), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("transition_input", ["none", "add"])
def test_large_weights_give_numbers(transition_input: str) -> None:
    model = BuysHMM(replace(HMM, transition_input=transition_input, init_scale=25.0), X)  # type: ignore[arg-type]
    if model.word_input is not None:
        torch.nn.init.uniform_(model.word_input.weight, -1, 1)
    scored = model(random_tokens(X, 2, 12), model.start_state(2), None).token_log_probs
    assert bool(scored.isfinite().all())
    scored.sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isfinite().all()), name


def test_a_sigmoid_needs_the_delayed_softmax() -> None:
    with pytest.raises(ValueError, match="delay_transition_softmax = true"):
        BuysHMMSettings(state="sigmoid")
