"""Rows of a table by state: the specification."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor


def state_rows(
    per_state: Float[Tensor, "Z H"], states: Int[Tensor, " n"], num_first: int
) -> tuple[Float[Tensor, "n H"], Float[Tensor, "m H"]]:
    # Unlike indexing, `index_select` has a gradient that sorts nothing.
    rows = per_state.index_select(0, states)
    # Cut where needed only: a slice's gradient is as large as the whole.
    return rows, rows if num_first == rows.shape[0] else rows[:num_first]
