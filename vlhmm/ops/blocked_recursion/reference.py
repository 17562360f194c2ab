"""The specification of `blocked_recursion`: make every tile, then the recursion in log space."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from vlhmm.ops.blocked_recursion.factors import BlockedFactors
from vlhmm.ops.recursion import reference


def blocked_recursion(factors: BlockedFactors) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"]]:
    """log p(x_t | x_<t), 0 past the length, and log p(z | x) of the last state."""
    token_log_probs, _, log_last = reference.recursion(factors.with_tiles())
    return token_log_probs, log_last
