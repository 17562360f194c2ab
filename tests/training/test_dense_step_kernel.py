"""A dense model's training step with every kernel that a GPU takes for it, interpreted, against plain float64."""

import copy
import os
from dataclasses import replace
from typing import Any

import pytest
import torch

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

from vlhmm.models import ModelSettings, build
from vlhmm.ops import emission, recursion
from vlhmm.ops.emission import by_token as token_emission
from vlhmm.ops.emission import word_rows
from vlhmm.support import dense_support
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step

SETTINGS = TrainSettings(
    batch_size=3, window=4, state_dropout=0.0, windows="independent", learning_rate=0.01, clip=0.0, graphs=False
)
STATES, WORDS = 19, 37


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled or interpreted, not both")
@pytest.mark.parametrize("in_graph", [False, True])
@pytest.mark.parametrize(
    ("parameterization", "reset_token", "bias", "expected_use"),
    [
        ("neural", 3, True, {"recursion", "emission", "rows"}),
        ("linear", None, False, {"recursion", "rows of factors"}),
        ("scalar", 3, True, {"recursion", "rows of a table"}),
    ],
)
def test_loss_and_gradients_of_a_step_equal_those_in_float64(
    parameterization: Any,
    reset_token: int | None,
    bias: bool,
    expected_use: set[str],
    in_graph: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings = ModelSettings(
        parameterization=parameterization,
        states_per_block=STATES,
        dim=8,
        transition="table" if parameterization == "scalar" else "softmax",
        emission_bias=bias,
        precision="highest",
    )
    model = build(settings, dense_support(WORDS, STATES), reset_token)
    ours = Step(copy.deepcopy(model), SETTINGS)
    exact = Step(copy.deepcopy(model).double(), SETTINGS)
    window = torch.randint(WORDS, (3, 4), generator=torch.Generator().manual_seed(0))
    window[:2, 1] = 3
    exact(window, 0.01, fresh=True)
    used = list[str]()

    def taken(name: str) -> Any:
        # `append` returns None.
        return lambda *_: not used.append(name)  # type: ignore[func-returns-value]

    monkeypatch.setattr(emission, "_kernels_take", taken("emission"))
    monkeypatch.setattr(word_rows, "_kernels_take", taken("rows"))
    monkeypatch.setattr(token_emission, "_cpu_takes", lambda *_: False)
    monkeypatch.setattr(token_emission, "_kernels_take", taken("rows of a table"))
    monkeypatch.setattr(token_emission, "_kernels_take_factors", taken("rows of factors"))
    monkeypatch.setattr(recursion, "_kernels_take", taken("recursion"))
    monkeypatch.setattr(recursion, "_in_capture", lambda _: in_graph)
    ours(window, 0.01, fresh=True)
    assert set(used) == expected_use
    assert float(ours.loss) == pytest.approx(float(exact.loss), rel=1e-6)
    # Some gradients are 0 but for rounding, so room is relative to the largest of all.
    found, expected = (
        {
            name: parameter.grad.double()
            for name, parameter in step.model.named_parameters()
            if parameter.grad is not None
        }
        for step in (ours, exact)
    )
    room = 2e-6 * max(float(grad.abs().max()) for grad in expected.values())
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=room)


@pytest.mark.gpu
@pytest.mark.parametrize("windows", ["independent", "carried"])
@pytest.mark.parametrize(
    ("parameterization", "reset_token", "dropout"),
    [("neural", 3, 0.0), ("linear", None, 0.0), ("scalar", 3, 0.0), ("neural", None, 0.5)],
)
def test_a_dense_model_learns_the_same_in_graphs_as_in_float64(
    parameterization: Any, reset_token: int | None, dropout: float, windows: Any
) -> None:
    model_settings = ModelSettings(
        parameterization=parameterization,
        states_per_block=50,
        dim=24,
        transition="table" if parameterization == "scalar" else "softmax",
        precision="highest",
    )
    model = build(model_settings, dense_support(301, 50), reset_token).cuda()
    settings = replace(SETTINGS, batch_size=7, window=13, windows=windows, state_dropout=dropout)
    graphs = Step(copy.deepcopy(model), replace(settings, graphs=True))
    exact = Step(copy.deepcopy(model).double(), settings)
    for number, window in enumerate(torch.randint(301, (8, 7, 13), generator=torch.Generator().manual_seed(0))):
        for step in (graphs, exact):
            step(window, 1e-3, fresh=number == 0 or windows == "independent")
        assert float(graphs.loss) == pytest.approx(float(exact.loss), rel=1e-5)
    assert graphs._gradients.has_graph()
    assert graphs._update.has_graph()
