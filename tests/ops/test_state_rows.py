"""Rows by state against indexing in float64: in Triton's interpreter, and on a GPU with -m gpu."""

from typing import Any

import pytest
import torch
from kernels import DEVICES
from torch import Tensor

from vlhmm.ops.state_rows import launch, reference, state_rows, state_rows_by_kernels

# States, of which the first so many all differ, further ones, and the width.
SMALL = [(7, 4, 5, 19), (5, 5, 0, 1), (9, 0, 6, 3), (6, 1, 30, 530), (1, 1, 2, 16)]
LARGE = [
    (70_001, 20_000, 4_000, 256),
    (300, 300, 1, 1),
    (5_003, 0, 700, 100),
    (999, 500, 30, 1_030),
    (4_096, 4_096, 0, 257),
]

# Blocks, states of each, how many of them come first, further states, and the width of half a row.
SMALL_BLOCKS = [(3, 4, 2, 5, 19), (5, 1, 1, 0, 1), (2, 5, 0, 6, 3), (4, 130, 70, 30, 40)]
LARGE_BLOCKS = [(128, 256, 128, 2_000, 128), (7, 1_000, 999, 1, 70), (1, 300, 0, 90, 33), (250, 4, 3, 0, 1_030)]


@pytest.fixture(autouse=True)
def _nothing_is_written_by_chance(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a kernel leaves unwritten shows as NaN; places that were never written look as if they were."""
    plain = torch.empty

    def poisoned(*args: Any, **kwargs: Any) -> Tensor:
        made = plain(*args, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made.random_(-1, 3)

    monkeypatch.setattr(torch, "empty", poisoned)


def draw(num_states: int, num_first: int, num_others: int, device: str) -> Tensor:
    generator = torch.Generator().manual_seed(num_states)
    first = torch.randperm(num_states, generator=generator)[:num_first]
    others = torch.randint(num_states, (num_others,), generator=generator)
    return torch.cat([first, others]).to(device)


def loss(rows: Tensor, first: Tensor, read: str) -> Tensor:
    """Of a gradient that differs from row to row."""
    total = rows.new_zeros(())
    if "all" in read:
        total = total + rows.square().sum()
    if "first" in read:
        total = total + first.sin().sum()
    return total


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", range(len(SMALL)))
@pytest.mark.parametrize("read", ["all", "first", "all and first"])
def test_values_and_gradients_equal_the_reference(device: str, read: str, size: int) -> None:
    num_states, num_first, num_others, width = (SMALL if device == "cpu" else LARGE)[size]
    states = draw(num_states, num_first, num_others, device)
    table = torch.randn(num_states, width, generator=torch.Generator().manual_seed(0)).to(device).requires_grad_()
    exact = table.detach().double().requires_grad_()
    found, expected = state_rows_by_kernels(table, states, num_first), reference.state_rows(exact, states, num_first)
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.double(), theirs)
    (gradient,) = torch.autograd.grad(loss(*found, read), table)
    (wanted,) = torch.autograd.grad(loss(*expected, read), exact)
    torch.testing.assert_close(gradient.double(), wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("size", range(len(SMALL_BLOCKS)))
@pytest.mark.parametrize("read", ["all", "first", "all and first"])
def test_rows_beside_those_of_their_blocks_equal_the_reference(device: str, read: str, size: int) -> None:
    num_blocks, each, kept, num_others, width = (SMALL_BLOCKS if device == "cpu" else LARGE_BLOCKS)[size]
    generator = torch.Generator().manual_seed(0)
    first = torch.rand(num_blocks, each, generator=generator).argsort(1)[:, :kept].sort(1).values
    first = (first + each * torch.arange(num_blocks)[:, None]).flatten()
    others = torch.randint(num_blocks * each, (num_others,), generator=generator)
    states = torch.cat([first, others]).to(device)
    tables = [
        torch.randn(rows, width, generator=generator).to(device).requires_grad_()
        for rows in (num_blocks * each, num_blocks)
    ]
    exact = [table.detach().double().requires_grad_() for table in tables]
    found = state_rows_by_kernels(tables[0], states, first.shape[0], tables[1])
    expected = reference.state_rows(exact[0], states, first.shape[0], exact[1])
    for ours, theirs in zip(found, expected, strict=True):
        assert torch.equal(ours.double(), theirs)
    gradients = torch.autograd.grad(loss(*found, read), tables)
    wanted = torch.autograd.grad(loss(*expected, read), exact)
    for ours, theirs in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("never_written", [0, 1, 2, 3, -1, 2**31 - 1])
def test_it_does_not_matter_what_stood_in_memory(
    device: str, never_written: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    states = torch.tensor([4, 0, 2, 5, 4], device=device)
    monkeypatch.setattr(torch, "empty", lambda *shape, **kind: torch.full(shape, never_written, **kind))
    _, place = launch.gather(torch.zeros(6, 3, device=device), states, 3)
    gradient = launch.spread(torch.ones(5, 3, device=device), torch.ones(3, 3, device=device), states, place, 3)
    assert gradient[:, 1].tolist() == [2.0, 0.0, 2.0, 0.0, 3.0, 1.0]


@pytest.mark.parametrize("device", DEVICES)
def test_tables_states_and_cotangents_may_be_views(device: str) -> None:
    states = torch.tensor([1, 9, 0, 9, 1, 9], device=device)[::2]
    table = torch.arange(6.0, device=device).view(2, 3).mT.contiguous().mT.requires_grad_()
    rows, first = state_rows_by_kernels(table, states, 2)
    assert torch.equal(rows, table[states])
    assert torch.equal(first, table[states[:2]])
    (gradient,) = torch.autograd.grad(rows.sum() + 2 * first.sum(), table)
    assert gradient.tolist() == [[3.0] * 3, [4.0] * 3]


@pytest.mark.parametrize("device", DEVICES)
def test_a_state_out_of_range_has_no_numbers(device: str) -> None:
    rows, _ = state_rows_by_kernels(torch.zeros(3, 2, device=device), torch.tensor([-1, 3, 2], device=device), 1)
    assert rows.isnan().all(1).tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_elsewhere_it_is_the_reference(dtype: torch.dtype) -> None:
    table = torch.randn(5, 3, dtype=dtype, generator=torch.Generator().manual_seed(0)).requires_grad_()
    states = torch.tensor([4, 0, 4, 1])
    rows, first = state_rows(table, states, 2)
    assert torch.equal(rows, table[states])
    (gradient,) = torch.autograd.grad(rows.sum() + first.sum(), table)
    assert gradient[:, 0].tolist() == [2.0, 1.0, 0.0, 0.0, 3.0]
    assert gradient.dtype == dtype
    with pytest.raises(IndexError):
        state_rows(table, torch.tensor([5]), 1)
