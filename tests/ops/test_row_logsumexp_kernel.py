"""row_logsumexp's kernel against its specification in float64: in Triton's interpreter, and on a GPU with -m gpu."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read by triton when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

from vlhmm.ops.row_logsumexp import (
    launch,
    reference,
    row_logsumexp,
    tiled_factors_and_row_logsumexp,
    tiled_row_logsumexp,
)

# Relative to the largest element: the interpreter multiplies in float32, the GPU in the precision asked for.
TOLERANCE = {"highest": 3e-6, "bf16": 4e-3}

SMALL = [(1, 1, 1), (5, 7, 3), (7, 3, 16), (130, 5, 17), (3, 131, 20), (9, 4, 100)]
LARGE = [(1, 1, 1), (1001, 517, 100), (300, 4099, 256), (777, 513, 257), (257, 300, 333), (140, 270, 512)]

skip_interpreter_on_gpu_machine = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a process has kernels compiled or interpreted, not both"
)
DEVICES = [
    pytest.param("cpu", marks=skip_interpreter_on_gpu_machine, id="interpreter"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
]
# The interpreter's products take the bits of bf16 for integers.
PRECISIONS = [
    *(pytest.param("cpu", name, marks=skip_interpreter_on_gpu_machine) for name in ("highest",)),
    *(pytest.param("cuda", name, marks=pytest.mark.gpu) for name in ("bf16", "highest")),
]


@pytest.fixture(autouse=True)
def outputs_start_as_nan(monkeypatch):
    """What a kernel leaves unwritten shows."""
    plain = torch.Tensor.new_empty

    def new_nan(self, *args, **kwargs):
        empty = plain(self, *args, **kwargs)
        return empty.fill_(torch.nan) if empty.is_floating_point() else empty

    monkeypatch.setattr(torch.Tensor, "new_empty", new_nan)


def features(rows: int, columns: int, width: int, device: str, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits of the size a model has, whatever the width; operands that bf16 holds exactly, so that only products round."""
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(rows, width, generator=generator) * 2 / width**0.5
    into = torch.randn(columns, width, generator=generator)
    exact_out, exact_into = (operand.bfloat16().float().to(device) for operand in (out, into))
    return exact_out.requires_grad_(), exact_into.requires_grad_()


def value_and_gradients(function, out, into, weight):
    value = function(out, into)
    return value.detach(), *torch.autograd.grad(value @ weight, [out, into])


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    scale = expected.abs().max().item() or 1.0
    torch.testing.assert_close(actual.double(), expected, rtol=0, atol=tolerance * scale)


def weights(rows: int, device: str) -> torch.Tensor:
    return torch.linspace(-1, 2, rows, dtype=torch.float32, device=device)


def check_against_reference(function, out, into, tolerance: float) -> None:
    weight = weights(out.shape[0], out.device).to(out.dtype)
    exact = [operand.detach().double().requires_grad_() for operand in (out, into)]
    expected = value_and_gradients(reference.row_logsumexp, *exact, weight.double())
    for actual, wanted in zip(value_and_gradients(function, out, into, weight), expected, strict=True):
        assert actual.dtype == out.dtype
        assert_near(actual, wanted, tolerance)


@pytest.mark.parametrize("size", range(len(SMALL)))
@pytest.mark.parametrize(("device", "precision"), PRECISIONS)
def test_value_and_gradients_equal_the_reference(device, precision, size):
    out, into = features(*(SMALL if device == "cpu" else LARGE)[size], device)
    check_against_reference(
        lambda *operands: tiled_row_logsumexp(*operands, precision=precision), out, into, TOLERANCE[precision]
    )


