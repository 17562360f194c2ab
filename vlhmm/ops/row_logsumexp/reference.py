"""The specification of `row_logsumexp`: plain torch, all pairs at once."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor


def row_logsumexp(out: Float[Tensor, "Z H"], into: Float[Tensor, "Y H"]) -> Float[Tensor, " Z"]:
    """log sum_y exp(out_z . in_y)."""
    return (out @ into.T).logsumexp(dim=1)
