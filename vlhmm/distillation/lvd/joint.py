"""log p(x, z) of texts and states as people give them."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.inference.joint import path_log_probs
from vlhmm.tables import Tables
from vlhmm.validate import as_batch, as_integers


def joint_log_prob(tables: Tables, tokens: Any, states: Any, lengths: Any = None) -> Float[Tensor, " B"]:
    """log p(x, z) = log start[z_1] + sum of log A[z_t-1, z_t] + sum of log p(x_t | z_t), up to each length.

    After the reset token a state comes from the start distribution. -inf, with gradient 0, where the path is impossible:
    a state that cannot emit its word is. States past a length are never read.
    """
    batch = as_batch(tokens, lengths, tables)
    path = as_integers(states, "states", tables.device)
    if path.shape != batch.tokens.shape:
        raise ValueError(
            f"states has shape {tuple(path.shape)}, but one state a token is needed: {tuple(batch.tokens.shape)}"
        )
    path = torch.where(batch.within(), path, 0)
    lowest, highest = torch.stack(path.aminmax()).tolist()
    if not 0 <= lowest <= highest < tables.num_states:
        raise ValueError(
            f"states go from {lowest} to {highest}, but they must be between 0 and {tables.num_states - 1}: use states of this HMM"
        )
    return path_log_probs(tables, batch, path).sum(dim=1)