@pytest.mark.parametrize("num_splits", [1, 3])
@pytest.mark.parametrize(("device", "precision"), PRECISIONS)
def test_a_bias_is_added_to_every_row_of_logits(device, precision, num_splits):
    out, into = features(37, 70, 19, device)
    bias = torch.randn(70, generator=torch.Generator().manual_seed(1)).to(device)
    settings = {"precision": precision, "tiles": launch.tiling(19, precision), "num_splits": num_splits}
    packed = [launch.pack(operand.detach(), precision) for operand in (out, into)]
    padded = torch.nn.functional.pad(bias, (0, packed[1].features.shape[0] - 70))
    log_sum, mean = launch.forward(*packed, with_mean=True, bias=padded, **settings)
    weight = weights(37, device)
    found = launch.grad_into_and_bias(*packed, padded, log_sum, weight, **settings)
    exact = [operand.detach().double().requires_grad_() for operand in (out, into, bias)]
    expected = (exact[0] @ exact[1].T + exact[2]).logsumexp(1)
    gradients = torch.autograd.grad(expected @ weight.double(), exact)
    made = (log_sum, weight[:, None] * mean, *found)
    for actual, wanted in zip(made, (expected.detach(), *gradients), strict=True):
        assert_near(actual, wanted, TOLERANCE[precision])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_splits", [1, 2, 3])
def test_parts_of_the_streamed_operand_add_up(device, num_splits):
    out, into = features(37, 70, 19, device)
    tiles = launch.Tiling(rows=16, columns=16, num_warps=4, num_stages=2)
    settings = {"precision": "highest", "tiles": tiles, "num_splits": num_splits}
    packed = [launch.pack(operand.detach(), "highest") for operand in (out, into)]
    log_sum, mean = launch.forward(*packed, with_mean=True, **settings)
    weight = weights(37, device)
    gradient = launch.grad_into(*packed, log_sum, weight, **settings)
    exact = [operand.detach().double().requires_grad_() for operand in (out, into)]
    expected = value_and_gradients(reference.row_logsumexp, *exact, weight.double())
    for actual, wanted in zip((log_sum, weight[:, None] * mean, gradient), expected, strict=True):
        assert_near(actual, wanted, 3e-6)


def other_readers(out: torch.Tensor, into: torch.Tensor, kind: str) -> torch.Tensor:
    """What others make of the factors, such that their gradients are whole, one number for all, or part of a wider one."""
    if kind == "whole":
        return out.sin().sum() + into.cos().sum()
    if kind == "expanded":
        return 3 * out.sum() - into.sum()
    ones = out.new_ones
    return torch.cat([out, ones(out.shape[0], 1)], 1).square().sum() + torch.cat([ones(1, into.shape[1]), into]).sum()


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", ["whole", "expanded", "part of a wider one"])
@pytest.mark.parametrize("some_dead", [False, True])
@pytest.mark.parametrize(("device", "precision"), PRECISIONS)
def test_gradients_of_other_readers_are_added(device, precision, some_dead, kind, size):
    out, into = features(*(SMALL if device == "cpu" else LARGE)[size], device)
    live = None
    if some_dead:
        live = torch.arange(into.shape[0], device=device) % 3 != 1
    weight = weights(out.shape[0], device)

    read_out, read_into, value = tiled_factors_and_row_logsumexp(out, into, live, precision=precision)
    assert torch.equal(read_out, out)
    assert torch.equal(read_into, into)
    found = torch.autograd.grad(value @ weight + other_readers(read_out, read_into, kind), [out, into])
    exact = [operand.detach().double().requires_grad_() for operand in (out, into)]
    alive = exact[1] if live is None else exact[1][live]
    total = reference.row_logsumexp(exact[0], alive) @ weight.double() + other_readers(*exact, kind)
    for actual, wanted in zip(found, torch.autograd.grad(total, exact), strict=True):
        assert_near(actual, wanted, TOLERANCE[precision])


