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


def word_by_word(model: BuysHMM, tokens: Tensor) -> Tensor:
    """With whole (Z, Z) matrices, as the paper's text has it."""
    settings = model.settings
    emission = log_emission(model).exp()
    state, log_probs = torch.full((Z,), 1 / Z).double(), []
    for position, token in enumerate(tokens):
        if position:
            logits = model.transition.T
            if model.word_input is not None:
                embedded = settings.input_scale * model.emission[tokens[position - 1]]
                values = model.word_input(embedded)[:, None]
                logits = logits + values if settings.transition_input == "add" else logits * values.sigmoid()
            if settings.delay_transition_softmax:
                pre = logits @ updated
                state = pre.sigmoid() if settings.state == "sigmoid" else pre.softmax(0)
            else:
                state = logits.softmax(0) @ updated
        if settings.delay_emission_softmax:
            log_probs.append((model.emission @ state + model.bias).log_softmax(0)[token])
        else:
            log_probs.append((state @ emission[token] / state.sum()).log())
        updated = state * emission[token]
        updated = updated / updated.sum()
    return torch.stack(log_probs)


@pytest.mark.parametrize("transition_input", ["none", "add", "gate"])
@pytest.mark.parametrize(
    "transition",
    [{}, {"delay_transition_softmax": True}, {"delay_transition_softmax": True, "state": "sigmoid"}],
    ids=["mixed", "softmax", "sigmoid"],
)
@pytest.mark.parametrize("delay_emission_softmax", [False, True])
def test_each_combination_of_switches_is_its_formula_with_its_gradients(
    transition_input: str, transition: dict[str, object], delay_emission_softmax: bool
) -> None:
    settings = replace(
        HMM,
        transition_input=transition_input,  # type: ignore[arg-type]
        delay_emission_softmax=delay_emission_softmax,
        input_scale=0.3,
        **transition,  # type: ignore[arg-type]
    )
    model, plain = (BuysHMM(settings, X, torch.Generator().manual_seed(0)).double() for _ in range(2))
    tokens = random_tokens(X, 1, 7)[0]
    ours = model(tokens[None], model.start_state(1), None).token_log_probs[0]
    expected = word_by_word(plain, tokens)
    torch.testing.assert_close(ours, expected, rtol=1e-10, atol=1e-10)
    ours.sum().backward()
    expected.sum().backward()
    for (name, parameter), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(
            parameter.grad, theirs.grad, rtol=1e-8, atol=1e-10, msg=lambda text, n=name: f"{n}: {text}"
        )


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
