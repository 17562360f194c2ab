"""The groups of a window's positions: the specification."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class WindowGroups:
    target: Int[Tensor, "B T"]
    """The group of each token."""
    source: Int[Tensor, "B T"]
    """The group of the token before."""
    init_of: Int[Tensor, "B T"]
    """The group of the token where states begin anew, else -1."""


def window_groups(
    tokens: Int[Tensor, "B T"],
    group_of_word: Int[Tensor, " X"],
    reset_token: int | None,
    past: Int[Tensor, " B"] | None,
    first_entered: int | None,
) -> WindowGroups:
    target = group_of_word[tokens]
    if first_entered is not None:
        first = torch.arange(first_entered, first_entered + tokens.shape[0], device=tokens.device)
    elif past is not None:
        first = group_of_word[past]
    else:
        first = torch.zeros_like(target[:, 0])
    source = torch.cat([first[:, None], target[:, :-1]], dim=1)
    return WindowGroups(target, source, beginnings(target, tokens, reset_token, past))


def beginnings(
    target: Int[Tensor, "B T"], tokens: Int[Tensor, "B T"], reset_token: int | None, past: Int[Tensor, " B"] | None
) -> Int[Tensor, "B T"]:
    """`WindowGroups.init_of`."""
    if reset_token is None:
        init_of = torch.full_like(target, -1)
    else:
        before = tokens[:, 0] if past is None else past
        previous = torch.cat([before[:, None], tokens[:, :-1]], dim=1)
        init_of = target.masked_fill(previous != reset_token, -1)
    if past is None:
        init_of[:, 0] = target[:, 0]
    return init_of
