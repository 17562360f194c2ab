"""The forward recursion in log space: the specification, and the fallback where scaled probabilities underflow."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.ops.recursion.factors import Factors


def safe_logsumexp(logits: Float[Tensor, ...], dim: int) -> Float[Tensor, ...]:
    """logsumexp whose gradient is 0, not NaN, where every entry is -inf."""
    peak = logits.detach().amax(dim, keepdim=True)
    peak = torch.where(peak.isinf(), 0.0, peak)
    total = (logits - peak).exp().sum(dim)
    possible = total > 0
    return torch.where(possible, torch.where(possible, total, 1.0).log() + peak.squeeze(dim), -torch.inf)


def recursion(factors: Factors) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T K"], Float[Tensor, "B K"]]:
    """log p(x_t | x_<t), 0 past the length; log p(z_t | x_<=t), -inf past the length; the same at the last position."""
    log_message = factors.log_previous
    alive = factors.begins_alive()
    token_log_probs, log_filtered = [], []
    for t in range(factors.num_positions):
        log_tile = factors.log_tiles[factors.tile_of[:, t]]
        init_of = factors.init_of[:, t]
        log_moved = safe_logsumexp(log_message[:, :, None] + log_tile, dim=1)
        log_begun = factors.log_inits[init_of.clamp(min=0)]
        log_joint = torch.where(init_of[:, None] >= 0, log_begun, log_moved) + factors.log_emission[:, t]
        # A sequence of probability zero stays impossible, also after a restart from an initial row.
        log_joint = torch.where(alive[:, None], log_joint, -torch.inf)
        token_log_prob = safe_logsumexp(log_joint, dim=1)
        within = t < factors.lengths
        possible = token_log_prob > -torch.inf
        log_next = torch.where(
            possible[:, None], log_joint - torch.where(possible, token_log_prob, 0.0)[:, None], -torch.inf
        )
        log_message = torch.where(within[:, None], log_next, log_message)
        alive = alive & (possible | ~within)
        token_log_probs.append(torch.where(within, token_log_prob, 0.0))
        log_filtered.append(torch.where(within[:, None], log_next, -torch.inf))
    return torch.stack(token_log_probs, dim=1), torch.stack(log_filtered, dim=1), log_message
