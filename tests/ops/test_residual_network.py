"""The residual networks by kernels against its specification in float64: in Triton's interpreter, and on a GPU with -m gpu."""

import pytest
import torch
from kernels import DEVICES
from torch import Tensor

from vlhmm.ops.residual_network import Parameters, launch, reference, residual_networks
from vlhmm.precision import Precision

NAMES = ("embedding", "first weight", "first bias", "second weight", "second bias", "norm weight", "norm bias")
EPS = 1e-5


@pytest.fixture(autouse=True)
def _nothing_is_read_before_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = Tensor.new_empty
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **kwargs: plain(*args, **kwargs).fill_(torch.nan))


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


def parameters(inputs: list[Tensor]) -> Parameters:
    _, first, first_bias, second, second_bias, norm_weight, norm_bias = inputs
    return first, first_bias, second, second_bias, norm_weight, norm_bias


def by_kernels(inputs: list[Tensor], operand_type: torch.dtype) -> Tensor:
    """The output of one network."""
    (output,) = launch.residual_networks_by_kernels(
        inputs[0], [[parameters(inputs)]], [inputs[0].shape[0]], eps=EPS, operand_type=operand_type
    )
    return output


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


def cut(value: Tensor) -> Tensor:
    """As a number of bf16: the interpreter cuts what kernels write, where torch rounds."""
    kept = (value.detach().view(torch.int32) & -(1 << 16)).view(torch.float32)
    return value + (kept - value.detach())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("rows", "width"), [(1, 16), (37, 24), (130, 5), (9, 300), (600, 64)])
@pytest.mark.parametrize("operand_type", [torch.bfloat16, torch.float32])
def test_output_and_every_gradient_are_near_the_specification(
    device: str, rows: int, width: int, operand_type: torch.dtype
) -> None:
    inputs = random_inputs(rows, width, device)
    precise = [value.detach().double().requires_grad_() for value in inputs]
    weight = torch.randn(rows, width, generator=torch.Generator().manual_seed(1)).to(device)
    found = by_kernels(inputs, operand_type)
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
        # Gradients of activations have the operands' type: 2^-9 for bf16 at each of the products in the backward pass.
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
        by_kernels(inputs, torch.bfloat16),
        reference.residual_network(*precise, eps=EPS),
    )
    torch.testing.assert_close(found.double(), expected, rtol=2e-6, atol=2e-6)
    weight = torch.randn(21, width, generator=torch.Generator().manual_seed(1)).to(device)
    ours, theirs = gradients(found, inputs, weight), gradients(expected, precise, weight)
    for name, one, other in list(zip(NAMES, ours, theirs, strict=True))[4:]:
        torch.testing.assert_close(one.double(), other, rtol=2e-5, atol=2e-5, msg=name)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operand_type", [torch.bfloat16, torch.float32])
