"""The transition as a product of two stochastic matrices of small rank (Chiu, Deng & Rush 2021)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.memory import require_memory
from vlhmm.records import shown
from vlhmm.support import Support
from vlhmm.transitions.rows import check_square, joined

PAIR_BYTES = 1 << 26
"""Sums over the rank that are taken in log space are made this many bytes at a time."""


@dataclass(frozen=True)
class LowRankTransition:
    """A[z, z'] = sum over r of p(r | z) p(z' | r).

    A message moves in O(Z R): first to the R classes, then to the states. Whatever needs single entries of A (Viterbi, the
    posterior, sampling a path) makes tiles, at Z^2 R.
    """

    log_out: Float[Tensor, "Z R"]
    """log p(r | z): each row sums to one."""
    log_into: Float[Tensor, "Y R"]
    """log p(z' | r): each column sums to one."""

    __repr__ = shown

    by_products = True

    @property
    def shape(self) -> tuple[int, int]:
        return self.log_out.shape[0], self.log_into.shape[0]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        return _log_product(self.log_out[states][None], self.log_into[None])[0]

    def log_tiles(
        self, source: Support, source_groups: Int[Tensor, " U"], target: Support, target_groups: Int[Tensor, " U"]
    ) -> Float[Tensor, "U K J"]:
        num_tiles, states = source_groups.shape[0], (source.states_per_word, target.states_per_word)
        require_memory(
            2 * num_tiles * states[0] * states[1] * self.log_out.element_size(),
            f"{num_tiles} tiles of {states[0]} x {states[1]} states of a low-rank transition",
            "use fewer states or more blocks; log_prob and training need no tiles where every state emits every word",
            self.log_out.device,
        )
        return _log_product(source.rows(self.log_out, source_groups), target.rows(self.log_into, target_groups))

    def log_pairs(self, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        return _log_sum(self.log_out.index_select(0, source) + self.log_into.index_select(0, target))

    def pusher(self) -> Callable[[Tensor], Tensor]:
        to_class, to_state = self.log_out.exp(), self.log_into.exp().T
        return lambda probs: (probs @ to_class) @ to_state

    def split_rows(self, sizes: Sequence[int]) -> list[LowRankTransition]:
        return [LowRankTransition(part, self.log_into) for part in self.log_out.split(list(sizes))]

    def join_rows(self, other: LowRankTransition) -> LowRankTransition:
        return LowRankTransition(joined(self.log_out, other.log_out), self.log_into)

    def rounded(self) -> LowRankTransition:
        return self

    def renormalized(self) -> LowRankTransition:
        return self

    def operands(self) -> None:
        return None

    def check_support(self, support: Support) -> None:
        if self.log_out.shape[1] != self.log_into.shape[1]:
            raise ValueError(
                f"the factors of the transition have rank {self.log_out.shape[1]} and {self.log_into.shape[1]}: "
                "both must have the same"
            )
        check_square(self.shape, support)

    def distributions(self) -> list[tuple[str, Float[Tensor, "N W"]]]:
        return [("transition into classes", self.log_out), ("transition out of classes", self.log_into.T)]


def _log_product(log_left: Float[Tensor, "U K R"], log_right: Float[Tensor, "U J R"]) -> Float[Tensor, "U K J"]:
    """log of the sum over r of left[k, r] right[j, r], by a matrix product; entries that underflow there in log space."""
    left, left_peak = _shifted(log_left)
    right, right_peak = _shifted(log_right)
    product = left @ right.mT
    log_product = product.clamp(min=torch.finfo(product.dtype).tiny).log() + left_peak + right_peak.mT
    # What is lost of a sum is below its rounding error as long as the sum is far above the smallest number.
    small = product.detach() < torch.finfo(product.dtype).tiny ** 0.5
    if not bool(small.any()):
        return log_product
    return _with_exact(log_product, small, log_left, log_right)


def _with_exact(
    log_product: Float[Tensor, "U K J"],
    small: Bool[Tensor, "U K J"],
    log_left: Float[Tensor, "U K R"],
    log_right: Float[Tensor, "U J R"],
) -> Float[Tensor, "U K J"]:
    """The product with its entries `small` taken in log space."""
    tile, row, column = small.nonzero(as_tuple=True)
    at_once = max(1, PAIR_BYTES // (log_left.shape[2] * log_left.element_size()))
    parts = [
        _log_sum(log_left[tile[some], row[some]] + log_right[tile[some], column[some]])
        for some in torch.arange(tile.shape[0], device=tile.device).split(at_once)
    ]
    return log_product.index_put((tile, row, column), torch.cat(parts))


def _shifted(log_values: Float[Tensor, "U N R"]) -> tuple[Float[Tensor, "U N R"], Float[Tensor, "U N 1"]]:
    peak = log_values.detach().amax(2, keepdim=True)
    peak = torch.where(peak.isinf(), 0.0, peak)
    return (log_values - peak).exp(), peak


def _log_sum(log_terms: Float[Tensor, "N R"]) -> Float[Tensor, " N"]:
    """logsumexp over the last axis whose gradient is 0, not NaN, where every term is -inf."""
    possible = (log_terms > -torch.inf).any(1)
    return torch.where(possible, torch.where(possible[:, None], log_terms, 0.0).logsumexp(1), -torch.inf)
