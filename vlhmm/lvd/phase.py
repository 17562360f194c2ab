"""The part of training that climbs log p(x, z), the states z read off a teacher, before p(x) takes over."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.inference.gather import Batch
from vlhmm.lvd.assign import StateLabeller
from vlhmm.lvd.joint import path_log_prob
from vlhmm.models import Model
from vlhmm.step import Step
from vlhmm.train_settings import TrainSettings


@dataclass(frozen=True)
class Paths:
    tokens: Int[Tensor, "B T"]
    states: Int[Tensor, "B T"]
    first_given: bool
    """The first column was the last one of the window before, and counts no more."""


class PathReader:
    """Labels windows; one that goes on from another begins with that one's last token and state."""

    def __init__(self, label: StateLabeller) -> None:
        self.label = label
        self.last: Int[Tensor, "B 2"] | None = None
        """Token and state."""

    def __call__(self, tokens: Int[Tensor, "B T"], fresh: bool) -> Paths:
        states = self.label(tokens).to(tokens.device)
        before, self.last = self.last, torch.stack([tokens[:, -1], states[:, -1]], dim=1)
        if fresh or before is None:
            return Paths(tokens, states, first_given=False)
        return Paths(
            torch.cat([before[:, :1], tokens], dim=1), torch.cat([before[:, 1:], states], dim=1), first_given=True
        )


class JointStep(Step):
    """A step up the gradient of log p(x, z) in place of log p(x): the same optimizer, rate, clipping and average.

    All states take part, whatever the dropout: a token's state must not be missing. Its state is what `Step` restores.
    """

    def __init__(self, model: Model, settings: TrainSettings, label: StateLabeller) -> None:
        super().__init__(model, replace(settings, graphs=False))
        self.label, self.read = label, PathReader(label)

    def make_gradients(self, fresh: bool) -> None:
        """The gradient of minus log p(window, its states) per token, into the parameters' `grad`."""
        paths = self.read(self._tokens, fresh)
        batch = Batch(paths.tokens, self._lengths + paths.first_given)
        log_prob = path_log_prob(self.model.tables(), batch, paths.states, first_given=paths.first_given)
        loss = -log_prob.sum() / self._tokens.numel()
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        for parameter in self.parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self.loss.copy_(loss.detach())
        self.leave_belief(self._tokens[:, -1])

    def leave_belief(self, last: Int[Tensor, " B"]) -> None:
        """What p(x) goes on from: the last token, and nothing known of its state, which dropout may have left out."""
        self._belief.token.copy_(last)
        self._belief.log_probs.fill_(-math.log(self._belief.log_probs.shape[1]))

    def state(self) -> dict[str, Tensor]:
        tensors = super().state()
        return tensors if self.read.last is None else {**tensors, "joint.last": self.read.last}

    def restore(self, tensors: dict[str, Tensor], count: int, dropout: float) -> None:
        super().restore(tensors, count, dropout)
        if "joint.last" in tensors:
            self.read.last = tensors["joint.last"].to(self._tokens.device)
