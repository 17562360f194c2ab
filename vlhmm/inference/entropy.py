"""The entropy of the posterior over states given a text, at each position and of the whole path."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.inference.errors import raise_impossible
from vlhmm.inference.gather import Batch, default_window, window_factors, windows
from vlhmm.inference.posterior import posterior
from vlhmm.ops.recursion import Factors, filtered
from vlhmm.pauses import pause
from vlhmm.records import shown
from vlhmm.tables import Belief, Tables

STEP_BYTES = {"cpu": 1 << 22, "cuda": 1 << 28}
"""Pairs of states made at a time, by the kind of device."""


@dataclass(frozen=True)
class PosteriorEntropy:
    """Entropy of p(z | x), at each position and of the whole path.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> entropy = hmm.posterior_entropy([[0, 1, 2]])
        >>> bool(entropy.path[0] <= entropy.position.sum())
        True
    """

    position: Float[Tensor, "*B T"]
    """H(z_t | x) in nats, 0 past the length."""
    path: Float[Tensor, " *B"]
    """H(z_1, ..., z_T | x) in nats: at most the sum over positions."""

    __repr__ = shown


@torch.no_grad()
def posterior_entropy(
    tables: Tables, batch: Batch, belief: Belief | None = None, window: int | None = None
) -> PosteriorEntropy:
    path = path_entropy(tables, batch, belief, window)
    probs = posterior(tables, batch, belief, window).probs
    return PosteriorEntropy(torch.special.entr(probs).sum(2), path)


@torch.no_grad()
def path_entropy(
    tables: Tables, batch: Batch, belief: Belief | None = None, window: int | None = None
) -> Float[Tensor, " B"]:
    """H(z | x) by one pass forward: for each state the entropy of the paths into it.

    h_t(z') = sum over z of w(z) (h_t-1(z) - log w(z)),   w(z) = p(z_t-1 = z | z_t = z', x_<t)
    """
    size = batch.tokens.shape[0]
    window = window or default_window(tables, size)
    into = tables.log_emission.new_zeros(size, tables.support.states_per_word)
    log_last, token = torch.zeros_like(into), batch.tokens[:, 0].clone()
    for first, rows, part in windows(batch, window):
        carried = belief if first == 0 else Belief(token[rows], log_last[rows])
        factors = window_factors(tables, part, carried)
        token_log_probs, log_filtered, after = filtered(factors, "highest")
        raise_impossible(token_log_probs, first, rows, "posterior_entropy")
        into[rows] = _window(factors, log_filtered, log_last[rows], into[rows], skip=1 if first == 0 else 0)
        log_last[rows], token[rows] = after, part.last_tokens()
    return _mixture_entropy(log_last, into)


def _window(
    factors: Factors,
    log_filtered: Float[Tensor, "B T K"],
    log_before: Float[Tensor, "B K"],
    into: Float[Tensor, "B K"],
    skip: int,
) -> Float[Tensor, "B K"]:
    """The entropies of the paths into the last states. The first `skip` positions have no path before them."""
    log_tiles_into = factors.log_tiles.mT
    begun = factors.init_of >= 0
    for t in range(factors.num_positions):
        pause()
        if t >= skip:
            anew = _mixture_entropy(log_before, into)[:, None]
            moved = _moved_entropy(log_before, into, log_tiles_into, factors.tile_of[:, t])
            following = torch.where(begun[:, t, None], anew, moved)
            into = torch.where((t < factors.lengths)[:, None], following, into)
        log_before = torch.where((t < factors.lengths)[:, None], log_filtered[:, t], log_before)
    return into


def _moved_entropy(
    log_before: Float[Tensor, "B K"],
    into: Float[Tensor, "B K"],
    log_tiles_into: Float[Tensor, "U K K"],
    tile_of: Int[Tensor, " B"],
) -> Float[Tensor, "B K"]:
    size, states = into.shape
    targets_at_once = max(1, STEP_BYTES[into.device.type] // (4 * states * into.element_size()))
    rows_at_once = max(1, targets_at_once // states)
    moved = torch.empty_like(into)
    for rows in torch.arange(size, device=into.device).split(rows_at_once):
        for targets in torch.arange(states, device=into.device).split(targets_at_once):
            log_joint = log_tiles_into[tile_of[rows, None], targets[None]] + log_before[rows, None]
            moved[rows[:, None], targets] = _mixture_entropy(log_joint, into[rows, None])
    return moved


def _mixture_entropy(log_weights: Float[Tensor, "... K"], parts: Float[Tensor, "... K"]) -> Float[Tensor, ...]:
    """The entropy of a choice by `log_weights` (normalised here) and of the part chosen; 0 where nothing can be chosen."""
    log_weights = log_weights.log_softmax(-1)
    possible = log_weights > -torch.inf
    return torch.where(possible, log_weights.exp() * (parts - torch.where(possible, log_weights, 0.0)), 0.0).sum(-1)
