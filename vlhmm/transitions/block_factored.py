"""The transition as a choice of the target block, then of a state within it."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.factored_tiles import factored_tiles
from vlhmm.support import Support


@dataclass(frozen=True)
class BlockFactoredTransition:
    """A softmax over blocks, then one within the block, p(z' | z) = p(m' | z) p(z' | m', z) for z' in block m'.

    log p(z' | m', z) = out_z . into_z' - log sum over the states z'' of block m' of exp(out_z . into_z''). It is exact and
    normalised without a sum over all pairs of states. The support must be a partition.

    Example:
        >>> from vlhmm.tables import BlockFactoredTransition
        >>> log_block = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
        >>> transition = BlockFactoredTransition(log_block, torch.ones(2, 1), torch.ones(2, 1))
        >>> transition.log_rows(torch.tensor([0, 1])).exp()
        tensor([[0.9000, 0.1000],
                [0.5000, 0.5000]])
    """

    log_block: Float[Tensor, "Z M"]
    """log p(m' | z), the probability of each target block."""
    out: Float[Tensor, "Z H"]
    """Features of the source states."""
    into: Float[Tensor, "Y H"]
    """Features of the target states."""

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        """Compute log p(z' | z) for some source states and all target states.

        Args:
            states: Source states (N,).

        Returns:
            Log-probabilities (N, Z).

        Example:
            >>> from vlhmm.tables import BlockFactoredTransition
            >>> log_block = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
            >>> transition = BlockFactoredTransition(log_block, torch.ones(2, 1), torch.ones(2, 1))
            >>> transition.log_rows(torch.tensor([0])).exp()
            tensor([[0.9000, 0.1000]])
        """
        logits = (self.out[states] @ self.into.T).view(states.shape[0], self.log_block.shape[1], -1)
        return (self.log_block[states][:, :, None] + logits.log_softmax(dim=2)).flatten(1)

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
        """Compute log p(z' | z) between the states of pairs of groups.

        Args:
            source: The support of the source states.
            source_groups: Source group of each pair (U,).
            target: The support of the target states.
            target_groups: Target group of each pair (U,).

        Returns:
            One tile for each pair (U, K, K).

        Example:
            >>> from vlhmm.tables import BlockFactoredTransition, blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=1)
            >>> log_block = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
            >>> transition = BlockFactoredTransition(log_block, torch.ones(2, 1), torch.ones(2, 1))
            >>> transition.log_tiles(support, torch.tensor([0]), support, torch.tensor([1])).exp()
            tensor([[[0.1000]]])
        """
        # (M, K, M'): for each tile the source block's K states against one target block.
        log_block = source.blocks(self.log_block)[source_groups, :, target_groups]
        blocks = source.blocks(self.out), target.blocks(self.into)
        return factored_tiles(*blocks, log_block, source_groups, target_groups, normalised=True)
