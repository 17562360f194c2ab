"""Max-product: the best score of a path into each state, and the backtrace along the best path."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops import dispatch
from vlhmm.ops.max_product import scores
from vlhmm.ops.max_product.kept import KeptScores
from vlhmm.ops.max_product.scores import ScoresBefore
from vlhmm.ops.recursion.factors import Factors

__all__ = ["Backtrace", "max_product", "trace"]

Backtrace = ScoresBefore | KeptScores
"""What a forward pass keeps for the backtrace."""


def max_product(
    factors: Factors, keep_backtrace: bool
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"], Backtrace | None]:
    """The gain at each position of the best score, the last scores (their best is 0), and what the backtrace needs if requested.

    Scores are relative to the best one; the gains sum to the best path's log-probability.
    """
    if _kernels_take(factors):
        from vlhmm.ops.max_product import dense

        return dense.max_product(factors, keep_backtrace)
    return scores.max_product(factors, keep_backtrace)


def _kernels_take(factors: Factors) -> bool:
    return factors.log_tiles.shape[0] == 1 and dispatch.MAX_PRODUCT.serve(factors.log_emission)


def trace(
    factors: Factors, backtrace: Backtrace, last_slot: Int[Tensor, " B"]
) -> tuple[Int[Tensor, "B T"], Int[Tensor, " B"]]:
    """The best path that ends in `last_slot`, -1 past the length, and its slot before position 0.

    Of equal predecessors the first one counts.
    """
    if isinstance(backtrace, KeptScores):
        from vlhmm.ops.max_product import dense

        return dense.trace(factors.init_of, factors.lengths, backtrace, last_slot)
    return scores.trace(factors, backtrace, last_slot)
