"""A dense HMM over other states than the window before: the belief enters by the boundary alone."""

import pytest
import torch
from torch import Tensor

from vlhmm.inference.gather import Batch, Boundary, window_factors
from vlhmm.inference.score import score
from vlhmm.models import Model, ModelSettings, build
from vlhmm.support import dense_support
from vlhmm.tables import Belief

WORDS, STATES, SIZE, LENGTH = 9, 6, 3, 5


def model_of(parameterization: str, reset_token: int | None) -> Model:
    settings = ModelSettings(
        parameterization=parameterization,  # type: ignore[arg-type]
        states_per_block=STATES,
        dim=4,
        transition="table" if parameterization == "scalar" else "softmax",
        init_scale=1.0,
    )
    return build(settings, dense_support(WORDS, STATES), reset_token).double()


def by_hand(model: Model, kept: list[Tensor], tokens: Tensor, belief: Belief, reset_token: int | None) -> Tensor:
    """log p of each sequence, a state vector at a time."""
    before, now = kept
    window = type(model.all_states())
    tables = model.tables(window(now))
    start = tables.log_start.exp()
    move = tables.transition.log_rows(torch.arange(now.numel())).exp()
    enter = model.boundary(window(before), window(now)).log_rows(torch.arange(before.numel())).exp()
    totals = []
    for sequence, last, probs in zip(tokens, belief.token, belief.probs, strict=True):
        previous, state = last, start if last == reset_token else probs @ enter
        for position, token in enumerate(sequence):
            if position:
                state = start if previous == reset_token else state @ move
            state, previous = state * tables.log_emission[token].exp(), token
            # Independent of what comes before where states begin anew: kept as a factor.
            if token == reset_token:
                totals.append(state.sum().log())
                state = state / state.sum()
        totals.append(state.sum().log())
    return torch.stack(totals).sum()


@pytest.mark.parametrize("reset_token", [None, 2])
@pytest.mark.parametrize("parameterization", ["neural", "linear", "scalar"])
def test_likelihood_and_gradient_equal_products_of_matrices(parameterization: str, reset_token: int | None) -> None:
    model = model_of(parameterization, reset_token)
    generator = torch.Generator().manual_seed(3)
    draws = [model.kept_after_dropout(0.5, generator) for _ in range(2)]
    before, now = (draw.states for draw in draws if draw is not None)
    tokens = torch.randint(WORDS, (SIZE, LENGTH), generator=generator)
    tokens[0, 2] = 2
    log_probs = torch.randn(SIZE, before.shape[1], generator=generator, dtype=torch.float64).log_softmax(1)
    belief = Belief(torch.tensor([2, 1, 0]), log_probs)

    carried = type(model.all_states())(before.expand(SIZE, -1))
    tables, transition = model(carried, draws[1])
    assert transition is not None
    batch = Batch(tokens, torch.full((SIZE,), LENGTH))
    assert window_factors(tables, batch, belief, Boundary(transition)).log_tiles.shape[0] == 1
    ours = score(tables, batch, belief, Boundary(transition)).token_log_probs.sum()
    expected = by_hand(model, [before, now], tokens, belief, reset_token)
    torch.testing.assert_close(ours, expected)
    parameters = list(model.parameters())
    for found, wanted in zip(
        torch.autograd.grad(ours, parameters, allow_unused=True, materialize_grads=True),
        torch.autograd.grad(expected, parameters, allow_unused=True, materialize_grads=True),
        strict=True,
    ):
        torch.testing.assert_close(found, wanted, rtol=1e-7, atol=1e-12)


def test_an_impossible_past_stays_impossible() -> None:
    model = model_of("neural", None)
    draw = model.kept_after_dropout(0.5, torch.Generator().manual_seed(0))
    assert draw is not None
    carried = type(draw)(draw.states.expand(SIZE, -1))
    tables, transition = model(carried, draw)
    log_probs = torch.zeros(SIZE, draw.states.shape[1], dtype=torch.float64).log_softmax(1)
    log_probs[1] = -torch.inf
    scored = score(
        tables,
        Batch(torch.ones(SIZE, LENGTH, dtype=torch.int64), torch.full((SIZE,), LENGTH)),
        Belief(torch.zeros(SIZE, dtype=torch.int64), log_probs),
        Boundary(transition),
    )
    assert scored.token_log_probs.isneginf().all(1).tolist() == [False, True, False]
    gradients = torch.autograd.grad(scored.token_log_probs[[0, 2]].sum(), list(model.encoder.parameters()))
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)
