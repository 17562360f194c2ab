"""Rows by word against indexing in float64: in Triton's interpreter, and on a GPU with -m gpu."""

from typing import Any

import pytest
import torch
from kernels import DEVICES
from torch import Tensor

from vlhmm.ops.emission.word_rows import launch, reference, word_rows, word_rows_by_kernels


@pytest.fixture(autouse=True)
def _nothing_is_written_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel leaves unwritten shows as NaN."""
    plain = torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> Tensor:
        made = plain(*args, **kwargs)
        return made.fill_(torch.nan if made.is_floating_point() else -1)

    monkeypatch.setattr(torch, "empty", poisoned)


def both(words: Tensor, num_words: int, width: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Value and gradient: ours, and the specification's in float64."""
    generator = torch.Generator().manual_seed(num_words)
    table = torch.randn(num_words, width, generator=generator).to(words.device)
    cotangent = torch.randn(*words.shape, width, generator=generator).to(words.device)
    ours = table.clone().requires_grad_()
    value = word_rows_by_kernels(ours, words)
    (gradient,) = torch.autograd.grad(value, ours, cotangent)
    exact = table.double().requires_grad_()
    expected = reference.word_rows(exact, words)
    (expected_gradient,) = torch.autograd.grad(expected, exact, cotangent.double())
    return (value.detach(), gradient), (expected.detach(), expected_gradient)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("batch", "positions", "num_words", "width"), [(3, 5, 7, 19), (1, 1, 4, 1), (2, 40, 3, 530)])
def test_values_and_gradients_equal_the_reference(
    device: str, batch: int, positions: int, num_words: int, width: int
) -> None:
    words = torch.randint(num_words, (batch, positions), generator=torch.Generator().manual_seed(1)).to(device)
    (value, gradient), (expected, expected_gradient) = both(words, num_words, width)
    assert torch.equal(value.double(), expected)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-6, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [512, 2048, 301])
def test_on_a_gpu_a_word_that_fills_half_the_text_and_a_large_vocabulary(width: int) -> None:
    words = torch.randint(32_000, (200, 64), device="cuda")
    words[:, ::2] = 17
    (value, gradient), (expected, expected_gradient) = both(words, 32_000, width)
    assert torch.equal(value.double(), expected)
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=1e-5, atol=3e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("positions", "num_words"), [(1, 1), (300, 5), (290, 2048), (40, 2100), (17, 4095)])
def test_positions_stand_by_word_and_ascend_within_it(device: str, positions: int, num_words: int) -> None:
    generator = torch.Generator().manual_seed(positions)
    words = (num_words * torch.rand(positions, generator=generator) ** 2).long().to(device)
    order, bounds = launch.positions_by_word(words, num_words)
    in_order, expected = words.sort(stable=True)
    assert torch.equal(order.long(), expected)
    assert torch.equal(bounds.long(), torch.searchsorted(in_order, torch.arange(num_words + 1, device=device)))


@pytest.mark.parametrize("device", DEVICES)
def test_a_word_out_of_range_has_no_place(device: str) -> None:
    order, bounds = launch.positions_by_word(torch.tensor([2, -1, 0, 3, 2], device=device), 3)
    assert bounds.tolist() == [0, 1, 1, 3]
    assert order[:3].tolist() == [2, 0, 4]


@pytest.mark.parametrize("device", DEVICES)
def test_a_word_that_is_not_in_the_text_has_no_gradient(device: str) -> None:
    words = torch.tensor([[2, 2, 4]], device=device)
    (_, gradient), _ = both(words, 6, 3)
    assert (gradient[[0, 1, 3, 5]] == 0).all()
    assert (gradient[[2, 4]] != 0).all()


@pytest.mark.parametrize("device", DEVICES)
def test_words_and_cotangents_may_be_views(device: str) -> None:
    words = torch.tensor([[1, 9, 0, 9, 1, 9]], device=device)[:, ::2]
    table = torch.arange(6.0, device=device).view(2, 3).mT.contiguous().mT.requires_grad_()
    value = word_rows_by_kernels(table, words)
    assert torch.equal(value, table[words])
    assert torch.autograd.grad(value.sum(), table)[0].tolist() == [[1.0] * 3, [2.0] * 3]


@pytest.mark.parametrize("device", DEVICES)
def test_a_word_out_of_range_has_no_numbers(device: str) -> None:
    rows = word_rows_by_kernels(torch.zeros(3, 2, device=device), torch.tensor([[-1, 3, 2]], device=device))
    assert rows[0].isnan().all(1).tolist() == [True, True, False]


def test_elsewhere_words_out_of_range_are_refused() -> None:
    with pytest.raises(IndexError):
        word_rows(torch.zeros(3, 2), torch.tensor([[3]]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_on_a_cpu_values_and_gradients_equal_the_reference(dtype: torch.dtype) -> None:
    words = torch.tensor([[1, 4, 1], [0, 1, 3]])
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(5, 7, generator=generator, dtype=dtype).requires_grad_()
    cotangent = torch.randn(2, 3, 7, generator=generator, dtype=dtype)
    found, expected = word_rows(table, words), reference.word_rows(table, words)
    assert torch.equal(found, expected)
    (ours,), (theirs,) = (torch.autograd.grad(value, table, cotangent) for value in (found, expected))
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6)
    assert ours.dtype == dtype
