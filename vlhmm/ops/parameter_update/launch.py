"""How the kernels of the update are called. Nothing here synchronises host and device, so a CUDA graph can hold it all."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.ops.parameter_update import kernel
from vlhmm.ops.parameter_update.reference import AdamW, Group, Moved
from vlhmm.ops.sizes import cdiv

MAX_TOGETHER = 8
"""Parameters of a launch."""
MAX_INT32 = (1 << 31) - 1
"""Numbers of a launch's parameters are of one type: beyond, each has a launch of its own."""
SMALL = 1 << 14
"""Below, any sizes share a launch; else those within a factor of four, so that few programs have nothing to do."""
SQUARES_BLOCK, SQUARES_PROGRAMS = 4096, 1056
"""Eight programs for each of a Hopper's 132 multiprocessors."""


@dataclass(frozen=True)
class Tiling:
    """How `move` is tiled: 1024 numbers of 4 warps are two loads of 16 bytes a thread for each of five tensors."""

    block: int = 1024
    num_warps: int = 4


TILING = Tiling()


@dataclass(frozen=True)
class _Batch:
    """Parameters that share a launch, the largest first."""

    rate: Float[Tensor, ""]
    members: list[Moved]

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(one.parameter.numel() for one in self.members)

    @property
    def gradients(self) -> tuple[Tensor, ...]:
        return tuple(one.gradient.contiguous() for one in self.members)


@torch.no_grad()
def update(
    groups: Sequence[Group], adam: AdamW, largest_norm: float, average_weight: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """`reference.update`."""
    batches = [batch for group in groups for batch in _batches(group)]
    gradients = [batch.gradients for batch in batches]
    norm, factor = norm_and_factor(batches, gradients, largest_norm)
    for batch, own in zip(batches, gradients, strict=True):
        corrections = norm.new_empty(2 * len(batch.members))
        kernel.count[(len(batch.members),)](
            tuple(one.step for one in batch.members), corrections, adam.beta1, adam.beta2, num_warps=1
        )
        move(batch, own, corrections, adam, factor, average_weight, TILING)
    return norm


def _batches(group: Group) -> Iterable[_Batch]:
    members = list[Moved]()
    for one in sorted(group.members, key=lambda one: -one.parameter.numel()):
        if members:
            largest = members[0].parameter.numel()
            alike = largest <= min(max(SMALL, 4 * one.parameter.numel()), MAX_INT32)
            if not alike or len(members) == MAX_TOGETHER:
                yield _Batch(group.rate, members)
                members = []
        members.append(one)
    if members:
        yield _Batch(group.rate, members)


def norm_and_factor(
    batches: Sequence[_Batch], gradients: Sequence[tuple[Tensor, ...]], largest_norm: float
) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
    """The norm of all gradients, and what clipping multiplies them by."""
    programs = [min(SQUARES_PROGRAMS, cdiv(batch.sizes[0], SQUARES_BLOCK)) for batch in batches]
    counts = [some * len(batch.members) for some, batch in zip(programs, batches, strict=True)]
    sums = gradients[0][0].new_empty(sum(counts))
    for batch, own, some, part in zip(batches, gradients, programs, sums.split(counts), strict=True):
        kernel.squares[(some, len(own))](own, batch.sizes, part, BLOCK=SQUARES_BLOCK, num_warps=8)
    norm, factor = sums.new_empty(()), sums.new_empty(())
    clip = not math.isinf(largest_norm)
    kernel.conclude[(1,)](
        *(sums, sums.numel(), norm, factor, largest_norm if clip else 0.0), CLIP=clip, BLOCK=1024, num_warps=4
    )
    return norm, factor


def move(
    batch: _Batch,
    gradients: tuple[Tensor, ...],
    corrections: Float[Tensor, " two_each"],
    adam: AdamW,
    factor: Float[Tensor, ""],
    average_weight: Float[Tensor, ""],
    tiling: Tiling,
) -> None:
    parameters = tuple(one.parameter for one in batch.members)
    averages = tuple(one.average for one in batch.members if one.average is not None)
    kernel.move[(cdiv(batch.sizes[0], tiling.block), len(parameters))](
        *(parameters, gradients, tuple(one.exp_avg for one in batch.members)),
        *(tuple(one.exp_avg_sq for one in batch.members), averages or parameters, batch.sizes),
        *(corrections, batch.rate, factor, average_weight),
        DECAY=adam.weight_decay,
        BETA1=adam.beta1,
        BETA2=adam.beta2,
        EPS=adam.eps,
        AVERAGED=bool(averages),
        BLOCK=tiling.block,
        num_warps=tiling.num_warps,
    )
