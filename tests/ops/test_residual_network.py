"""The residual network by kernels against its specification in float64: in Triton's interpreter, and on a GPU with -m gpu."""

import os

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    # Read by triton when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from vlhmm.ops.residual_network import launch, reference, residual_network

DEVICES = [
    pytest.param(
        "cpu",
        marks=pytest.mark.skipif(
            torch.cuda.is_available(), reason="a process has kernels compiled or interpreted, not both"
        ),
        id="interpreter",
    ),
    pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
]
NAMES = ("embedding", "first weight", "first bias", "second weight", "second bias", "norm weight", "norm bias")
EPS = 1e-5


def random_inputs(rows: int, width: int, device: str, seed: int = 0) -> list[Tensor]:
    """Embedding and parameters, as large as they are in training."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int, scale: float = 1.0) -> Tensor:
        return scale * torch.randn(*shape, generator=generator)

    spread = (2 / width) ** 0.5
    inputs = [
        normal(rows, width),
        *(normal(width, width, scale=spread), normal(width, scale=0.1)),
        *(normal(width, width, scale=spread), normal(width, scale=0.1)),
        *(1 + normal(width, scale=0.2), normal(width, scale=0.2)),
    ]
    return [value.to(device).requires_grad_() for value in inputs]


def gradients(output: Tensor, inputs: list[Tensor], weight: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad((output * weight.to(output.dtype)).sum(), inputs))


def error(found: Tensor, expected: Tensor) -> float:
    return float((found.detach().double() - expected.detach()).norm() / expected.detach().norm())


def specification_with_rounding(inputs: list[Tensor], operand_type: torch.dtype) -> Tensor:
    """The specification, rounded where operands and results of products are: the same ReLUs are then open."""
    embedding, first, first_bias, second, second_bias, norm_weight, norm_bias = inputs

    def rounded(value: Tensor) -> Tensor:
        # The gradient does not see it.
        return value + (value.detach().to(operand_type).to(value.dtype) - value.detach())

    hidden = rounded(rounded(embedding) @ rounded(first).T + rounded(first_bias)).relu()
    raw = rounded(hidden @ rounded(second).T + rounded(second_bias))
    return torch.nn.functional.layer_norm(raw.relu() + hidden, norm_weight.shape, norm_weight, norm_bias, EPS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (37, 24), (130, 5), (9, 300), (600, 64)])
@pytest.mark.parametrize("operand_type", [torch.bfloat16, torch.float32])
def test_output_and_every_gradient_are_near_the_specification(
    device: str, rows: int, width: int, operand_type: torch.dtype
) -> None:
    inputs = random_inputs(rows, width, device)
    precise = [value.detach().double().requires_grad_() for value in inputs]
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(1)).to(device)
    found = launch.residual_network_by_kernels(*inputs, eps=EPS, operand_type=operand_type)
    expected = specification_with_rounding(precise, operand_type)
    exact = device == "cpu" or operand_type == torch.float32
    assert found.dtype == torch.float32
    # On a GPU sums are made in another order, and the nearest number of bf16 is now and then the other neighbour.
    assert error(found, expected) < (1e-6 if exact else 1e-3)
    assert error(found, reference.residual_network(*precise, eps=EPS)) < 1e-2
    for name, ours, theirs in zip(
        NAMES, gradients(found, inputs, weight), gradients(expected, precise, weight), strict=True
    ):
        assert ours.dtype == torch.float32
        # Gradients of activations have the operands' type: 2^-9 for bf16 at each of the products on the way back.
        unrounded = "norm" in name or operand_type == torch.float32
        assert error(ours, theirs) < (1e-5 if exact and unrounded else 1e-2), name


@pytest.mark.parametrize("device", DEVICES)
def test_between_the_products_nothing_is_rounded(device: str) -> None:
    """With operands that bf16 holds exactly, only the normalisation is left, and that is float32."""
    width = 8
    inputs = random_inputs(21, width, device)
    with torch.no_grad():
        for value in inputs[:5]:
            value.copy_((value * 4).round() / 4)
        # The identity and a sign: their products hold few bits.
        inputs[1].copy_(torch.eye(width))
        inputs[3].copy_(torch.eye(width).flip(0))
    precise = [value.detach().double().requires_grad_() for value in inputs]
    found, expected = (
        launch.residual_network_by_kernels(*inputs, eps=EPS, operand_type=torch.bfloat16),
        reference.residual_network(*precise, eps=EPS),
    )
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)
    weight = torch.randn(21, width, generator=torch.Generator().manual_seed(1)).to(device)
    ours, theirs = gradients(found, inputs, weight), gradients(expected, precise, weight)
    for name, one, other in list(zip(NAMES, ours, theirs, strict=True))[4:]:
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5, msg=name)


def test_other_precisions_and_other_devices_follow_the_specification() -> None:
    inputs = random_inputs(7, 6, "cpu")
    expected = reference.residual_network(*inputs, eps=EPS)
    for precision in ("bf16", "tf32", "highest"):
        assert torch.equal(residual_network(*inputs, eps=EPS, precision=precision), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "highest"])
def test_higher_precisions_stay_float32_on_a_gpu(precision: str) -> None:
    inputs = random_inputs(700, 256, "cuda")
    precise = [value.detach().double() for value in inputs]
    found = residual_network(*inputs, eps=EPS, precision=precision)  # type: ignore[arg-type]
    assert error(found.detach(), reference.residual_network(*precise, eps=EPS)) < 1e-6


@pytest.mark.gpu
def test_tables_made_once_are_float32_on_a_gpu() -> None:
    inputs = random_inputs(700, 256, "cuda")
    precise = [value.detach().double() for value in inputs]
    with torch.no_grad():
        found = residual_network(*inputs, eps=EPS, precision="bf16")
    assert error(found, reference.residual_network(*precise, eps=EPS)) < 1e-6
