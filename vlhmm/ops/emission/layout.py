"""Words in an order in which all groups of one size make one batched product, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


@dataclass(frozen=True)
class WordLayout:
    """The words of each group, groups of equal size side by side.

    A vocabulary of X words has at most sqrt(2 X) different group sizes; a cloned or a dense HMM has one.
    """

    words: Int[Tensor, " X"]
    """Every word once: by size of its group, then by group."""
    groups: Int[Tensor, " G"]
    """The groups that have words, in the order of `words`."""
    shapes: tuple[tuple[int, int], ...]
    """(number of groups, words in each), in the order of `words`."""

    def buckets_of_words(self, per_word: Float[Tensor, "X W"]) -> Iterator[Float[Tensor, "n w W"]]:
        """For each size w the n groups of that size, as views of a tensor in the order of `words`."""
        first = 0
        for groups, size in self.shapes:
            yield per_word[first : first + groups * size].view(groups, size, per_word.shape[1])
            first += groups * size

    def buckets_of_groups(self, per_group: Float[Tensor, "G K W"]) -> Iterator[Float[Tensor, "n K W"]]:
        """The same groups as views of a tensor in the order of `groups`."""
        first = 0
        for groups, _ in self.shapes:
            yield per_group[first : first + groups]
            first += groups


def word_layout(group_of_word: Int[Tensor, " X"], num_groups: int) -> WordLayout:
    sizes = torch.bincount(group_of_word, minlength=num_groups)
    groups = sizes.argsort(stable=True)
    groups = groups[sizes[groups] > 0]
    # Both sorts are stable, so that words of one group stay in the order of their ids.
    by_group = group_of_word.argsort(stable=True)
    words = by_group[sizes[group_of_word[by_group]].argsort(stable=True)]
    distinct, counts = sizes[groups].unique_consecutive(return_counts=True)
    return WordLayout(words, groups, tuple(zip(counts.tolist(), distinct.tolist(), strict=True)))
