"""A reading in a few numbers: how many states carry it, and where its surprise lies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from vlhmm.support import Support

SHARES = (0.5, 0.9, 0.99)
LINE_POSITIONS = (1, 2, 3, 5, 9, 17, 33)
"""The first of each range of places in a line."""
FREQUENCIES = (0, 1, 10, 100, 1000, 10000)
"""The first of each range of counts in the training text."""


@dataclass(frozen=True)
class Usage:
    """How a text's tokens are spread over states."""

    num_states: int
    num_tokens: float
    states_for: dict[float, int]
    """The fewest states that emit this share of the tokens."""
    effective: float
    """exp of the entropy of the occupancy: so many states, equally used, would be as open."""
    at_least_one_token: int
    """States that emit one token or more, in expectation."""


def usage(occupancy: Float[Tensor, " Z"]) -> Usage:
    total = float(occupancy.sum())
    if total <= 0:
        return Usage(len(occupancy), 0.0, dict.fromkeys(SHARES, 0), 0.0, 0)
    shares = occupancy / total
    reached = shares.sort(descending=True).values.cumsum(0)
    # Rounding may leave the sum a little short of a share of all.
    needed = torch.tensor(SHARES, dtype=reached.dtype, device=reached.device).clamp(max=float(reached[-1]))
    counts = torch.searchsorted(reached, needed) + 1
    return Usage(
        num_states=len(occupancy),
        num_tokens=total,
        states_for=dict(zip(SHARES, counts.tolist(), strict=True)),
        effective=math.exp(float(torch.special.entr(shares).sum())),
        # A state of a single certain token has 1 up to rounding.
        at_least_one_token=int((occupancy >= 1 - 1e-4).sum()),
    )


@dataclass(frozen=True)
class BlockUsage:
    block: int
    num_words: int
    usage: Usage


def usage_by_block(occupancy: Float[Tensor, " Z"], support: Support) -> list[BlockUsage]:
    """Blocks with most tokens first; none where states are not in blocks."""
    if not support.partition:
        return []
    num_words = torch.bincount(support.group_of_word, minlength=support.num_groups).tolist()
    per_block = occupancy.cpu().view(support.num_groups, -1)
    found = [BlockUsage(block, num_words[block], usage(row)) for block, row in enumerate(per_block)]
    return sorted(found, key=lambda one: -one.usage.num_tokens)


@dataclass(frozen=True)
class Range:
    """The tokens whose place or frequency is in a range."""

    first: int
    last: int | None
    """None: no end."""
    num_tokens: int
    perplexity: float
    share_of_nats: float
    """Of the whole text's surprise."""

    @property
    def label(self) -> str:
        if self.last is None:
            return f"{self.first:,} and more"
        return f"{self.first:,}" if self.first == self.last else f"{self.first:,} to {self.last:,}"


def by_range(values: NDArray[Any], log_probs: Float[Tensor, " N"], firsts: Sequence[int]) -> list[Range]:
    """Perplexity of the tokens by their value, in ranges that begin at `firsts`; empty ones are left out."""
    nats = -log_probs.double().cpu().numpy()
    number = np.searchsorted(np.asarray(firsts), values, side="right") - 1
    ranges = []
    for index, first in enumerate(firsts):
        inside = number == index
        count = int(inside.sum())
        if count:
            last = firsts[index + 1] - 1 if index + 1 < len(firsts) else None
            part = float(nats[inside].sum())
            ranges.append(Range(first, last, count, math.exp(min(700.0, part / count)), part / float(nats.sum())))
    return ranges


def line_positions(ids: NDArray[Any], eos_id: int) -> NDArray[Any]:
    """Each token's place in its line, from 1 on; EOS ends a line."""
    index = np.arange(len(ids))
    after_eos = np.concatenate([[True], ids[:-1] == eos_id])
    begin = np.maximum.accumulate(np.where(after_eos, index, 0))
    places: NDArray[Any] = index - begin + 1
    return places
