"""Tiles made a few at a time are those of the specification, and so are their gradients."""

import pytest
import torch
from torch import Tensor

from vlhmm.ops import factored_tiles as module
from vlhmm.ops.factored_tiles import factored_tiles, reference

SIZES = [
    # Source blocks, their states, target blocks, their states, width, tiles.
    (1, 1, 1, 1, 1, 1),
    (3, 4, 3, 4, 5, 7),
    (4, 2, 3, 6, 3, 12),
    (2, 3, 2, 3, 4, 0),
]


def made(sizes: tuple[int, ...], dtype: torch.dtype = torch.float64) -> tuple[list[Tensor], list[Tensor]]:
    sources, states, targets, entered, width, tiles = sizes
    generator = torch.Generator().manual_seed(sum(sizes))
    shapes = ((sources, states, width), (targets, entered, width), (tiles, states))
    factors = [torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes]
    return factors, [torch.randint(number, (tiles,), generator=generator) for number in (sources, targets)]


@pytest.mark.parametrize("at_once", [1, 1 << 20])
@pytest.mark.parametrize("normalised", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_values_and_gradients_equal_those_of_the_specification(
    sizes: tuple[int, ...], normalised: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "BYTES_AT_ONCE", at_once)
    factors, pairs = made(sizes)
    found, expected = (one(*factors, *pairs, normalised=normalised) for one in (factored_tiles, reference))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    gradients = [torch.autograd.grad(one, factors, cotangent) for one in (found, expected)]
    for ours, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_the_gradient_of_the_gradient_is_that_of_finite_differences() -> None:
    factors, pairs = made((3, 2, 3, 2, 3, 4))
    for normalised in (False, True):

        def tiles(*some: Tensor, normalised: bool = normalised) -> Tensor:
            return factored_tiles(*some, *pairs, normalised=normalised)

        assert torch.autograd.gradcheck(tiles, factors)
        assert torch.autograd.gradgradcheck(tiles, factors)


def test_blocks_that_are_never_entered_have_no_gradient_and_spoil_no_other() -> None:
    (out, into, row_term), pairs = made((3, 4, 3, 4, 5, 7))
    closed = torch.zeros_like(row_term, dtype=torch.bool)
    closed[2, 1] = closed[5] = True
    row_term = row_term.detach().masked_fill(closed, -torch.inf).requires_grad_()
    tiles = factored_tiles(out, into, row_term, *pairs, normalised=True)
    assert (tiles[closed] == -torch.inf).all()
    # As the recursion does: nothing is asked of what is impossible.
    cotangent = torch.randn(tiles.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    cotangent = cotangent.masked_fill(closed[:, :, None], 0.0)
    ours = torch.autograd.grad(tiles, (out, into, row_term), cotangent)
    expected = torch.autograd.grad(
        reference(out, into, row_term, *pairs, normalised=True), (out, into, row_term), cotangent
    )
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)


def test_states_behind_a_barrier_are_never_entered() -> None:
    """A feature that is 1 times -inf: its own gradient is nobody's, the others' are as without those states."""
    (out, into, row_term), pairs = made((3, 4, 3, 4, 5, 7))
    barrier = torch.zeros(3, 4, 1, dtype=torch.float64)
    barrier[:, 3] = -torch.inf
    ones = torch.ones(3, 4, 1, dtype=torch.float64)
    factors = (torch.cat([out, ones], 2), torch.cat([into, barrier], 2))
    behind = factored_tiles(*factors, row_term, *pairs, normalised=True)
    without = factored_tiles(out, into[:, :3], row_term, *pairs, normalised=True)
    assert (behind[:, :, 3] == -torch.inf).all()
    torch.testing.assert_close(behind[:, :, :3], without, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn(without.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    ours = torch.autograd.grad(behind[:, :, :3], (out, into, row_term), cotangent)
    expected = torch.autograd.grad(without, (out, into, row_term), cotangent)
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-12)
