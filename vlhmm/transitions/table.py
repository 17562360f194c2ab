"""The transition stored whole, entry by entry."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.transition_tiles import TransitionOperands, table_tiles
from vlhmm.records import shown
from vlhmm.support import Support
from vlhmm.transitions.protocol import Transition
from vlhmm.transitions.rows import check_square, joined, push_by_rows


@dataclass(frozen=True)
class TableTransition:
    """A transition stored as a table, log p(z' | z) = log_prob[z, z'].

    Example:
        >>> from vlhmm.tables import TableTransition
        >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
        >>> transition.log_rows(torch.tensor([1])).exp()
        tensor([[0.4000, 0.6000]])
    """

    log_prob: Float[Tensor, "Z Y"]
    """log p(z' | z), source state z in the row."""

    __repr__ = shown

    by_products = False

    @property
    def shape(self) -> tuple[int, int]:
        return self.log_prob.shape[0], self.log_prob.shape[1]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        return self.log_prob[states]

    def log_tiles(
        self, source: Support, source_groups: Int[Tensor, " U"], target: Support, target_groups: Int[Tensor, " U"]
    ) -> Float[Tensor, "U K J"]:
        return table_tiles(self.log_prob, source, source_groups, target, target_groups)

    def log_pairs(self, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        # Unlike indexing, `index_select` has a gradient that sorts nothing.
        return self.log_prob.flatten().index_select(0, source * self.log_prob.shape[1] + target)

    def pusher(self) -> Callable[[Tensor], Tensor]:
        return partial(push_by_rows, self.log_rows, self.shape[1])

    def split_rows(self, sizes: Sequence[int]) -> list[TableTransition]:
        # Unlike that of slices, the gradient of a split is one copy.
        return [TableTransition(part) for part in self.log_prob.split(list(sizes))]

    def join_rows(self, other: TableTransition) -> TableTransition:
        return TableTransition(joined(self.log_prob, other.log_prob))

    def rounded(self) -> TableTransition:
        return self

    def renormalized(self) -> TableTransition:
        return self

    def operands(self) -> TransitionOperands:
        return TransitionOperands(self.log_prob, None, None)

    def check_support(self, support: Support) -> None:
        check_square(self.shape, support)

    def distributions(self) -> list[tuple[str, Float[Tensor, "N W"]]]:
        return [("transition", self.log_prob)]


def is_table(transition: Transition) -> bool:
    """Whether the transition is stored whole."""
    return isinstance(transition, TableTransition)


def log_table(transition: Transition) -> Float[Tensor, "Z Y"]:
    """log A of a transition that is stored whole."""
    assert isinstance(transition, TableTransition)
    return transition.log_prob