def test_networks_that_share_an_embedding_equal_each_alone(device: str, operand_type: torch.dtype) -> None:
    """The gradient of the embedding is the sum of theirs, each over the rows that it read."""
    num_rows, width = [50, 41, 50, 1], 24
    embedding = random_inputs(50, width, device)[0]
    networks = [parameters(random_inputs(1, width, device, seed)) for seed in range(4)]
    weights = [
        torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(device) for count in num_rows
    ]
    together = launch.residual_networks_by_kernels(
        embedding, [[network] for network in networks], num_rows, eps=EPS, operand_type=operand_type
    )
    leaves = [embedding, *(value for network in networks for value in network)]
    found = torch.autograd.grad(together, leaves, weights)
    # On a GPU a wider product is summed in another order, and the nearest number of bf16 is then now and then another.
    least = 1e-5 if device == "cpu" or operand_type == torch.float32 else 1e-2
    summed = torch.zeros_like(found[0])
    for index, (network, count) in enumerate(zip(networks, num_rows, strict=True)):
        inputs = [embedding[:count].detach().requires_grad_(), *network]
        alone = by_kernels(inputs, operand_type)
        assert error(together[index], alone.double()) < least
        d_embedding, *d_network = gradients(alone, inputs, weights[index])
        summed[:count] += d_embedding
        own = found[1 + 6 * index : 7 + 6 * index]
        for name, ours, theirs in zip(NAMES[1:], own, d_network, strict=True):
            assert error(ours, theirs.double()) < least, name
    assert error(found[0], summed.double()) < least


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("operand_type", [torch.bfloat16, torch.float32])
def test_chains_side_by_side_equal_networks_one_after_the_other(device: str, operand_type: torch.dtype) -> None:
    if device == "cuda" and operand_type == torch.bfloat16:
        pytest.skip("sums in another order open other ReLUs")
    depths, num_rows, width = [2, 1, 2, 3], [41, 50, 50, 7], 24
    embedding = random_inputs(50, width, device)[0]
    seeds = iter(range(sum(depths)))
    chains = [[parameters(random_inputs(1, width, device, next(seeds))) for _ in range(depth)] for depth in depths]
    weights = [
        torch.randn(count, width, generator=torch.Generator().manual_seed(count)).to(device) for count in num_rows
    ]
    together = launch.residual_networks_by_kernels(embedding, chains, num_rows, eps=EPS, operand_type=operand_type)
    outputs = []
    for chain, count in zip(chains, num_rows, strict=True):
        value = embedding[:count]
        for number, network in enumerate(chain):
            rounds = number > 0 and operand_type == torch.bfloat16
            (value,) = launch.residual_networks_by_kernels(
                *(cut(value) if rounds else value, [[network]], [count]),
                eps=EPS,
                operand_type=operand_type,
            )
        outputs.append(value)
    for ours, theirs in zip(together, outputs, strict=True):
        assert ours.dtype == torch.float32
        assert error(ours, theirs.double()) < 1e-5
    leaves = [embedding, *(value for chain in chains for network in chain for value in network)]
    found, expected = (torch.autograd.grad(made, leaves, weights) for made in (together, outputs))
    for ours, theirs in zip(found, expected, strict=True):
        # Gradients that meet are added before they are rounded, or after.
        assert error(ours, theirs.double()) < (1e-5 if operand_type == torch.float32 else 1e-2)


def test_sums_over_more_rows_than_programs_miss_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs that take several pieces each, the last ones none at all."""
    if torch.cuda.is_available():
        pytest.skip("a process has kernels compiled or interpreted, not both")
    monkeypatch.setattr(launch, "SUM_PROGRAMS", 3)
    inputs = random_inputs(700, 16, "cpu")
    precise = [value.detach().double().requires_grad_() for value in inputs]
    weight = torch.randn(700, 16, generator=torch.Generator().manual_seed(1))
    ours = gradients(by_kernels(inputs, torch.float32), inputs, weight)
    theirs = gradients(reference.residual_network(*precise, eps=EPS), precise, weight)
    for name, one, other in zip(NAMES, ours, theirs, strict=True):
        assert error(one, other) < 1e-5, name


def test_other_precisions_and_other_devices_follow_the_specification() -> None:
    inputs = random_inputs(7, 6, "cpu")
    network = parameters(inputs)
    expected = reference.residual_network(*inputs, eps=EPS)
    every: tuple[Precision, ...] = ("bf16", "tf32", "highest")
    for precision in every:
        whole, part = residual_networks(inputs[0], [[network], [network]], [7, 3], eps=EPS, precision=precision)
        assert torch.equal(whole, expected)
        torch.testing.assert_close(part, expected[:3])


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "highest"])
def test_higher_precisions_stay_float32_on_a_gpu(precision: str) -> None:
    inputs = random_inputs(700, 256, "cuda")
    precise = [value.detach().double() for value in inputs]
    (found,) = residual_networks(inputs[0], [[parameters(inputs)]], [700], eps=EPS, precision=precision)  # type: ignore[arg-type]
    assert error(found.detach(), reference.residual_network(*precise, eps=EPS)) < 1e-6


@pytest.mark.gpu
def test_on_a_gpu_gradient_mode_changes_no_number() -> None:
    inputs = random_inputs(700, 256, "cuda")
    every: tuple[Precision, ...] = ("bf16", "tf32", "highest")
    for precision in every:
        found = []
        for gradients in (True, False):
            with torch.set_grad_enabled(gradients):
                found += residual_networks(inputs[0], [[parameters(inputs)]], [700], eps=EPS, precision=precision)
        assert torch.equal(*found)
