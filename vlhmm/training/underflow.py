"""Sequences with underflow in training: counted on the device, read on the host together with the loss.

An eager step recomputes them in a wider range. A CUDA graph cannot: there such a sequence has gradient 0, or one that lacks the
underflowed terms. So training falls back to eager steps if there are many.
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
    """The number of sequences with underflow, in a counter at a fixed address, so that a captured graph can add to it."""

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
        """Synchronises with the device and all ranks. `sequences`: of all steps and ranks so far."""
        total, new = int(sum_in_order(self._count, here, "the count of underflows")), sequences - self._sequences
        if new:
            self.eagerly = total - self.total > MAX_SHARE * new
        self.total, self._sequences = total, sequences

    def restore(self, total: int, sequences: int, here: World = ALONE) -> None:
        self._count.fill_(total if here.is_first else 0)
        self.total, self._sequences, self.eagerly = total, sequences, False


def revived(log_probs: Float[Tensor, "B K"]) -> Float[Tensor, "B K"]:
    """Beliefs to continue from in a graph. After underflow of a step's sum a belief is -inf everywhere, and so would be that of the next
    window: it is replaced by a uniform belief."""
    dead = log_probs.amax(1, keepdim=True) == -torch.inf
    return torch.where(dead, -math.log(log_probs.shape[1]), log_probs)


def in_capture(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()
