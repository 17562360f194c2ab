"""p(block | state) by the features of both, at the pairs that a window reads; its normaliser over blocks is a `row_logsumexp`."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from vlhmm.ops import dispatch
from vlhmm.precision import Precision


def kernels_take(
    out: Float[Tensor, "Z H"], into: Float[Tensor, "Y H"], block_weight: Float[Tensor, "M H"], precision: Precision
) -> bool:
    """Whether a transition may leave p(block | state) in factors: the kernels of the blocked recursion will read it."""
    num_blocks, width = block_weight.shape
    return (
        precision == "bf16"
        and num_blocks > 1
        and dispatch.BLOCKED_RECURSION.fits(into.shape[0] // num_blocks)
        and dispatch.BLOCK_CHOICE.serve(out, into, block_weight, size=width)
    )
