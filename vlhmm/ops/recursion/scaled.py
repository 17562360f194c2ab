"""The recursion on normalised probabilities: one matrix product a position, forward and backward.

The gradient is written by hand. With alpha_t the filtered probabilities, u_t = (alpha_t-1 A) e_t the joint before it is
normalised, c_t its sum, g_t = dL / dlog c_t, and Q_t = dL / dlog u_t (for L = log p(x) the posterior of z_t):

    r_t   = (Q_t / alpha_t) e_t / c_t                      dL / dlog A[z, z'] = alpha_t-1(z) A[z, z'] r_t(z')
    F_t-1 = alpha_t-1 (A r_t)                              dL / dlog e_t      = Q_t
    Q_t-1 = F_t-1 + alpha_t-1 (g_t-1 - sum of F_t-1)

Q and F are bounded, so nothing overflows however long the text, and only alpha and c are kept for the way back.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.ops.recursion.factors import Factors


@dataclass(frozen=True)
class Scaled:
    """The factors as probabilities, each shifted in log space so that its largest entry is 1."""

    inits: Float[Tensor, "I K"]
    tiles: Float[Tensor, "U K K"]
    emission: Float[Tensor, "B T K"]
    log_shift: Float[Tensor, "B T"]
    """What the shifts took from log c_t."""


@dataclass(frozen=True)
class Run:
    """What the forward pass leaves behind."""

    token_log_probs: Float[Tensor, "B T"]
    alpha: Float[Tensor, "B T K"]
    """p(z_t | x_<=t); past the length that of the last position."""
    scale: Float[Tensor, "B T"]
    """c_t of the scaled factors; 1 past the length."""
    suspect: Bool[Tensor, " B"]
    """A probability that matters may have been too small for its type."""


def scale(factors: Factors) -> Scaled:
    def shifted_exp(log_values: Tensor, dims: list[int]) -> tuple[Tensor, Tensor]:
        peak = log_values.amax(dims, keepdim=True)
        peak = torch.where(peak.isinf(), 0.0, peak)
        return (log_values - peak).exp_(), peak.squeeze(dims)

    inits, init_peak = shifted_exp(factors.log_inits, [1])
    tiles, tile_peak = shifted_exp(factors.log_tiles, [1, 2])
    emission, emission_peak = shifted_exp(factors.log_emission, [2])
    transition_peak = tile_peak[factors.tile_of]
    if factors.log_inits.shape[0]:
        begin_peak = init_peak[factors.init_of.clamp(min=0)]
        transition_peak = torch.where(factors.init_of >= 0, begin_peak, transition_peak)
    return Scaled(inits, tiles, emission, emission_peak + transition_peak)


class Steps:
    """Which positions need what, decided once: the loop over time then asks the device nothing."""

    def __init__(self, factors: Factors) -> None:
        begun = factors.init_of >= 0
        self.any_begun: list[bool] = begun.any(0).tolist()
        self.all_begun: list[bool] = begun.all(0).tolist()
        first_tile = factors.tile_of[0]
        self.common_tile: list[int] = torch.where((factors.tile_of == first_tile).all(0), first_tile, -1).tolist()
        """The tile that every sequence takes at this position, or -1."""
        self.shortest = int(factors.lengths.min())


def moved(
    messages: Float[Tensor, "B K"],
    tiles: Float[Tensor, "U K J"],
    tile_of: Int[Tensor, " B"],
    common_tile: int,
) -> Float[Tensor, "B J"]:
    """messages @ tile, for each sequence its own tile."""
    if common_tile >= 0:
        return messages @ tiles[common_tile]
    return torch.bmm(messages[:, None], tiles[tile_of])[:, 0]


def forward(factors: Factors, scaled: Scaled) -> Run:
    steps = Steps(factors)
    alpha = torch.empty_like(factors.log_emission)
    totals = torch.empty_like(scaled.log_shift)
    message = factors.log_previous.exp()
    alive = factors.begins_alive()[:, None].to(message.dtype)
    for t in range(factors.num_positions):
        predicted = message
        if not steps.all_begun[t]:
            predicted = moved(message, scaled.tiles, factors.tile_of[:, t], steps.common_tile[t])
        if steps.any_begun[t]:
            init_of = factors.init_of[:, t]
            # What has once become impossible stays so, also when the states begin anew.
            begun = scaled.inits[init_of.clamp(min=0)] * alive
            predicted = torch.where(init_of[:, None] >= 0, begun, predicted)
        joint = predicted * scaled.emission[:, t]
        total = joint.sum(1, keepdim=True)
        following = joint / torch.where(total > 0, total, 1.0)
        if t >= steps.shortest:
            within_length = (t < factors.lengths)[:, None]
            following = torch.where(within_length, following, message)
            total = torch.where(within_length, total, 1.0)
        message = following
        alive = alive * (total > 0)
        alpha[:, t] = message
        totals[:, t] = total[:, 0]
    within = factors.within()
    token_log_probs = torch.where(within, totals.log() + scaled.log_shift, 0.0)
    return Run(token_log_probs, alpha, totals, _suspect(factors, scaled, alpha, totals, within))


def _suspect(
    factors: Factors,
    scaled: Scaled,
    alpha: Float[Tensor, "B T K"],
    totals: Float[Tensor, "B T"],
    within: Bool[Tensor, "B T"],
) -> Bool[Tensor, " B"]:
    """A step's total next to nothing; or a single message so, if the tiles have zeros.

    Without zeros every state reaches every state, and each step brings back more than was lost.
    """
    # A quarter of the exponents is left as a margin above the smallest number.
    tiny = torch.finfo(totals.dtype).tiny ** 0.75
    suspect: Tensor = ((totals < tiny) & within).any(1)
    if bool((scaled.tiles == 0).any()):
        fading = ((alpha > 0) & (alpha < tiny)).any(2) & within
        previous = factors.log_previous.exp()
        vanished = (previous < tiny) & (factors.log_previous > -torch.inf)
        suspect = suspect | fading.any(1) | vanished.any(1)
    return suspect


@dataclass(frozen=True)
class Gradient:
    log_previous: Float[Tensor, "B K"]
    log_inits: Float[Tensor, "I K"]
    log_tiles: Float[Tensor, "U K K"]
    log_emission: Float[Tensor, "B T K"]


def backward(
    factors: Factors,
    scaled: Scaled,
    alpha: Float[Tensor, "B T K"],
    totals: Float[Tensor, "B T"],
    token_cotangent: Float[Tensor, "B T"],
    last_cotangent: Float[Tensor, "B K"],
) -> Gradient:
    """The vector-Jacobian product, for cotangents of the log-probabilities of the tokens and of the last state."""
    steps = Steps(factors)
    posterior = torch.empty_like(alpha)
    ratio = torch.zeros_like(alpha)
    tiles_back = scaled.tiles.mT
    previous = factors.log_previous.exp()
    flow = last_cotangent
    for t in range(factors.num_positions - 1, -1, -1):
        here = alpha[:, t]
        q = flow + here * (token_cotangent[:, t, None] - flow.sum(1, keepdim=True))
        reached = here > 0
        r = torch.where(reached, q / torch.where(reached, here, 1.0), 0.0)
        total = totals[:, t, None]
        r = r * scaled.emission[:, t] / torch.where(total > 0, total, 1.0)
        if steps.any_begun[t]:
            r = torch.where(factors.init_of[:, t, None] >= 0, 0.0, r)
        before = alpha[:, t - 1] if t else previous
        following_flow = torch.zeros_like(flow)
        if not steps.all_begun[t]:
            following_flow = before * moved(r, tiles_back, factors.tile_of[:, t], steps.common_tile[t])
        if t >= steps.shortest:
            within = (t < factors.lengths)[:, None]
            q = torch.where(within, q, 0.0)
            r = torch.where(within, r, 0.0)
            following_flow = torch.where(within, following_flow, flow)
        flow = following_flow
        posterior[:, t] = q
        ratio[:, t] = r
    before = torch.cat([previous[:, None], alpha[:, :-1]], dim=1)
    tile_gradient = _sum_of_outer_products(before, ratio, factors.tile_of, scaled.tiles.shape[0], steps)
    return Gradient(flow, _init_gradient(factors, posterior), tile_gradient.mul_(scaled.tiles), posterior)


def _init_gradient(factors: Factors, posterior: Float[Tensor, "B T K"]) -> Float[Tensor, "I K"]:
    rows = factors.init_of.flatten()
    begun = rows >= 0
    gradient = torch.zeros_like(factors.log_inits)
    return gradient.index_add_(0, rows[begun], posterior.flatten(0, 1)[begun])


def _sum_of_outer_products(
    left: Float[Tensor, "B T K"],
    right: Float[Tensor, "B T K"],
    tile_of: Int[Tensor, "B T"],
    num_tiles: int,
    steps: Steps,
) -> Float[Tensor, "U K K"]:
    """For each tile the sum over its positions of left^T right."""
    states = left.shape[2]
    if num_tiles == 1:
        return (left.reshape(-1, states).T @ right.reshape(-1, states))[None]
    left, right, tile_of = left.reshape(-1, states), right.reshape(-1, states), tile_of.flatten()
    # Tiles that stand at up to 1, 2, 4, ... positions go together, the positions padded to that number: a few batched
    # products, less than twice the work, no sorting of large tensors and no additions that wait for one another.
    order = tile_of.argsort(stable=True)
    counts = torch.bincount(tile_of, minlength=num_tiles)
    first = counts.cumsum(0) - counts
    gradient = left.new_zeros(num_tiles, states, states)
    width, narrower = 1, 0
    while narrower < left.shape[0]:
        tiles = ((counts > narrower) & (counts <= width)).nonzero()[:, 0]
        if tiles.numel():
            rank = torch.arange(width, device=left.device)
            used = rank < counts[tiles, None]
            position = order[torch.where(used, first[tiles, None] + rank, 0)]
            gradient[tiles] = torch.bmm((left[position] * used[:, :, None]).mT, right[position])
        narrower, width = width, 2 * width
    return gradient
