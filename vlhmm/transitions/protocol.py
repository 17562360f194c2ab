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
    """The interface of p(z' | z) from Z source states to Y target states; they differ where states are dropped between windows.

    A kind is a frozen dataclass of tensors. An `HMM` has one of `vlhmm.transitions.KINDS`: `TableTransition`, `SoftmaxTransition`,
    `BlockFactoredTransition` or `LowRankTransition`. `BlockSoftmaxTransition` is made for a window of training in bf16 alone.

    Example:
        >>> from vlhmm.tables import TableTransition, Transition
        >>> isinstance(TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log()), Transition)
        True
    """

    @property
    def shape(self) -> tuple[int, int]:
        """Number of source states Z and of target states Y."""
        ...

    @property
    def by_products(self) -> bool:
        """Whether the recursion of a dense HMM takes `pusher` instead of a tile, because it is cheaper than Z^2."""
        ...

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        """Compute log p(z' | z) for some source states and all target states.

        Args:
            states: Source states (N,).

        Returns:
            Log-probabilities (N, Y).

        Example:
            >>> from vlhmm.tables import TableTransition
            >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> transition.log_rows(torch.tensor([1])).exp()
            tensor([[0.4000, 0.6000]])
        """
        ...

    def log_tiles(
        self, source: Support, source_groups: Int[Tensor, " U"], target: Support, target_groups: Int[Tensor, " U"]
    ) -> Float[Tensor, "U K J"]:
        """Compute log p(z' | z) between the states of pairs of groups.

        Args:
            source: The support of the source states.
            source_groups: Source group of each pair (U,).
            target: The support of the target states.
            target_groups: Target group of each pair (U,).

        Returns:
            One tile for each pair (U, K, J).

        Example:
            >>> from vlhmm.tables import TableTransition, blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=1)
            >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> transition.log_tiles(support, torch.tensor([0]), support, torch.tensor([1])).exp()
            tensor([[[0.3000]]])
        """
        ...

    def log_pairs(self, source: Int[Tensor, " N"], target: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
        """Compute log p(z' | z) pair by pair, without host-device synchronisation.

        Args:
            source: Source state z of each pair (N,).
            target: Target state z' of each pair (N,).

        Returns:
            Log-probabilities (N,).

        Example:
            >>> from vlhmm.tables import TableTransition
            >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> transition.log_pairs(torch.tensor([0, 1]), torch.tensor([1, 1])).exp()
            tensor([0.3000, 0.6000])
        """
        ...

    def pusher(self) -> Callable[[Tensor], Tensor]:
        """Prepare the product of messages with the transition, sum over z of message[b, z] p(z' | z).

        Returns:
            A function from messages (B, Z) to messages (B, Y).

        Example:
            >>> from vlhmm.tables import TableTransition
            >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> transition.pusher()(torch.tensor([[0.5, 0.5]]))
            tensor([[0.5500, 0.4500]])
        """
        ...

    def split_rows(self, sizes: Sequence[int]) -> Sequence[Transition]:
        """Split the transition by its source states.

        Args:
            sizes: Number of source states of each part.

        Returns:
            The parts, with the same target states.

        Example:
            >>> from vlhmm.tables import TableTransition
            >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> [part.shape for part in transition.split_rows([1, 1])]
            [(1, 2), (1, 2)]
        """
        ...

    def join_rows(self, other: Any) -> Transition:
        """Append the source states of another transition of the same kind and with the same target states.

        Args:
            other: The transition whose source states come last.

        Returns:
            The transition from both.

        Example:
            >>> from vlhmm.tables import TableTransition
            >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> transition.join_rows(transition).shape
            (4, 2)
        """
        ...

    def rounded(self) -> Transition:
        """Round the features as kernels in bfloat16 read them, so that rows sum to one beside a normaliser of rounded features.

        Returns:
            The transition of rounded features; where nothing is rounded, the same.

        Example:
            >>> from vlhmm.tables import TableTransition
            >>> TableTransition(torch.zeros(1, 1)).rounded().shape
            (1, 1)
        """
        ...

    def renormalized(self) -> Transition:
        """Compute the stored normaliser anew from the features, in float32 or float64.

        Returns:
            The transition whose rows sum to one; where no normaliser is stored, the same.

        Example:
            >>> from vlhmm.tables import SoftmaxTransition
            >>> out, into = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0]])
            >>> SoftmaxTransition(out, into, torch.zeros(2)).renormalized().log_rows(torch.tensor([0])).exp()
            tensor([[0.2689, 0.7311]])
        """
        ...

    def operands(self) -> TransitionOperands | None:
        """Hand out plain tensors for the kernels of the blocked recursion.

        Returns:
            The tensors, or None where no kernel reads this kind.

        Example:
            >>> from vlhmm.tables import TableTransition
            >>> TableTransition(torch.zeros(1, 1)).operands().is_table
            True
        """
        ...

    def check_support(self, support: Support) -> None:
        """Check that the shapes fit the states and groups of a support.

        Args:
            support: The support of the HMM.

        Raises:
            ValueError: A shape does not fit.

        Example:
            >>> from vlhmm.tables import TableTransition, dense_support
            >>> TableTransition(torch.zeros(1, 1)).check_support(dense_support(num_words=3, num_states=2))
            Traceback (most recent call last):
            ValueError: transition has shape (1, 1), but there are 2 states
        """
        ...

    def distributions(self) -> list[tuple[str, Float[Tensor, "N W"]]]:
        """List the stored log-probabilities, which must sum to one over their last axis.

        Returns:
            Each with its name for error messages.

        Example:
            >>> from vlhmm.tables import TableTransition
            >>> [name for name, _ in TableTransition(torch.zeros(1, 1)).distributions()]
            ['transition']
        """
        ...
