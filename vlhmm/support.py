"""Which states can emit which word: dense, blocked, cloned and uniform supports in one record.

Letters for axes: B batch, T time, Z states, X words, G groups of states, K states of a word, U distinct tiles, H width.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.records import shown


@dataclass(frozen=True)
class Support:
    """Which states can emit which word: word x only the K states `states_of_group[group_of_word[x]]`.

    Words are in G groups, and each group has K states. `dense_support`, `blocked_support`, `cloned_support` and `uniform_support`
    of `vlhmm.tables` make the usual ones.

    Example:
        >>> from vlhmm.tables import blocked_support
        >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=4)
        >>> support.num_states, support.num_groups, support.states_per_word
        (8, 2, 4)
        >>> support.states_of_group
        tensor([[0, 1, 2, 3],
                [4, 5, 6, 7]])
    """

    group_of_word: Int[Tensor, " X"]
    """The group of each word."""
    states_of_group: Int[Tensor, "G K"]
    """The states of each group."""
    num_states: int
    """Number of states, Z."""
    partition: bool
    """Every state is in exactly one group, and group g has the states g K, ..., g K + K - 1."""

    __repr__ = shown

    @property
    def num_words(self) -> int:
        """Size of the vocabulary, X."""
        return self.group_of_word.shape[0]

    @property
    def num_groups(self) -> int:
        """Number of groups, G."""
        return self.states_of_group.shape[0]

    @property
    def states_per_word(self) -> int:
        """Number of states that can emit a word, K."""
        return self.states_of_group.shape[1]

    @property
    def dense(self) -> bool:
        """Whether there is one group of all states, so that every state can emit every word."""
        return self.partition and self.num_groups == 1

    def states_of(self, words: Int[Tensor, ...]) -> Int[Tensor, "... K"]:
        """Return the states that can emit each word.

        Args:
            words: Token ids of any shape.

        Returns:
            State numbers, of the shape of `words` with an axis K at the end.

        Example:
            >>> from vlhmm.tables import blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=4)
            >>> support.states_of(torch.tensor([2, 0]))
            tensor([[4, 5, 6, 7],
                    [0, 1, 2, 3]])
        """
        if self.num_groups == 1:
            return self.states_of_group[0].expand(*words.shape, -1)
        return self.states_of_group[self.group_of_word[words]]

    def blocks(self, per_state: Tensor) -> Tensor:
        """View a tensor over states as one over groups and their states; the support must be a partition.

        Args:
            per_state: Tensor (Z, ...).

        Returns:
            The view (G, K, ...).

        Example:
            >>> from vlhmm.tables import blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=2)
            >>> support.blocks(torch.tensor([0.1, 0.2, 0.3, 0.4]))
            tensor([[0.1000, 0.2000],
                    [0.3000, 0.4000]])
        """
        return per_state.view(self.num_groups, -1, *per_state.shape[1:])

    def rows(self, per_state: Tensor, groups: Int[Tensor, " U"]) -> Tensor:
        """Select per_state[states of each group].

        Args:
            per_state: Tensor (Z, ...).
            groups: Group numbers (U,).

        Returns:
            Tensor (U, K, ...).

        Example:
            >>> from vlhmm.tables import blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=2)
            >>> support.rows(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1]))
            tensor([[0.3000, 0.4000]])
        """
        if self.partition:
            # Whole blocks: one long copy a group, and a gradient that adds whole blocks.
            blocks = self.blocks(per_state)
            whole = self.num_groups == 1 and groups.shape[0] == 1
            # Unlike indexing, `index_select` has a gradient that sorts nothing.
            return blocks if whole else blocks.index_select(0, groups)
        states = self.states_of_group[groups]
        return per_state.index_select(0, states.flatten()).view(*states.shape, *per_state.shape[1:])


def dense_support(num_words: int, num_states: int) -> Support:
    """Every state emits every word."""
    return blocked_support(torch.zeros(num_words, dtype=torch.int64), 1, num_states)


def blocked_support(block_of_word: Int[Tensor, " X"], num_blocks: int, states_per_block: int) -> Support:
    """Words and states are partitioned into blocks; a word is emitted by the states of its block."""
    num_states = num_blocks * states_per_block
    states = torch.arange(num_states, device=block_of_word.device).view(num_blocks, states_per_block)
    return Support(block_of_word, states, num_states, partition=True)


def cloned_support(num_words: int, clones: int) -> Support:
    """Every word has states of its own: a cloned HMM."""
    return blocked_support(torch.arange(num_words), num_words, clones)


def uniform_support(num_words: int, num_states: int, states_per_word: int, generator: torch.Generator) -> Support:
    """Each word draws its states independently, without replacement: no partition."""
    if not 1 <= states_per_word <= num_states:
        raise ValueError(
            f"states_per_word is {states_per_word}, but each word needs between 1 and num_states = {num_states} states"
        )
    # Sorted random keys give distinct states; a few words at a time bound the memory by 64 MiB.
    words_at_once = max(1, (1 << 23) // num_states)
    states = torch.cat(
        [
            torch.rand(min(words_at_once, num_words - first), num_states, generator=generator)
            .topk(states_per_word)
            .indices
            for first in range(0, num_words, words_at_once)
        ]
    )
    return Support(torch.arange(num_words), states.sort(dim=1).values, num_states, partition=False)
