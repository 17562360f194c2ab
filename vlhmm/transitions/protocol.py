"""What inference and models ask of a transition. Each kind is complete in one file of this folder."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.transition_tiles import TransitionOperands
from vlhmm.support import Support


@runtime_checkable
class Transition(Protocol):
    """p(z' | z) from Z source states to Y target states, which differ where states are dropped between two windows.

    A kind is a frozen dataclass of tensors: `records.convert` moves it, autograd flows through it.
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Source states Z, target states Y."""
        ...

    @property
    def by_products(self) -> bool:
        """Whether the recursion of a dense HMM takes `pusher` instead of a tile, because it is cheaper than Z^2."""
        ...

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        """log p(z' | z) from some states to all."""
        ...

    def log_tiles(
        self, source: Support, source_groups: Int[Tensor, " U"], target: Support, target_groups: Int[Tensor, " U"]
    ) -> Float[Tensor, "U K J"]:
        """log p(z' | z) from the K states of each source group to the J states of its target group."""
        ...

    def log_pairs(self, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """log p(target | source), pair by pair, without host-device synchronisation."""
        ...

    def pusher(self) -> Callable[[Tensor], Tensor]:
        """The product of messages (B, Z) with the transition, (B, Y), prepared once: sum over z of probs[b, z] p(z' | z)."""
        ...

    def split_rows(self, sizes: Sequence[int]) -> Sequence[Transition]:
        """The same transition from the first so many source states, from the next, and so on."""
        ...

    def join_rows(self, other: Any) -> Transition:
        """The source states of `other`, of the same kind and with the same targets, behind those of this one."""
        ...

    def rounded(self) -> Transition:
        """As kernels in bf16 read it, so that rows sum to one beside a normaliser of rounded features."""
        ...

    def operands(self) -> TransitionOperands | None:
        """Plain tensors for the kernels of the blocked recursion; None: no kernel reads this kind."""
        ...

    def check_support(self, support: Support) -> None:
        """Raises ValueError unless shapes fit the states and groups of `support`."""
        ...

    def distributions(self) -> list[tuple[str, Float[Tensor, "N W"]]]:
        """Tensors of log-probabilities that are stored and must sum to one over their last axis, each with its name."""
        ...
