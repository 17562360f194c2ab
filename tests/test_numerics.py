"""Numerics are said by whoever makes tables: gradient mode decides what is recorded, never what is computed."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

import vlhmm
from vlhmm.models import Model, heads, neural_hmm
from vlhmm.ops import emission, residual_network, row_logsumexp
from vlhmm.precision import EXACT, Numerics

RECORDS_GRADIENTS = {
    "inference/replay.py": "a CUDA graph records no gradient",
    "inference/small.py": "compiled loops record no gradient",
    "inference/score.py": "windows are checkpointed where gradients are recorded",
    "ops/recursion/__init__.py": "messages are kept for the backward pass",
    "ops/row_logsumexp/__init__.py": "means are made for the backward pass",
    "sequences.py": "whether autograd would follow given log-likelihoods",
    "records.py": "whether autograd would follow a record",
}
"""The modules that may ask for the gradient mode, and what for."""


def test_only_what_records_gradients_asks_for_the_gradient_mode() -> None:
    package = Path(vlhmm.__file__).parent
    asking = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if _asks(path.read_text())}
    assert asking == set(RECORDS_GRADIENTS)


def _asks(source: str) -> bool:
    return "is_grad_enabled" in source


def blocked_model(transition: str = "softmax") -> Model:
    blocks = vlhmm.Blocks(np.arange(12) % 3, 3)
    return neural_hmm(blocks, 4, 8, transition=transition, emission_bias=False)  # type: ignore[arg-type]


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled or interpreted, not both")
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize(
    ("numerics", "networks", "normaliser", "emissions"),
    [
        (EXACT, None, "highest", "highest"),
        (Numerics("highest", "tf32"), None, "tf32", "highest"),
        (Numerics("highest", "bf16"), None, "bf16", "highest"),
        (Numerics.training("bf16"), torch.bfloat16, "bf16", "bf16"),
        (Numerics.training("tf32"), torch.float32, "tf32", "tf32"),
        (Numerics.training("highest"), None, "highest", "highest"),
    ],
)
def test_every_part_of_the_tables_is_made_as_the_numerics_say(
    numerics: Numerics,
    networks: torch.dtype | None,
    normaliser: str,
    emissions: str,
    gradients: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With the kernels of a GPU, interpreted; None: by plain torch."""
    pytest.importorskip("triton")
    from vlhmm.ops.emission import launch as emission_launch
    from vlhmm.ops.residual_network import launch as network_launch

    seen: dict[str, Any] = {"networks": None}
    by_kernels, tiled = network_launch.residual_networks_by_kernels, emission_launch.tiled_log_emission

    def of_networks(*given: Any, operand_type: torch.dtype, **others: Any) -> Any:
        seen["networks"] = operand_type
        return by_kernels(*given, operand_type=operand_type, **others)

    def of_normaliser(*given: Any, precision: Any) -> Any:
        seen["normaliser"] = precision
        return row_logsumexp.factors_and_row_logsumexp(*given, precision=precision)

    def of_emissions(*given: Any) -> Any:
        seen["emissions"] = given[4]
        return tiled(*given)

    monkeypatch.setattr(residual_network, "_kernels_take", lambda _: True)
    monkeypatch.setattr(emission, "_kernels_take", lambda *_: True)
    monkeypatch.setattr(network_launch, "residual_networks_by_kernels", of_networks)
    monkeypatch.setattr(heads, "factors_and_row_logsumexp", of_normaliser)
    monkeypatch.setattr(emission_launch, "tiled_log_emission", of_emissions)
    model = blocked_model()
    with torch.set_grad_enabled(gradients):
        tables = model.tables(numerics=numerics)
    assert seen == {"networks": networks, "normaliser": normaliser, "emissions": emissions}
    assert tables.precision == numerics.recursion
    assert tables.log_emission.requires_grad == gradients


@pytest.mark.parametrize("precision", ["bf16", "tf32", "highest"])
@pytest.mark.parametrize("transition", ["softmax", "block-factored", "low-rank"])
def test_on_a_cpu_no_numerics_and_no_gradient_mode_change_a_bit(transition: str, precision: Any) -> None:
    model = blocked_model(transition)
    expected = model.tables()
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            found = model.tables(numerics=Numerics.training(precision))
        assert torch.equal(found.log_start, expected.log_start)
        assert torch.equal(found.log_emission, expected.log_emission)
        states = torch.arange(found.num_states)
        assert torch.equal(found.transition.log_rows(states), expected.transition.log_rows(states))


def test_queries_are_float32_and_training_is_bf16_unless_asked_otherwise() -> None:
    distributions = ([1.0], [[1.0]], [[0.5, 0.5]])
    assert vlhmm.HMM.from_probabilities(*distributions).tables.precision == "highest"
    assert vlhmm.HMM.from_probabilities(*distributions, precision="bf16").tables.precision == "bf16"
    dense = neural_hmm(vlhmm.Blocks(np.zeros(5, np.int64), 1), 4, 8)
    for model in (blocked_model(), dense):
        assert model.settings.precision == "bf16"
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                assert model.tables().precision == "highest"
                assert model.window_tables(None, None)[0].precision == "highest"
