"""The order of positions by its kernel, interpreted here or on a GPU, is that of a stable sort."""

import pytest
import torch
from kernels import DEVICES
from torch import Tensor

from vlhmm.ops.groups.order import group_order_by_kernel, launch, reference


def assert_equals_the_sort(source: Tensor, target: Tensor) -> None:
    found, expected = group_order_by_kernel(source, target), reference.group_order(source, target)
    assert torch.equal(found.own, expected.own)
    assert torch.equal(found.other, expected.other)
    assert torch.equal(found.position.long(), expected.position)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(("positions", "groups"), [(1, 1), (1, 9), (5, 1), (16, 3), (37, 200), (1025, 7)])
def test_the_order_is_that_of_a_stable_sort(positions: int, groups: int, device: str) -> None:
    generator = torch.Generator().manual_seed(positions)
    # More groups are left than entered.
    source, target = (torch.randint(most, (positions,), generator=generator) for most in (groups + 4, groups))
    assert_equals_the_sort(source.to(device), target.to(device))


@pytest.mark.parametrize("device", DEVICES)
def test_chunks_and_programs_that_end_beyond_the_positions(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "POSITIONS", 8)
    monkeypatch.setattr(launch, "CHUNK", 16)
    source, target = torch.randint(5, (2, 43), generator=torch.Generator().manual_seed(0)).to(device)
    assert_equals_the_sort(source, target)


@pytest.mark.parametrize("device", DEVICES)
def test_groups_may_be_views_and_of_any_number(device: str) -> None:
    both = torch.tensor([[2**31 - 2, 3], [0, 2**31 - 2], [2**31 - 2, 0], [1, 2**31 - 2]], device=device)
    assert_equals_the_sort(both[:, 0], both[:, 1])


@pytest.mark.gpu
@pytest.mark.parametrize("positions", [512, 2048, 2049, 8192])
def test_on_a_gpu_whole_windows(positions: int) -> None:
    source, target = torch.randint(128, (2, positions), device="cuda")
    source[: positions // 32] = torch.arange(positions // 32, device="cuda") + 128
    assert_equals_the_sort(source, target)
