"""A text cut into parts that are read side by side, each with some of the text around it that is not counted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vlhmm.data import Tokens
from vlhmm.inference.gather import Batch
from vlhmm.tables import Tables


@dataclass(frozen=True)
class Parts:
    batch: Batch
    position: Int[Tensor, "S T"]
    """Of each token in the text."""
    counted: Bool[Tensor, "S T"]
    """Every token of the text is counted in one part."""


def parts_of(tables: Tables, tokens: Tokens, streams: int, *, before: int, after: int) -> Parts:
    """`streams` parts, each with `before` and `after` tokens around it where the text has them."""
    num_tokens = len(tokens)
    size = -(-num_tokens // streams)
    begin = torch.arange(0, num_tokens, size)
    end = (begin + size).clamp(max=num_tokens)
    first, last = (begin - before).clamp(min=0), (end + after).clamp(max=num_tokens)
    lengths = last - first
    position = first[:, None] + torch.arange(int(lengths.max()))
    within = position < last[:, None]
    ids = tokens.ids[position.clamp(max=num_tokens - 1).numpy()].astype(np.int64)
    # As a batch has it: ids past a length are 0.
    read = torch.where(within, torch.from_numpy(ids), 0).to(tables.device)
    counted = (position >= begin[:, None]) & (position < end[:, None])
    return Parts(Batch(read, lengths.to(tables.device)), position.to(tables.device), counted.to(tables.device))
