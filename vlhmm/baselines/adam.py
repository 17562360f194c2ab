"""One step of AdamW on windows of one shape, with a plateau schedule; on a GPU as one CUDA graph."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.baselines.buys_hmm import BuysHMM
from vlhmm.baselines.feedforward import FeedForward
from vlhmm.baselines.lstm import LSTM
from vlhmm.capture import Graphed
from vlhmm.precision import float32_products
from vlhmm.training.saved_state import part_of, restore_optimizer
from vlhmm.training.schedule import Plateau
from vlhmm.training.step import pinned, reduce_gradients


class AdamStep:
    """The model with everything that changes at every step, in buffers of fixed place, so that a graph can be captured."""

    def __init__(self, model: FeedForward | LSTM | BuysHMM, seed: int) -> None:
        self.model, self.settings = model, model.settings
        settings = model.settings
        self.parameters = list(model.parameters())
        self.device = self.parameters[0].device
        on_gpu = self.device.type == "cuda"
        self.optimizer = torch.optim.AdamW(
            self.parameters,
            # A captured update reads its rate from memory.
            lr=torch.tensor(settings.learning_rate, device=self.device) if on_gpu else settings.learning_rate,
            weight_decay=settings.weight_decay,
            fused=True,
            capturable=on_gpu,
        )
        self.noise = torch.Generator(self.device).manual_seed(seed)
        self.plateau = Plateau(settings.patience, settings.decay)
        self.loss = torch.zeros((), device=self.device)
        """Of the last step, in nats per token."""
        self._tokens = torch.zeros(settings.batch_size, settings.window, dtype=torch.int64, device=self.device)
        self._start = model.start_state(settings.batch_size)
        self._state = tuple(value.clone() for value in self._start)
        self._graphed = Graphed[None](
            self.device,
            enabled=settings.graphs,
            generator=self.noise,
            launching=partial(float32_products, "tf32", self.device),
        )

    @property
    def rate(self) -> float:
        return self.settings.learning_rate * self.plateau.factor

    def exhausted(self) -> bool:
        """The rate is so low that more steps would change nothing."""
        return self.rate < self.settings.min_rate

    def __call__(self, tokens: Int[Tensor, "B T"], fresh: bool) -> None:
        """One step on a window; `fresh`: nothing comes before it."""
        self._tokens.copy_(pinned(tokens, self.device), non_blocking=True)
        if fresh:
            self._carry(self._start)
        for group in self.optimizer.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(self.rate)
            else:
                group["lr"] = self.rate
        self._graphed(self._step)

    def _step(self) -> None:
        scored = self.model(self._tokens, self._state, self.noise)
        loss = -scored.token_log_probs.mean()
        # A gradient that is not added to another needs neither zeros before nor a sum after.
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        reduce_gradients(self.parameters)
        torch.nn.utils.clip_grad_norm_(self.parameters, self.settings.clip or math.inf)
        self.optimizer.step()
        self.loss.copy_(loss.detach())
        self._carry(scored.state)

    @torch.no_grad()
    def _carry(self, state: tuple[Tensor, ...]) -> None:
        for buffer, value in zip(self._state, state, strict=True):
            buffer.copy_(value)

    def after_check(self, loss: float) -> None:
        if self.settings.schedule == "plateau":
            self.plateau = self.plateau.after(loss)

    @contextmanager
    def scored_weights(self) -> Iterator[None]:
        """Within, the model has the weights to be evaluated: its own."""
        yield

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it, as named tensors and plain values."""
        tensors = {"noise": self.noise.get_state()}
        tensors |= {f"carried.{index}": value for index, value in enumerate(self._state)}
        tensors |= {f"model.{name}": value for name, value in self.model.state_dict().items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{index}.{name}": value for name, value in values.items()}
        return tensors, {"plateau": asdict(self.plateau)}

    def restore(self, tensors: Mapping[str, Tensor], values: dict[str, Any]) -> None:
        self.noise.set_state(tensors["noise"])
        self._carry(tuple(tensors[f"carried.{index}"] for index in range(len(self._state))))
        self.model.load_state_dict(part_of(tensors, "model."))
        restore_optimizer(self.optimizer, part_of(tensors, "optimizer."))
        self.plateau = replace(self.plateau, **values["plateau"])
