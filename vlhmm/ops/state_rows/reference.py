"""Rows of a table by state: the specification."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def state_rows(
    per_state: Float[Tensor, "Z H"],
    states: Int[Tensor, " n"],
    num_first: int,
    per_block: Float[Tensor, "M H"] | None = None,
) -> tuple[Float[Tensor, "n W"], Float[Tensor, "m W"]]:
    # The backward pass of `index_select` does not sort its indices, unlike that of advanced indexing.
    rows = per_state.index_select(0, states)
    if per_block is not None:
        states_per_block = per_state.shape[0] // per_block.shape[0]
        rows = torch.cat([per_block.index_select(0, states // states_per_block), rows], dim=1)
    # Sliced only where needed: the gradient of a slice is as large as the whole tensor.
    return rows, rows if num_first == rows.shape[0] else rows[:num_first]
