"""Tiles of a transition from plain tensors: log A[z, z'] from the states of one group to those of another.

A transition is one of three forms: a table, a softmax over all target states of a product of features, or a choice of the
target's block followed by a softmax within it. `TransitionOperands` is what kernels read of it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.factored_tiles import factored_tiles
from vlhmm.support import Support


def table_tiles(
    log_prob: Float[Tensor, "Z Y"],
    source: Support,
    source_groups: Int[Tensor, " U"],
    target: Support,
    target_groups: Int[Tensor, " U"],
) -> Float[Tensor, "U K J"]:
    """log A[z, z'] cut out of the table."""
    if source.partition and target.partition:
        sources, targets = source.num_groups, target.num_groups
        if sources == targets == source_groups.shape[0] == 1:
            return log_prob[None]
        # Rows of a tile are parts of table rows; the backward pass of `index_select` does not sort its indices.
        states = torch.arange(source.states_per_word, device=source_groups.device)
        pieces = (source_groups[:, None] * source.states_per_word + states) * targets + target_groups[:, None]
        width = log_prob.shape[1] // targets
        return log_prob.reshape(-1, width).index_select(0, pieces.flatten()).view(*pieces.shape, width)
    from_states = source.states_of_group[source_groups]
    to_states = target.states_of_group[target_groups]
    return log_prob[from_states[:, :, None], to_states[:, None, :]]


def softmax_tiles(
    out: Float[Tensor, "Z H"],
    into: Float[Tensor, "Y H"],
    log_normalizer: Float[Tensor, " Z"],
    source: Support,
    source_groups: Int[Tensor, " U"],
    target: Support,
    target_groups: Int[Tensor, " U"],
) -> Float[Tensor, "U K J"]:
    """out_z . in_z' - log_normalizer_z."""
    row_term = -source.rows(log_normalizer, source_groups)
    if source.partition and target.partition:
        blocks = source.blocks(out), target.blocks(into)
        return factored_tiles(*blocks, row_term, source_groups, target_groups, normalised=False)
    logits = source.rows(out, source_groups) @ target.rows(into, target_groups).mT
    return logits + row_term[:, :, None]


def block_factored_tiles(
    log_block: Float[Tensor, "Z M"],
    out: Float[Tensor, "Z H"],
    into: Float[Tensor, "Y H"],
    source: Support,
    source_groups: Int[Tensor, " U"],
    target: Support,
    target_groups: Int[Tensor, " U"],
) -> Float[Tensor, "U K J"]:
    """log p(m' | z) + out_z . in_z' - LSE over the states of block m'."""
    # (M, K, M'): for each tile the source block's K states against one target block.
    row_term = source.blocks(log_block)[source_groups, :, target_groups]
    blocks = source.blocks(out), target.blocks(into)
    return factored_tiles(*blocks, row_term, source_groups, target_groups, normalised=True)


@dataclass(frozen=True)
class TransitionOperands:
    """A transition as the kernels of the blocked recursion read it.

    Example:
        >>> from vlhmm.tables import SoftmaxTransition
        >>> SoftmaxTransition(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(2)).operands().shape
        (2, 2)
    """

    out: Float[Tensor, "Z H"]
    """The features of source states, or of a table all of it."""
    into: Float[Tensor, "Y H"] | None
    """The features of target states; None: `out` is a table."""
    row_term: Tensor | None
    """The normaliser of each row (Z,), or with `per_block` log p(m' | z) (Z, M); None of a table."""
    per_block: bool = False
    """Rows are normalised within each target block."""
    block_weight: Float[Tensor, "M H"] | None = None
    """In place of a row's term per block, p(m' | z) is the softmax over blocks of out_z . block_weight_m' + block_bias_m'."""
    block_bias: Float[Tensor, " M"] | None = None
    """The biases of that softmax."""

    @property
    def is_table(self) -> bool:
        """Whether `out` is the transition stored whole."""
        return self.into is None

    @property
    def shape(self) -> tuple[int, int]:
        """Number of source states and of target states."""
        return self.out.shape[0], self.out.shape[1] if self.into is None else self.into.shape[0]

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
            >>> from vlhmm.tables import TableTransition, dense_support
            >>> support, group = dense_support(num_words=3, num_states=2), torch.tensor([0])
            >>> table = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> table.operands().log_tiles(support, group, support, group).exp()
            tensor([[[0.7000, 0.3000],
                     [0.4000, 0.6000]]])
        """
        groups = (source, source_groups, target, target_groups)
        if self.into is None:
            return table_tiles(self.out, *groups)
        if self.block_weight is not None and self.block_bias is not None:
            log_block = (self.out @ self.block_weight.T + self.block_bias).log_softmax(dim=1)
            return block_factored_tiles(log_block, self.out, self.into, *groups)
        assert self.row_term is not None, "of a product of features"
        if self.per_block:
            return block_factored_tiles(self.row_term, self.out, self.into, *groups)
        return softmax_tiles(self.out, self.into, self.row_term, *groups)
