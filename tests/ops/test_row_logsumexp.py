"""row_logsumexp against its specification."""

import pytest
import torch

from vlhmm.ops.row_logsumexp import reference, row_logsumexp
from vlhmm.precision import float32_products

SHAPES = [(1, 1, 1), (3, 5, 2), (7, 1, 4), (1, 9, 3), (13, 11, 5), (1030, 7, 2)]


def features(rows: int, columns: int, width: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    out = torch.randn(rows, width, generator=generator, dtype=torch.float64, requires_grad=True)
    into = torch.randn(columns, width, generator=generator, dtype=torch.float64, requires_grad=True)
    return out, into


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("chunk_bytes", [1, 200, 1 << 20])
def test_value_and_gradients_equal_the_reference_whatever_the_chunk(shape, chunk_bytes):
    out, into = features(*shape)
    weight = torch.linspace(-1, 2, shape[0], dtype=torch.float64)
    value = row_logsumexp(out, into, chunk_bytes=chunk_bytes)
    expected = reference.row_logsumexp(out, into)
    torch.testing.assert_close(value, expected, rtol=1e-13, atol=1e-13)
    gradients = torch.autograd.grad(value @ weight, [out, into])
    expected_gradients = torch.autograd.grad(expected @ weight, [out, into])
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-12, atol=1e-12)


def test_gradcheck():
    assert torch.autograd.gradcheck(row_logsumexp, features(5, 7, 3))


def test_no_tensor_of_all_pairs_is_made():
    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            tensors = result if isinstance(result, tuple | list) else (result,)
            Largest.numel = max([Largest.numel, *(t.numel() for t in tensors if isinstance(t, torch.Tensor))])
            return result

    out, into = features(100, 80, 2)
    with Largest():
        row_logsumexp(out, into, chunk_bytes=100 * 8 * 8).sum().backward()
    assert Largest.numel == 100 * 8


@pytest.mark.parametrize("chunk_bytes", [1, 1 << 20])
def test_only_columns_alive_are_summed(chunk_bytes):
    out, into = features(9, 7, 3)
    live = torch.tensor([True, False, True, True, False, False, True])
    value = row_logsumexp(out, into, live, chunk_bytes=chunk_bytes)
    expected = reference.row_logsumexp(out, into[live])
    torch.testing.assert_close(value, expected)
    weight = torch.linspace(-1, 2, 9, dtype=value.dtype)
    for found, wanted in zip(*(torch.autograd.grad(x @ weight, [out, into]) for x in (value, expected)), strict=True):
        torch.testing.assert_close(found, wanted)
    assert (row_logsumexp(out, into, torch.zeros_like(live)) == -torch.inf).all()


def test_large_logits_do_not_overflow():
    out = torch.tensor([[200.0], [-200.0], [0.0]], requires_grad=True)
    into = torch.tensor([[10.0], [-10.0]], requires_grad=True)
    value = row_logsumexp(out, into)
    torch.testing.assert_close(value, torch.tensor([2000.0, 2000.0, 0.6931472]))
    value.sum().backward()
    assert out.grad is not None
    assert into.grad is not None
    torch.testing.assert_close(out.grad, torch.tensor([[10.0], [-10.0], [0.0]]))
    torch.testing.assert_close(into.grad, torch.tensor([[200.0], [-200.0]]))


def test_a_row_of_zero_probability_has_no_gradient():
    out = torch.tensor([[1.0, 1.0], [2.0, 1.0]], dtype=torch.float64, requires_grad=True)
    into = torch.tensor([[0.5, -torch.inf], [0.25, -torch.inf]], dtype=torch.float64, requires_grad=True)
    value = row_logsumexp(out, into)
    assert (value == -torch.inf).all()
    (gradient,) = torch.autograd.grad(value.sum(), into)
    assert (gradient == 0).all()


def test_gradient_with_a_constant_side():
    out, into = features(4, 6, 3)
    (gradient,) = torch.autograd.grad(row_logsumexp(out.detach(), into).sum(), into)
    (expected,) = torch.autograd.grad(reference.row_logsumexp(out.detach(), into).sum(), into)
    torch.testing.assert_close(gradient, expected)


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "highest"])
def test_on_a_gpu_the_process_wide_precision_does_not_matter(precision):
    out, into = (operand.detach().float().cuda() for operand in features(70, 90, 33))
    expected = reference.row_logsumexp(out.double(), into.double()).float()
    for others in ("highest", "tf32"):
        with float32_products(others, out.device):
            found = row_logsumexp(out, into, precision=precision)
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=0)