@pytest.mark.parametrize("device", DEVICES)
def test_other_readers_may_be_alone_or_of_one_factor(device):
    out, into = features(6, 9, 5, device)
    read_out, read_into, _ = tiled_factors_and_row_logsumexp(out, into, precision="highest")
    found = torch.autograd.grad(other_readers(read_out, read_into, "whole"), [out, into])
    torch.testing.assert_close(found, torch.autograd.grad(other_readers(out, into, "whole"), [out, into]))
    for reader in (0, 1):
        *read, value = tiled_factors_and_row_logsumexp(out, into, precision="highest")
        found = torch.autograd.grad(value.sum() + read[reader].exp().sum(), [out, into])
        exact = [operand.detach().double().requires_grad_() for operand in (out, into)]
        total = reference.row_logsumexp(*exact).sum() + exact[reader].exp().sum()
        for actual, wanted in zip(found, torch.autograd.grad(total, exact), strict=True):
            assert_near(actual, wanted, 3e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_splits", [1, 3])
def test_a_gradient_of_others_is_added_once_whatever_the_parts(device, num_splits):
    out, into = (operand.detach() for operand in features(37, 70, 19, device))
    barred = into.clone()
    # A row that is dead by itself still has others' gradient.
    barred[3, 0] = -torch.inf
    tiles = launch.Tiling(rows=16, columns=16, num_warps=4, num_stages=2)
    settings = {"precision": "highest", "tiles": tiles, "num_splits": num_splits}
    packed = launch.pack(out, "highest"), launch.pack(barred, "highest")
    log_sum, _ = launch.forward(*packed, with_mean=True, **settings)
    alone = launch.grad_into(*packed, log_sum, weights(37, device), **settings)
    together = launch.grad_into(*packed, log_sum, weights(37, device), 2 * into, **settings)
    assert_near(together, (alone + 2 * into).double(), 1e-6)


def test_results_are_views_of_nothing():
    """Parts of them are put together again by their base, and must not lead past this gradient."""
    out, into = features(6, 9, 5, "cuda" if torch.cuda.is_available() else "cpu")
    for result in tiled_factors_and_row_logsumexp(out * 1, into * 1, precision="highest"):
        assert result._base is None
        assert all(part._base is result for part in result.split([2, result.shape[0] - 2]))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("num_splits", [1, 4])
@pytest.mark.parametrize("said", ["by -inf", "apart", "both"])
def test_dead_columns_count_nothing_and_make_no_nan(device, num_splits, said):
    """Splits that see dead columns only, and live ones after dead ones."""
    out, into = (operand.detach() for operand in features(9, 64, 17, device))
    out[:, -1] = 1.0
    into[:, -1] = 0.0
    dead = torch.zeros(64, dtype=torch.bool, device=device)
    dead[:33] = dead[40] = True
    barred = into.clone()
    live = None if said == "by -inf" else ~dead
    if said == "both":
        # Columns on both sides of the border between the two ways.
        live[20:30] = True
    barred[dead if live is None else dead & live, -1] = -torch.inf
    tiles = launch.Tiling(rows=16, columns=16, num_warps=4, num_stages=2)
    settings = {"precision": "highest", "tiles": tiles, "num_splits": num_splits}
    packed = launch.pack(out, "highest"), launch.pack(barred, "highest", live)
    log_sum, mean = launch.forward(*packed, with_mean=True, **settings)
    weight = weights(9, device)
    gradient = launch.grad_into(*packed, log_sum, weight, **settings)
    exact = [operand.double().requires_grad_() for operand in (out, into[~dead])]
    value, grad_out, grad_into = value_and_gradients(reference.row_logsumexp, *exact, weight.double())
    assert_near(log_sum, value, 3e-6)
    assert_near(weight[:, None] * mean, grad_out, 3e-6)
    assert_near(gradient[~dead], grad_into, 3e-6)
    assert (gradient[dead] == 0).all()


@pytest.mark.parametrize(("device", "precision"), PRECISIONS)
@pytest.mark.parametrize("num_live", [0, 1, 16, 17, 150, 200])
def test_only_columns_alive_are_summed(device, precision, num_live):
    out, into = features(140, 200, 20, device)
    live = torch.zeros(200, dtype=torch.bool)
    live[torch.randperm(200, generator=torch.Generator().manual_seed(num_live))[:num_live]] = True
    weight = weights(140, device)
    value, grad_out, grad_into = value_and_gradients(
        lambda *operands: tiled_row_logsumexp(*operands, live.to(device), precision=precision), out, into, weight
    )
    if num_live == 0:
        assert (value == -torch.inf).all()
        assert not grad_out.any()
        assert not grad_into.any()
        return
    exact = [operand.detach().double().requires_grad_() for operand in (out, into)]
    expected = value_and_gradients(lambda a, b: reference.row_logsumexp(a, b[live.to(device)]), *exact, weight.double())
    for actual, wanted in zip((value, grad_out, grad_into), expected, strict=True):
        assert_near(actual, wanted, TOLERANCE[precision])
    assert not grad_into[~live].any()


@pytest.mark.parametrize(("device", "precision"), PRECISIONS)
def test_a_row_of_zero_probability_has_no_gradient(device, precision):
    out = torch.tensor([[1.0, 1.0], [2.0, 1.0]], device=device, requires_grad=True)
    into = torch.tensor([[0.5, -torch.inf], [0.25, -torch.inf]], device=device, requires_grad=True)
    value = tiled_row_logsumexp(out, into, precision=precision)
    assert (value == -torch.inf).all()
    for gradient in torch.autograd.grad(value.sum(), [out, into]):
        assert (gradient == 0).all()


@pytest.mark.parametrize(("device", "precision"), PRECISIONS)
def test_large_logits_do_not_overflow(device, precision):
    out = torch.tensor([[200.0], [-200.0], [0.0]], device=device, requires_grad=True)
    into = torch.tensor([[10.0], [-10.0]], device=device, requires_grad=True)
    value = tiled_row_logsumexp(out, into, precision=precision)
    torch.testing.assert_close(value.cpu(), torch.tensor([2000.0, 2000.0, 0.6931472]))
    grad_out, grad_into = torch.autograd.grad(value.sum(), [out, into])
    # float32 holds a logit of 2,000 to 1e-4.
    expected = torch.tensor([[10.0], [-10.0], [0.0]]), torch.tensor([[200.0], [-200.0]])
    torch.testing.assert_close((grad_out.cpu(), grad_into.cpu()), expected, rtol=3e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_value_is_the_same_where_no_gradient_is_wanted(device):
    out, into = features(20, 30, 18, device)
    with torch.no_grad():
        alone = tiled_row_logsumexp(out, into, precision="highest")
    assert not alone.requires_grad
    assert_near(alone, reference.row_logsumexp(out.double(), into.double()).detach(), 3e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_operands_may_be_views_and_either_may_be_constant(device):
    out, into = features(6, 9, 5, device)
    strided = out.detach().T.contiguous().T
    expected = reference.row_logsumexp(out.double(), into.double())
    value = tiled_row_logsumexp(strided, into, precision="highest")
    assert_near(value, expected, 3e-6)
    assert_near(torch.autograd.grad(value.sum(), into)[0], torch.autograd.grad(expected.sum(), into)[0].double(), 3e-6)
    value = tiled_row_logsumexp(out, into.detach(), precision="highest")
    expected = reference.row_logsumexp(out.double(), into.double())
    assert_near(torch.autograd.grad(value.sum(), out)[0], torch.autograd.grad(expected.sum(), out)[0].double(), 3e-6)


@pytest.mark.gpu
@pytest.mark.parametrize(("dtype", "width"), [(torch.float64, 5), (torch.float32, 513)])
def test_what_no_kernel_takes_is_computed_without_one(dtype, width):
    out, into = (operand.detach().to(dtype).requires_grad_() for operand in features(70, 90, width, "cuda"))
    check_against_reference(row_logsumexp, out, into, 3e-6)


@pytest.mark.parametrize("width", [1, 15, 16, 17, 100, 255, 256, 257, 384, 511, 512])
def test_padded_widths_hold_the_width(width):
    main, rest = launch.padded_widths(width)
    assert width <= main + rest < max(33, 2 * width)
    assert all(part in (0, 16, 32, 64, 128, 256, 512) for part in (main, rest))
