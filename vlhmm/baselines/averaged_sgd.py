"""NT-ASGD (Merity et al., 2017): plain gradient descent, and an average of the weights once validation no longer falls."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.baselines.awd_lstm import AWDLSTM
from vlhmm.baselines.layers import State
from vlhmm.capture import Graphed
from vlhmm.precision import float32_products
from vlhmm.training.saved_state import part_of
from vlhmm.training.step import pinned, reduce_gradients


class AveragedSGDStep:
    """The model with everything that changes at every step; on a GPU a CUDA graph for every length of a window."""

    def __init__(self, model: AWDLSTM, seed: int) -> None:
        self.model, self.settings = model, model.settings
        settings = model.settings
        self.parameters = list(model.parameters())
        self.device = self.parameters[0].device
        self.optimizer = torch.optim.SGD(self.parameters, lr=settings.learning_rate, weight_decay=settings.weight_decay)
        self.noise = torch.Generator(self.device).manual_seed(seed)
        self.loss = torch.zeros((), device=self.device)
        """Of the last step, in nats per token, without the penalties."""
        self._start = model.start_state(settings.batch_size)
        self._state = tuple(value.clone() for value in self._start)
        self._tokens: dict[int, Int[Tensor, "B T"]] = {}
        """Of windows of each length that was met."""
        self._graphed = Graphed[None](
            self.device,
            enabled=settings.graphs,
            # What a length needs first, kernels and plans, is loaded outside of any graph.
            eager_calls=1,
            generator=self.noise,
            launching=partial(float32_products, "tf32", self.device),
        )
        self.valid_losses: list[float] = []
        self.averages: list[Tensor] | None = None
        """Of all weights since averaging began."""
        self.num_averaged = 0

    def __call__(self, tokens: Int[Tensor, "B T"], fresh: bool) -> None:
        """One step on a window; `fresh`: nothing comes before it."""
        if fresh:
            self._carry(self._start)
        length = tokens.shape[1]
        if length not in self._tokens:
            self._tokens[length] = torch.empty(tokens.shape, dtype=torch.int64, device=self.device)
        window = self._tokens[length]
        window.copy_(pinned(tokens, self.device), non_blocking=True)
        self._graphed(lambda: self._step(window), length)
        self._average()

    def _step(self, tokens: Int[Tensor, "B T"]) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        with self.model.dropped_weights(self.noise):
            scored = self.model(tokens, self._state, self.noise)
            loss = -scored.token_log_probs.mean()
            (loss + scored.penalty).backward()
        reduce_gradients(self.parameters)
        torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip or math.inf)
        # A window's loss is a mean: without this, words of short windows would count for more.
        rate = self.settings.learning_rate * tokens.shape[1] / self.settings.window
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        self.loss.copy_(loss.detach())
        self._carry(scored.state)

    @torch.no_grad()
    def _carry(self, state: State) -> None:
        for buffer, value in zip(self._state, state, strict=True):
            buffer.copy_(value)

    @torch.no_grad()
    def _average(self) -> None:
        if self.averages is None:
            return
        self.num_averaged += 1
        for average, parameter in zip(self.averages, self.parameters, strict=True):
            average.lerp_(parameter, 1 / self.num_averaged)

    def exhausted(self) -> bool:
        """The rate never falls: only the plan or the clock ends training."""
        return False

    def after_check(self, loss: float) -> None:
        """Begins to average if validation has not improved for long, or by the plan."""
        settings, losses = self.settings, self.valid_losses
        stuck = len(losses) > settings.patience and loss > min(losses[: -settings.patience])
        losses.append(loss)
        due = 0 < settings.average_after <= len(losses)
        if self.averages is None and (stuck or due):
            self.averages = [parameter.detach().clone() for parameter in self.parameters]

    @contextmanager
    def scored_weights(self) -> Iterator[None]:
        """Within, the model has the weights to be evaluated: the averages, if there are any."""
        if not self.num_averaged or self.averages is None:
            yield
            return
        own = [parameter.detach().clone() for parameter in self.parameters]
        self._set(self.averages)
        try:
            yield
        finally:
            self._set(own)

    @torch.no_grad()
    def _set(self, values: list[Tensor]) -> None:
        for parameter, value in zip(self.parameters, values, strict=True):
            parameter.copy_(value)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it, as named tensors and plain values."""
        tensors = {"noise": self.noise.get_state()}
        tensors |= {f"carried.{index}": value for index, value in enumerate(self._state)}
        tensors |= {f"model.{name}": value for name, value in self.model.state_dict().items()}
        tensors |= {f"average.{index}": value for index, value in enumerate(self.averages or [])}
        return tensors, {"valid_losses": self.valid_losses, "num_averaged": self.num_averaged}

    def restore(self, tensors: Mapping[str, Tensor], values: dict[str, Any]) -> None:
        self.noise.set_state(tensors["noise"])
        self._carry(tuple(tensors[f"carried.{index}"] for index in range(len(self._state))))
        self.model.load_state_dict(part_of(tensors, "model."))
        averages = part_of(tensors, "average.")
        self.averages = [averages[str(index)].to(self.device) for index in range(len(averages))] or None
        self.valid_losses, self.num_averaged = list(values["valid_losses"]), values["num_averaged"]
