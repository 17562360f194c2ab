"""How the kernel of the groups is called. Nothing here synchronises host and device, so a CUDA graph can hold it all."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.ops.groups.of_window import kernel
from vlhmm.ops.groups.of_window.reference import WindowGroups
from vlhmm.ops.sizes import cdiv

BLOCK = 128


def look_up(
    tokens: Int[Tensor, "B T"],
    group_of_word: Int[Tensor, " X"],
    reset_token: int | None,
    past: Int[Tensor, " B"] | None,
    first_entered: int | None,
) -> WindowGroups:
    size, length = tokens.shape
    groups = WindowGroups(*(torch.empty_like(tokens) for _ in range(3)))
    kernel.look_up[size, cdiv(length, BLOCK)](
        *(tokens, group_of_word, past, groups.target, groups.source, groups.init_of),
        *(length, group_of_word.shape[0]),
        *(-1 if reset_token is None else reset_token, -1 if first_entered is None else first_entered),
        BLOCK=BLOCK,
        num_warps=2,
    )
    return groups
