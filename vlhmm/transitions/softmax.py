"""The transition as a softmax over all states of a product of factors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.row_logsumexp import row_logsumexp
from vlhmm.ops.transition_tiles import TransitionOperands, softmax_tiles
from vlhmm.records import shown
from vlhmm.support import Support
from vlhmm.transitions.rows import check_square, joined, push_by_rows, to_bf16


@dataclass(frozen=True)
class SoftmaxTransition:
    """A softmax over all target states, log p(z' | z) = out_z . into_z' - log_normalizer_z.

    Example:
        >>> from vlhmm.tables import SoftmaxTransition
        >>> out, into = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0]])
        >>> transition = SoftmaxTransition(out, into, (out @ into.T).logsumexp(1))
        >>> transition.log_rows(torch.tensor([0, 1])).exp()
        tensor([[0.2689, 0.7311],
                [0.1192, 0.8808]])
    """

    out: Float[Tensor, "Z H"]
    """Features of the source states."""
    into: Float[Tensor, "Y H"]
    """Features of the target states."""
    log_normalizer: Float[Tensor, " Z"]
    """log sum over z' of exp(out_z . into_z')."""

    __repr__ = shown

    by_products = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.out.shape[0], self.into.shape[0]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        return self.out[states] @ self.into.T - self.log_normalizer[states, None]

    def log_tiles(
        self, source: Support, source_groups: Int[Tensor, " U"], target: Support, target_groups: Int[Tensor, " U"]
    ) -> Float[Tensor, "U K J"]:
        factors = (self.out, self.into, self.log_normalizer)
        return softmax_tiles(*factors, source, source_groups, target, target_groups)

    def log_pairs(self, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        product = self.out.index_select(0, source) * self.into.index_select(0, target)
        return product.sum(dim=1) - self.log_normalizer.index_select(0, source)

    def pusher(self) -> Callable[[Tensor], Tensor]:
        return partial(push_by_rows, self.log_rows, self.shape[1])

    def split_rows(self, sizes: Sequence[int]) -> list[SoftmaxTransition]:
        parts = zip(self.out.split(list(sizes)), self.log_normalizer.split(list(sizes)), strict=True)
        return [SoftmaxTransition(out, self.into, log_normalizer) for out, log_normalizer in parts]

    def join_rows(self, other: SoftmaxTransition) -> SoftmaxTransition:
        log_normalizer = joined(self.log_normalizer, other.log_normalizer)
        return SoftmaxTransition(joined(self.out, other.out), self.into, log_normalizer)

    def rounded(self) -> SoftmaxTransition:
        return replace(self, out=to_bf16(self.out), into=to_bf16(self.into))

    def renormalized(self) -> SoftmaxTransition:
        return replace(self, log_normalizer=row_logsumexp(self.out, self.into, precision="highest"))

    def operands(self) -> TransitionOperands:
        return TransitionOperands(self.out, self.into, self.log_normalizer)

    def check_support(self, support: Support) -> None:
        check_square(self.shape, support)

    def distributions(self) -> list[tuple[str, Float[Tensor, "N W"]]]:
        return []
