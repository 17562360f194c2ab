"""Text drawn from a neural baseline, thousands of sequences side by side; on a GPU a step is one CUDA graph."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.baselines.buys_hmm import BuysHMM
from vlhmm.baselines.layers import State
from vlhmm.baselines.scorer import Baseline
from vlhmm.capture import Graphed
from vlhmm.memory import require_memory
from vlhmm.precision import float32_products

EAGER_STEPS = 2
"""Steps made before a graph is captured: they load kernels."""
LOGIT_COPIES = 4
"""Logits and what is made of them that a step holds at once."""


@dataclass(frozen=True)
class Sampled:
    """Continuations of prefixes, one a row."""

    tokens: Int[Tensor, "B T"]
    log_probs: Float[Tensor, " B"]
    """log p(continuation | prefix) by the distribution that it was drawn from."""
    position_log_probs: Float[Tensor, " T"]
    """The mean over rows at each position."""


class BaselineSampler:
    """Draws `length` tokens after prefixes of one length, `batch_size` rows at a time, `per_prefix` continuations of each.

    On a GPU products read bf16, and the step that was captured for the first batch serves all that follow. The same prefixes and
    seed give the same tokens, whatever was drawn before.
    """

    def __init__(
        self, model: Baseline, *, batch_size: int, length: int, temperature: float = 1.0, per_prefix: int = 1
    ) -> None:
        for name, value in (("batch_size", batch_size), ("length", length), ("per_prefix", per_prefix)):
            if value < 1:
                raise ValueError(f"{name} is {value}, but must be at least 1")
        if not (temperature > 0 and math.isfinite(temperature)):
            raise ValueError(f"temperature is {temperature}, but must be finite and above 0")
        self.device = next(model.parameters()).device
        on_gpu = self.device.type == "cuda"
        require_memory(
            LOGIT_COPIES * 4 * batch_size * model.num_words,
            f"{batch_size:,} sequences of {model.num_words:,} words side by side",
            "make the batch size of the samples smaller",
            self.device,
        )
        self.model = copy.deepcopy(model).requires_grad_(False).eval()
        if on_gpu and not isinstance(model, BuysHMM):
            self.model = self.model.bfloat16()
        self._graphs = on_gpu and not isinstance(model, BuysHMM)
        self.temperature, self.per_prefix = temperature, per_prefix
        self._start = self.model.start_state(batch_size)
        self._state = tuple(value.clone() for value in self._start)
        self._tokens = torch.zeros(length, batch_size, dtype=torch.int64, device=self.device)
        self._row_log_probs = torch.zeros(batch_size, dtype=torch.float64, device=self.device)
        self._position_log_probs = torch.zeros(length, device=self.device)
        self._position = torch.zeros(1, dtype=torch.int64, device=self.device)
        self._given = torch.zeros(batch_size, dtype=torch.int64, device=self.device)
        self._arrivals = torch.empty(batch_size, model.num_words, device=self.device)
        self._generator = torch.Generator(self.device)
        self._read = Graphed[None](self.device, enabled=self._graphs, eager_calls=EAGER_STEPS)
        self._write = Graphed[None](
            self.device, enabled=self._graphs, eager_calls=EAGER_STEPS, generator=self._generator
        )

    @torch.no_grad()
    def __call__(self, prefixes: Int[Tensor, "B P"], seed: int) -> Sampled:
        """All first continuations of the rows, then all second ones; prefixes of no tokens begin where a text does."""
        length, batch_size = self._tokens.shape
        if prefixes.shape[0] != batch_size:
            raise ValueError(f"{prefixes.shape[0]} prefixes, but {batch_size} sequences are drawn side by side")
        with float32_products("highest", self.device):
            if self._graphs and not self._write.has_graph():
                # The results of these steps are discarded.
                for graphed, step in ((self._read, self._read_step), (self._write, self._write_step)):
                    for _ in range(EAGER_STEPS + 1):
                        self._begin(seed)
                        graphed(step)
            self._begin(seed)
            for given in prefixes.to(self.device).T:
                self._given.copy_(given)
                self._read(self._read_step)
            after_prefix = tuple(value.clone() for value in self._state)
            drawn = []
            for _ in range(self.per_prefix):
                self._carry(after_prefix)
                self._position.zero_()
                self._row_log_probs.zero_()
                for _ in range(length):
                    self._write(self._write_step)
                drawn.append((self._tokens.T.clone(), self._row_log_probs.clone(), self._position_log_probs.clone()))
        tokens, row_log_probs, position_log_probs = zip(*drawn, strict=True)
        return Sampled(torch.cat(tokens), torch.cat(row_log_probs), torch.stack(position_log_probs).mean(0))

    def _begin(self, seed: int) -> None:
        self._generator.manual_seed(seed)
        self._carry(self._start)
        self._position.zero_()
        self._row_log_probs.zero_()

    def _carry(self, state: State) -> None:
        for buffer, value in zip(self._state, state, strict=True):
            buffer.copy_(value)

    def _read_step(self) -> None:
        _, after = self.model.advance(self._state)
        self._carry(after(self._given))

    def _write_step(self) -> None:
        features, after = self.model.advance(self._state)
        logits = self.model.next_logits(features).float()
        if self.temperature != 1:
            logits = logits / self.temperature
        # The first of independent arrivals at rates exp(logit) is a draw from their softmax.
        self._arrivals.exponential_(generator=self._generator).log_()
        token = (logits - self._arrivals).argmax(-1)
        log_probs = logits.gather(1, token[:, None])[:, 0] - logits.logsumexp(-1)
        self._tokens.index_copy_(0, self._position, token[None])
        self._row_log_probs += log_probs
        self._position_log_probs.index_copy_(0, self._position, log_probs.mean()[None])
        self._position += 1
        self._carry(after(token))
