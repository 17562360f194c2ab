"""Words in an order in which all groups of one size make one batched product, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
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

    def buckets(self) -> Iterator[tuple[Int[Tensor, " n"], Int[Tensor, "n w"]]]:
        """For each size w: the n groups of that size, and their words."""
        first_group = first_word = 0
        for groups, size in self.shapes:
            words = self.words[first_word : first_word + groups * size]
            yield self.groups[first_group : first_group + groups], words.view(groups, size)
            first_group, first_word = first_group + groups, first_word + groups * size


def word_layout(group_of_word: Int[Tensor, " X"], num_groups: int) -> WordLayout:
    sizes = torch.bincount(group_of_word, minlength=num_groups)
    groups = sizes.argsort(stable=True)
    groups = groups[sizes[groups] > 0]
    # Both sorts are stable, so that words of one group stay in the order of their ids.
    by_group = group_of_word.argsort(stable=True)
    words = by_group[sizes[group_of_word[by_group]].argsort(stable=True)]
    distinct, counts = sizes[groups].unique_consecutive(return_counts=True)
    return WordLayout(words, groups, tuple(zip(counts.tolist(), distinct.tolist(), strict=True)))
