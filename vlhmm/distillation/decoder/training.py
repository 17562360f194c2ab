"""A decoder's training on a corpus; snapshots at several budgets of tokens make teachers of several strengths."""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.capture import Graphed
from vlhmm.data import Corpus
from vlhmm.data.atomic import remove_partials
from vlhmm.data.windows import Epoch
from vlhmm.distillation.decoder.folder import load_weights, save_decoder, weights_of
from vlhmm.distillation.decoder.model import Decoder, decoder_perplexity
from vlhmm.distillation.decoder.settings import DecoderSettings, DecoderTraining
from vlhmm.progress import Progress
from vlhmm.training.saved_state import part_of, restore_optimizer
from vlhmm.training.schedule import planned_factor
from vlhmm.training.step import pinned, reduce_gradients
from vlhmm.training.trainer import (
    SAVE_SECONDS,
    CheckEvent,
    Reason,
    StepEvent,
    Stopped,
    Task,
    check_divergence,
    divergence_threshold,
    fit,
    last_event,
    loss_interval,
)

VALID_TOKENS = 1 << 17
"""A check scores so many tokens of the validation text at most."""


@dataclass(frozen=True)
class Snapshot:
    """The decoder as it was after so many tokens."""

    tokens: int
    decoder: Decoder
    """A copy, on the CPU."""
    folder: Path | None
    """Where it was saved."""


@dataclass(frozen=True)
class TrainedDecoder:
    """The last event."""

    decoder: Decoder
    tokens: int
    reason: Reason
    seconds: float


DecoderEvent = StepEvent | CheckEvent | Snapshot | TrainedDecoder


def train_decoder(
    corpus: Corpus,
    settings: DecoderSettings | None = None,
    training: DecoderTraining | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    device: torch.device | str = "cpu",
) -> Decoder:
    """A decoder trained on the corpus; iterate over `decoder_training` to follow its progress."""
    events = decoder_training(
        corpus, settings, training, out=out, resume=resume, max_seconds=max_seconds, device=device
    )
    return last_event(events, TrainedDecoder).decoder


def decoder_training(
    corpus: Corpus,
    settings: DecoderSettings | None = None,
    training: DecoderTraining | None = None,
    *,
    budgets: tuple[int, ...] = (),
    out: str | Path | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    device: torch.device | str = "cpu",
) -> Iterator[DecoderEvent]:
    """Trains a decoder on a corpus, an event at a time; the last one is `TrainedDecoder`.

    `budgets`: numbers of tokens after which a snapshot is given, and with `out` saved; 0 is the untrained one. A run that was
    stopped or ran out of `max_seconds` goes on with `resume` to the same bits (on a CPU).
    """
    task: Task[Snapshot | TrainedDecoder] = DecoderTask(
        corpus,
        settings or DecoderSettings(),
        training or DecoderTraining(),
        torch.device(device),
        budgets,
        None if out is None else Path(out),
    )
    yield from fit(task, resume=resume, max_seconds=max_seconds, save_seconds=SAVE_SECONDS)


