"""The softmax of parts of a table: by kernels, interpreted here or on a GPU, against its specification."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from vlhmm.ops.table_softmax import launch, reference, table_log_softmax, table_log_softmax_by_kernels

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def chosen(number: int, of: int, seed: int) -> torch.Tensor:
    return torch.randperm(of, generator=torch.Generator().manual_seed(seed))[:number].sort().values


def check(rows: torch.Tensor, columns: torch.Tensor | None, shape: tuple[int, int], device: str = DEVICE) -> None:
    generator = torch.Generator().manual_seed(0)
    exact = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    logits = exact.detach().float().to(device).requires_grad_()
    expected = reference.table_log_softmax(exact, rows, columns)
    found = table_log_softmax_by_kernels(logits, rows.to(device), None if columns is None else columns.to(device))
    weight = torch.randn(expected.shape, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(found.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    (wanted,) = torch.autograd.grad(expected, exact, weight)
    (gradient,) = torch.autograd.grad(found, logits, weight.float().to(device))
    torch.testing.assert_close(gradient.double().cpu(), wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(gradient.cpu() == 0, wanted == 0)


@pytest.mark.parametrize("block", [16, 4096])
@pytest.mark.parametrize("with_columns", [True, False])
def test_kernels_equal_the_reference(monkeypatch: pytest.MonkeyPatch, block: int, with_columns: bool) -> None:
    monkeypatch.setattr(launch, "MAX_COLUMNS", block)
    check(chosen(5, 9, 1), chosen(21, 40, 2) if with_columns else None, (9, 40))


def test_rows_chosen_again_add_to_the_gradient() -> None:
    check(torch.tensor([0, 2, 5, 2, 6, 0, 2]), chosen(4, 7, 3), (7, 7))


def test_one_column_has_probability_one() -> None:
    logits = torch.randn(3, 4, device=DEVICE)
    rows, column = torch.tensor([2, 0], device=DEVICE), torch.tensor([3], device=DEVICE)
    assert (table_log_softmax_by_kernels(logits, rows, column) == 0).all()


def test_large_logits_do_not_overflow_and_impossible_ones_stay_so() -> None:
    logits = torch.tensor([[2000.0, 2000.0, -torch.inf], [-2000.0, -torch.inf, -torch.inf]], device=DEVICE)
    found = table_log_softmax_by_kernels(logits, torch.arange(2, device=DEVICE), None)
    torch.testing.assert_close(found, logits.log_softmax(1))


def test_a_cpu_and_float64_take_the_reference() -> None:
    logits = torch.randn(6, 5, dtype=torch.float64)
    rows, columns = torch.tensor([4, 4, 1]), torch.tensor([0, 3])
    torch.testing.assert_close(table_log_softmax(logits, rows, columns), logits[rows][:, columns].log_softmax(1))


@pytest.mark.gpu
@pytest.mark.parametrize(("shape", "with_columns"), [((1000, 9000), True), ((300, 10_001), False)])
def test_kernels_at_full_size_equal_the_reference(shape: tuple[int, int], with_columns: bool) -> None:
    rows = torch.cat([chosen(shape[0] // 2, shape[0], 1), chosen(50, shape[0], 2)])
    check(rows, chosen(shape[1] // 2, shape[1], 3) if with_columns else None, shape)
