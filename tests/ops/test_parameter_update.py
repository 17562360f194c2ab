"""The update by kernels, interpreted here or on a GPU: the specification, torch's own AdamW, clipping and lerp, step after step."""

import os
from dataclasses import fields

import pytest
import torch
from torch import Tensor, nn

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from vlhmm.ops.parameter_update import AdamW, Group, Moved, launch, reference

pytestmark = pytest.mark.usefixtures("unwritten_is_nan")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# More than a launch takes together, odd sizes, and some that stand in no other's launch.
SHAPES = [(), (7, 9), (1,), (50,), (30, 41), (3,), (130, 17), (5,), (2, 2), (11,)]
RATES = (1e-2, 3e-3)
ADAM = AdamW(0.9, 0.999, 1e-8, 0.3)


def fresh(dtype: torch.dtype, averaged: bool) -> list[Group]:
    generator = torch.Generator().manual_seed(0)

    def moved(shape: tuple[int, ...]) -> Moved:
        values = [torch.randn(shape, generator=generator).to(DEVICE, dtype) for _ in range(2)]
        zeros = [torch.zeros(shape, dtype=dtype, device=DEVICE) for _ in range(3)]
        step = torch.zeros((), device=DEVICE)
        return Moved(values[0], zeros[0], zeros[1], zeros[2], step, values[1] if averaged else None)

    rates = [torch.tensor(rate, device=DEVICE) for rate in RATES]
    return [Group(rates[0], [moved(shape) for shape in SHAPES[:-2]]), Group(rates[1], list(map(moved, SHAPES[-2:])))]


def members(groups: list[Group]) -> list[Moved]:
    return [one for group in groups for one in group.members]


def give_gradients(groups: list[Group], number: int) -> None:
    generator = torch.Generator().manual_seed(number)
    for one in members(groups):
        # Rows without a gradient are updated too: by what their moments remember, and by decay.
        gradient = torch.randn(one.gradient.shape, generator=generator) * 10.0 ** (-2 * number)
        one.gradient.copy_(gradient * (torch.rand(gradient.shape, generator=generator) < 0.7))


def values(groups: list[Group]) -> dict[str, Tensor]:
    """All numbers of each name in a row."""
    found = dict[str, Tensor]()
    for field in fields(Moved):
        some = [getattr(one, field.name) for one in members(groups)]
        if some[0] is not None:
            found[field.name] = torch.cat([value.flatten() for value in some])
    return found


@pytest.mark.parametrize("averaged", [True, False])
@pytest.mark.parametrize("largest_norm", [0.5, 1e4, float("inf")])
def test_every_tensor_of_some_steps_is_the_specifications(
    monkeypatch: pytest.MonkeyPatch, largest_norm: float, averaged: bool
) -> None:
    monkeypatch.setattr(launch, "TILING", launch.Tiling(block=128))
    monkeypatch.setattr(launch, "SQUARES_BLOCK", 64)
    monkeypatch.setattr(launch, "SQUARES_PROGRAMS", 3)
    monkeypatch.setattr(launch, "SMALL", 64)
    ours, exact = fresh(torch.float32, averaged), fresh(torch.float64, averaged)
    for number, weight in enumerate([0.8, 0.002, 0.3]):
        give_gradients(ours, number)
        for mine, other in zip(members(ours), members(exact), strict=True):
            other.gradient.copy_(mine.gradient)
        norm = launch.update(ours, ADAM, largest_norm, torch.tensor(weight, device=DEVICE))
        expected = reference.update(exact, ADAM, largest_norm, torch.tensor(weight, device=DEVICE))
        assert float(norm) == pytest.approx(float(expected), rel=1e-6)
        found = values(ours)
        for name, theirs in values(exact).items():
            # Numbers of both signs cancel: room is relative to the largest.
            room = 1e-7 * float(theirs.abs().max())
            torch.testing.assert_close(found[name].double(), theirs.double(), rtol=1e-6, atol=room, msg=name)


def test_forty_steps_are_those_of_torch() -> None:
    """The parameters, moments and steps of torch.optim.AdamW with its clipping and `lerp_`."""
    ours = fresh(torch.float32, averaged=True)
    parameters = [nn.Parameter(one.parameter.clone()) for one in members(ours)]
    averages = [one.average.clone() for one in members(ours) if one.average is not None]
    rates = [{"params": parameters[:-2], "lr": RATES[0]}, {"params": parameters[-2:], "lr": RATES[1]}]
    betas = ADAM.beta1, ADAM.beta2
    optimizer = torch.optim.AdamW(rates, betas=betas, eps=ADAM.eps, weight_decay=ADAM.weight_decay, fused=True)
    weight = torch.tensor(0.01, device=DEVICE)
    for number in range(40):
        give_gradients(ours, number % 3)
        for parameter, one in zip(parameters, members(ours), strict=True):
            parameter.grad = one.gradient.clone()
        norm = launch.update(ours, ADAM, 0.5, weight)
        torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(parameters, 0.5))
        optimizer.step()
        for average, parameter in zip(averages, parameters, strict=True):
            average.lerp_(parameter.detach(), weight)
    for one, parameter, average in zip(members(ours), parameters, averages, strict=True):
        state = optimizer.state[parameter]
        assert torch.equal(one.step, state["step"])
        for found, theirs in [
            (one.parameter, parameter.detach()),
            (one.exp_avg, state["exp_avg"]),
            (one.exp_avg_sq, state["exp_avg_sq"]),
            (one.average, average),
        ]:
            torch.testing.assert_close(found, theirs, rtol=1e-5, atol=1e-6 * float(theirs.abs().max()))


def test_a_rate_of_zero_leaves_parameters_to_the_bit() -> None:
    ours = fresh(torch.float32, averaged=False)
    for group in ours:
        group.rate.zero_()
    before = [one.parameter.clone() for one in members(ours)]
    give_gradients(ours, 0)
    launch.update(ours, ADAM, 0.5, torch.ones((), device=DEVICE))
    for one, was in zip(members(ours), before, strict=True):
        assert torch.equal(one.parameter, was)


def test_a_gradient_that_is_no_number_shows() -> None:
    ours = fresh(torch.float32, averaged=False)
    give_gradients(ours, 0)
    ours[0].members[1].gradient[0, 0] = float("nan")
    assert launch.update(ours, ADAM, 0.5, torch.ones((), device=DEVICE)).isnan()
    assert all(one.parameter.isnan().all() for one in members(ours))
