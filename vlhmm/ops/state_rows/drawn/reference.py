"""The states of the largest keys: the specification."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def drawn_states(keys: Float[Tensor, "M K"], count: int) -> Int[Tensor, "M count"]:
    within_block = keys.topk(count, dim=1).indices.sort(dim=1).values
    first_of_block = torch.arange(keys.shape[0], device=keys.device)[:, None] * keys.shape[1]
    return within_block + first_of_block
