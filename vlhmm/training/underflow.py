"""Sequences of training in which a number is too small for its type: counted on the device, looked at where the loss is read.

An eager step does them again in a wider range. A graph cannot: there such a sequence has no gradient, or one that lacks what was
lost. So a training in which there are many goes on with eager steps.
"""

from __future__ import annotations

import math

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlhmm.distributed import ALONE, World, sum_in_order

MAX_SHARE = 0.01
"""With a larger share of the sequences steps are made eagerly, until it is smaller again."""


class UnderflowWatch:
    """How many sequences have underflowed, by a counter in memory of fixed place, so that a graph counts too."""

    def __init__(self, device: torch.device) -> None:
        self._count = torch.zeros((), dtype=torch.int64, device=device)
        self._sequences = 0
        self.total = 0
        """Of all steps up to the last reading."""
        self.eagerly = False
        """Whether steps are to be made eagerly up to the next reading."""

    def add(self, underflow: Bool[Tensor, " B"]) -> None:
        """Counts those of a step, without host-device synchronisation."""
        self._count += underflow.sum()

    def read(self, sequences: int, here: World = ALONE) -> None:
        """Waits for the device, and for all ranks. `sequences`: of all steps and ranks so far."""
        total, new = int(sum_in_order(self._count, here, "the count of underflows")), sequences - self._sequences
        if new:
            self.eagerly = total - self.total > MAX_SHARE * new
        self.total, self._sequences = total, sequences

    def restore(self, total: int, sequences: int, here: World = ALONE) -> None:
        self._count.fill_(total if here.is_first else 0)
        self.total, self._sequences, self.eagerly = total, sequences, False


def revived(log_probs: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Beliefs to go on from in a graph: where a step's sum was lost nothing is possible any more, and the next window would be
    lost too, so there nothing is known of the state."""
    dead = log_probs.amax(1, keepdim=True) == -torch.inf
    return torch.where(dead, -math.log(log_probs.shape[1]), log_probs)


def in_capture(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