class DecoderTask:
    """A `Task`: a decoder and its optimizer. It ends with its last weights, not with the best ones."""

    check_times = ()
    joint = False

    def __init__(
        self,
        corpus: Corpus,
        settings: DecoderSettings,
        training: DecoderTraining,
        device: torch.device,
        budgets: tuple[int, ...] = (),
        out: Path | None = None,
    ) -> None:
        if training.window > settings.longest:
            raise ValueError(f"a window has {training.window} tokens, but longest is {settings.longest}: raise that")
        self.corpus, self.training, self.out = corpus, training, out
        self.loss_steps = loss_interval(device)
        self.snapshots = {training.steps_of(budget) for budget in budgets}
        self._epoch(0).check()
        self.steps_per_epoch = self._epoch(0).num_windows
        self.num_steps = training.steps_of(training.tokens)
        self.check_steps = {
            max(1, round(check * self.num_steps / training.checks)) for check in range(1, training.checks + 1)
        }
        generator = torch.Generator().manual_seed(training.seed)
        num_words, eos = corpus.tokenizer.vocab_size, corpus.tokenizer.eos_id
        self.decoder = Decoder(settings, num_words, eos or 0, generator).to(device)
        on_gpu = device.type == "cuda"
        # The learning rate is a tensor: a captured update reads it from memory.
        self._rate = torch.tensor(training.learning_rate, device=device) if on_gpu else None
        parameters = list(self.decoder.parameters())
        self.optimizer = torch.optim.AdamW(
            # No weight decay for norm layers.
            [
                {"params": [weight for weight in parameters if weight.ndim > 1], "weight_decay": training.weight_decay},
                {"params": [weight for weight in parameters if weight.ndim == 1], "weight_decay": 0.0},
            ],
            lr=training.learning_rate if self._rate is None else self._rate,
            betas=(training.beta1, training.beta2),
            fused=True,
            capturable=on_gpu,
        )
        self.step, self.best_perplexity = 0, math.inf
        self._tokens = torch.zeros(training.batch_size, training.window, dtype=torch.int64, device=device)
        self._last_loss = torch.zeros((), device=device)
        self._graphed = Graphed[None](device, enabled=training.graphs)
        self.about = {"decoder": asdict(settings), "training": asdict(training), "corpus": corpus.hash}

    def _epoch(self, number: int) -> Epoch:
        training = self.training
        return Epoch(self.corpus.train, "independent", training.batch_size, training.window, training.seed, number)

    @property
    def tokens_seen(self) -> int:
        return self.step * self.training.batch_size * self.training.window

    @property
    def name(self) -> str:
        return f"decoder of {self.tokens_seen:,} tokens"

    def batches(self) -> Iterator[Tensor]:
        while not self.finished():
            epoch, first_window = divmod(self.step, self.steps_per_epoch)
            yield from self._epoch(epoch).windows(first_window)

    def make_step(self, tokens: Int[Tensor, "B T"]) -> None:
        training = self.training
        factor = planned_factor("cosine", self.step, self.num_steps, training.warmup, training.final_rate)
        if self._rate is not None:
            self._rate.fill_(training.learning_rate * factor)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = training.learning_rate * factor
        self._tokens.copy_(pinned(tokens, self._tokens.device), non_blocking=True)
        self._graphed(self._step)
        self.step += 1

    def _step(self) -> None:
        """A step on static buffers (fixed addresses), so that on a GPU it is one CUDA graph."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.decoder.loss(self._tokens)
        loss.backward()
        reduce_gradients(self.decoder.parameters())
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.training.clip)
        self.optimizer.step()
        self._last_loss.copy_(loss.detach())

    def loss(self) -> float:
        loss = float(self._last_loss)
        check_divergence(loss, divergence_threshold(self.decoder.num_words), self.step, self.num_steps)
        return loss

    def check_due(self) -> bool:
        return self.step in self.check_steps

    def finished(self) -> bool:
        return self.step >= self.num_steps

    def resumable(self) -> bool:
        return True

    def stoppable(self) -> bool:
        return True

    def evaluating(self) -> Generator[Progress, None, float]:
        self.loss()
        # Of a few tokens, so in one go.
        yield from ()
        perplexity = decoder_perplexity(self.decoder, self.corpus.valid, self.training.window, VALID_TOKENS)
        self.best_perplexity = min(perplexity, self.best_perplexity)
        return perplexity

    def step_record(self, losses: Sequence[float]) -> None:
        """The log tells of checks alone."""

    def extra_events(self) -> Iterator[Snapshot]:
        if self.step in self.snapshots:
            yield self._snapshot()

    def _snapshot(self) -> Snapshot:
        decoder = copy.deepcopy(self.decoder).cpu().requires_grad_(False)
        decoder.name = self.name
        if self.out is None:
            return Snapshot(self.tokens_seen, decoder, None)
        where = self.out / f"tokens-{self.tokens_seen}"
        remove_partials(where)
        save_decoder(where, decoder, self.corpus.tokenizer)
        return Snapshot(self.tokens_seen, decoder, where)

    def save_best(self) -> None:
        """The last weights are the ones to use: `finish` saves them."""

    def finish(self, reason: Reason) -> None:
        if reason != "finished":
            return
        self.decoder.name = self.name
        if self.out is not None:
            save_decoder(self.out, self.decoder, self.corpus.tokenizer)

    def closing_event(self, stopped: Stopped) -> TrainedDecoder:
        return TrainedDecoder(self.decoder, self.tokens_seen, stopped.reason, stopped.seconds)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self.loss()
        tensors = {f"decoder.{name}": value for name, value in weights_of(self.decoder).items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            for name, value in values.items():
                tensors[f"optimizer.{index}.{name}"] = value
        return tensors, {"step": self.step, "best_perplexity": self.best_perplexity, "about": self.about}

    def restore(self, tensors: Mapping[str, Tensor], values: dict[str, Any]) -> None:
        if values["about"] != self.about:
            raise ValueError("the run was started with other settings or another text: resume it with the same ones")
        load_weights(self.decoder, part_of(tensors, "decoder."))
        restore_optimizer(self.optimizer, part_of(tensors, "optimizer."))
        self.step, self.best_perplexity = values["step"], values["best_perplexity"]
