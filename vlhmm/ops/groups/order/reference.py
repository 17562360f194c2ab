"""Positions by group: the specification, and what many positions take."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class GroupOrder:
    """The positions by their source group (row 0) and by their target group (row 1); equal ones stay in their order."""

    own: Int[Tensor, "2 N"]
    """The groups, ascending."""
    other: Int[Tensor, "2 N"]
    """The group of the other side at the same position."""
    position: Int[Tensor, "2 N"]


def group_order(source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> GroupOrder:
    # Two sorts in one launch, of as few bits as the groups have.
    groups = torch.stack([source, target]).int()
    own, position = groups.sort(dim=1, stable=True)
    return GroupOrder(own, groups.flip(0).gather(1, position), position)
