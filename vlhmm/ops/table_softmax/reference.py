"""The specification of `table_log_softmax`: plain torch."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor


def table_log_softmax(
    logits: Float[Tensor, "Z Y"], rows: Int[Tensor, " n"], columns: Int[Tensor, " m"] | None
) -> Float[Tensor, "n m"]:
    # The backward pass of `index_select` does not sort its indices, unlike that of advanced indexing.
    chosen = logits.index_select(0, rows)
    if columns is not None:
        chosen = chosen.index_select(1, columns)
    return chosen.log_softmax(dim=1)
