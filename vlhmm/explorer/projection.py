"""Points of many dimensions in the plane: near ones stay near. No random numbers but those of the generator given."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

COMPONENTS = 50
"""Distances are taken along so many principal axes."""
NEIGHBOURS = 15
STRANGERS = 10
"""Other points, drawn anew in each step, that a point moves away from."""
REPULSION = 4.0
STEPS = 300
RATE = 0.1
MAX_FORCE, MAX_MOVE = 4.0, 2.0


def principal_components(points: Float[Tensor, "S D"], count: int) -> Float[Tensor, "S C"]:
    """Coordinates along the axes of largest variance, the largest first, in float64.

    The largest coordinate of an axis, by absolute value, is positive, so that no picture is the mirror image of another.
    """
    centred = (points - points.mean(0)).double()
    _, axes = torch.linalg.eigh(centred.T @ centred)
    along = centred @ axes.flip(1)[:, :count]
    largest = along.gather(0, along.abs().argmax(0, keepdim=True))
    signed: Float[Tensor, "S C"] = along * torch.where(largest < 0, -1.0, 1.0)
    return signed


def neighbour_map(points: Float[Tensor, "S D"], generator: torch.Generator) -> Float[Tensor, "S 2"]:
    """Places in [-1, 1]^2: each point is drawn to its nearest neighbours and pushed away from others.

    The weights of neighbours fall off exponentially with the distance beyond the nearest one, as in UMAP, and forces are those of
    a Student t kernel, as in t-SNE; it begins from the first two principal components. On the CPU.
    """
    axes = principal_components(points.cpu(), COMPONENTS)
    size = len(axes)
    place = torch.zeros(size, 2, dtype=torch.float64)
    place[:, : axes.shape[1]] = axes[:, :2]
    # Equal points would never part.
    place = 10 * _fitted(place) + 1e-3 * torch.randn(size, 2, dtype=torch.float64, generator=generator)
    if size > 2:
        source, target, weight = _neighbours(axes)
        for step in range(STEPS):
            between = place[target] - place[source]
            pull = (2 * weight / (1 + between.square().sum(1)))[:, None] * between
            pull = pull.clamp(-MAX_FORCE, MAX_FORCE)
            force = torch.zeros_like(place).index_add_(0, source, pull).index_add_(0, target, -pull)
            strangers = torch.randint(size, (size, STRANGERS), generator=generator)
            away = place[:, None] - place[strangers]
            squared = away.square().sum(2)
            push = (2 / ((0.01 + squared) * (1 + squared)))[:, :, None] * away
            force += REPULSION * push.clamp(-MAX_FORCE, MAX_FORCE).sum(1)
            place += (1 - step / STEPS) * (RATE * force).clamp(-MAX_MOVE, MAX_MOVE)
    # Both axes fill the picture.
    return torch.stack([_fitted(axis[:, None])[:, 0] for axis in place.T], dim=1).float()


def _neighbours(axes: Float[Tensor, "S C"]) -> tuple[Tensor, Tensor, Tensor]:
    """Source, target and weight of each edge from a point to one of its nearest."""
    distance = torch.cdist(axes.float(), axes.float())
    distance.fill_diagonal_(torch.inf)
    count = min(NEIGHBOURS, len(axes) - 1)
    nearest = distance.topk(count, largest=False)
    beyond = (nearest.values - nearest.values[:, :1]).double()
    weight = torch.exp(-beyond / beyond.mean(1, keepdim=True).clamp_min(1e-9))
    source = torch.arange(len(axes)).repeat_interleave(count)
    return source, nearest.indices.flatten(), weight.flatten()


def _fitted(place: Float[Tensor, "S C"]) -> Float[Tensor, "S C"]:
    """Moved and scaled into [-1, 1], all axes by the same factor."""
    middle = (place.amax(0) + place.amin(0)) / 2
    reach = (place - middle).abs().max().clamp_min(1e-12)
    return (place - middle) / reach
