"""Clipping by a kernel, interpreted here or on a GPU, is that of the library."""

import os

import pytest
import torch
from torch import nn

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from vlhmm.ops import clipping
from vlhmm.ops.clipping import clip_gradients, launch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    made = []
    for shape in [(7, 9), (50,), (30, 40)]:
        parameter = nn.Parameter(torch.zeros(shape, device=DEVICE))
        parameter.grad = torch.randn(shape, generator=generator).to(DEVICE)
        made.append(parameter)
    return [*made, nn.Parameter(torch.zeros(3, device=DEVICE))]


@pytest.mark.parametrize("largest_norm", [0.5, 1000.0, float("inf")])
@pytest.mark.parametrize("block", [64, 4096])
def test_clipping_by_the_kernel_is_that_of_the_library(
    monkeypatch: pytest.MonkeyPatch, largest_norm: float, block: int
) -> None:
    monkeypatch.setattr(clipping, "_is_large", lambda gradient: gradient.numel() > 50)
    monkeypatch.setattr(launch, "BLOCK", block)
    monkeypatch.setattr(launch, "PROGRAMS", 3)
    ours, theirs = parameters(), parameters()
    norm = clip_gradients(ours, largest_norm)
    torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(theirs, largest_norm))
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine.grad is None) == (other.grad is None)
        if mine.grad is not None and other.grad is not None:
            torch.testing.assert_close(mine.grad, other.grad)
            # Where nothing is clipped not a bit changes.
            assert largest_norm < 1 or torch.equal(mine.grad, other.grad)


def test_a_gradient_that_is_no_number_shows() -> None:
    values = torch.ones(10, device=DEVICE)
    launch.scale(values, torch.tensor(float("nan"), device=DEVICE))
    assert values.isnan().all()
