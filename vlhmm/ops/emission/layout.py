"""Words in an order in which all groups of one size make one batched product, without padding; and cut into tiles."""

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
    tiles: Int[Tensor, "N 5"]
    """Stretches of `words` within a group, for the GPU: group, first position, words, and the group's first tile and their
    end."""
    spans: Int[Tensor, "M 3"]
    """Every group, the largest first, those without words too: group, first position, words."""
    tile_words: int
    """The most words of a tile."""

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


def word_layout(group_of_word: Int[Tensor, " X"], num_groups: int, tile_words: int | None = None) -> WordLayout:
    sizes = torch.bincount(group_of_word, minlength=num_groups)
    groups = sizes.argsort(stable=True)
    groups = groups[sizes[groups] > 0]
    # Both sorts are stable, so that words of one group stay in the order of their ids.
    by_group = group_of_word.argsort(stable=True)
    words = by_group[sizes[group_of_word[by_group]].argsort(stable=True)]
    distinct, counts = sizes[groups].unique_consecutive(return_counts=True)
    shapes = tuple(zip(counts.tolist(), distinct.tolist(), strict=True))
    if tile_words is None:
        # A tile takes the same rows for one word as for many: small groups get small tiles.
        tile_words = 64 if words.shape[0] >= 32 * groups.shape[0] else 16
    return WordLayout(
        words, groups, shapes, _tiles(groups, sizes[groups], tile_words), _spans(groups, sizes), tile_words
    )


def _tiles(groups: Int[Tensor, " G"], sizes: Int[Tensor, " G"], tile_words: int) -> Int[Tensor, "N 5"]:
    tiles_of_group = (sizes + tile_words - 1) // tile_words
    end_tile = tiles_of_group.cumsum(0)
    first_tile = end_tile - tiles_of_group
    entry = torch.arange(groups.shape[0], device=groups.device).repeat_interleave(tiles_of_group)
    # The words of the group in its earlier tiles.
    before = (torch.arange(entry.shape[0], device=groups.device) - first_tile[entry]) * tile_words
    first_position = (sizes.cumsum(0) - sizes)[entry] + before
    count = (sizes[entry] - before).clamp(max=tile_words)
    return torch.stack([groups[entry], first_position, count, first_tile[entry], end_tile[entry]], dim=1).int()


def _spans(groups: Int[Tensor, " G"], sizes: Int[Tensor, " M"]) -> Int[Tensor, "M 3"]:
    first_position = torch.zeros_like(sizes)
    first_position[groups] = sizes[groups].cumsum(0) - sizes[groups]
    largest_first = sizes.argsort(descending=True, stable=True)
    return torch.stack([largest_first, first_position[largest_first], sizes[largest_first]], dim=1).int()
