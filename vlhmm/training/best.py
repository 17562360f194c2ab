"""The best weights of a training so far."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from vlhmm.training.saved_state import part_of


class Best:
    """The weights of the lowest validation perplexity so far, the first ones until there is any."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self.perplexity = math.inf
        self.is_saved = True
        """Nothing is new since the model folder was written."""
        self.weights = _copied(weights)

    def offer(self, perplexity: float, weights: Mapping[str, Tensor]) -> None:
        """Keeps a copy if they are better."""
        if perplexity < self.perplexity:
            self.perplexity, self.weights, self.is_saved = perplexity, _copied(weights), False

    def keep(self, weights: Mapping[str, Tensor]) -> None:
        """Stores the weights of a run that was stopped before its first check; the first scored weights replace them."""
        self.weights, self.is_saved = _copied(weights), False

    def state(self) -> dict[str, Tensor]:
        return {f"best.{name}": value for name, value in self.weights.items()}

    def restore(self, tensors: Mapping[str, Tensor], perplexity: float, device: torch.device) -> None:
        self.perplexity = perplexity
        self.weights = {name: value.to(device) for name, value in part_of(tensors, "best.").items()}


def _copied(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in weights.items()}
