"""A decoder's training on a corpus; snapshots at several budgets of tokens make teachers of several strengths."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Int
from torch import Tensor

from vlhmm.capture import captured
from vlhmm.data import Corpus
from vlhmm.data.atomic import remove_partials
from vlhmm.data.windows import Epoch
from vlhmm.decoder.folder import load_weights, save_decoder, weights_of
from vlhmm.decoder.model import Decoder, decoder_perplexity
from vlhmm.decoder.settings import DecoderSettings, DecoderTraining
from vlhmm.run_folder import RunFolder
from vlhmm.schedule import planned_factor
from vlhmm.step import EAGER_STEPS, part_of, restore_optimizer
from vlhmm.train import LOG_STEPS, SAVE_SECONDS, CheckEvent, StepEvent, require_hope, stop_signals

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
    reason: Literal["finished", "time", "interrupted"]
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
    """A decoder trained on the corpus; whoever wants to watch iterates over `decoder_training` instead."""
    for event in decoder_training(
        corpus, settings, training, out=out, resume=resume, max_seconds=max_seconds, device=device
    ):
        if isinstance(event, TrainedDecoder):
            return event.decoder
    raise AssertionError("training always ends with TrainedDecoder")


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
    if resume and out is None:
        raise ValueError("resume needs the folder to resume from: give out=")
    begun = time.monotonic()
    with ExitStack() as stack:
        folder = stack.enter_context(RunFolder(Path(out), resume)) if out is not None else None
        stop_asked = stack.enter_context(stop_signals())
        run = _Run(corpus, settings or DecoderSettings(), training or DecoderTraining(), torch.device(device), folder)
        snapshots = {run.training.steps_of(budget) for budget in budgets}
        if resume:
            run.restore()
        if 0 in snapshots and run.step == 0:
            yield run.snapshot()
        saved_at = time.monotonic()
        # A GPU works ahead of us; asking it for every step's loss would make it wait.
        loss_steps = LOG_STEPS if run.decoder.device.type == "cuda" else 1
        loss = math.nan
        while run.step < run.num_steps:
            epoch, first_window = divmod(run.step, run.steps_per_epoch)
            for tokens in run.epoch(epoch).windows(first_window):
                run.train_step(tokens)
                if run.step % loss_steps == 0 or run.step == 1:
                    loss = run.loss()
                yield StepEvent(run.step, run.num_steps, loss, run.tokens_seen)
                if run.step in run.check_steps:
                    yield run.check()
                if run.step in snapshots:
                    yield run.snapshot()
                out_of_time = max_seconds is not None and time.monotonic() - begun >= max_seconds
                stopping = run.step < run.num_steps and (out_of_time or stop_asked.is_set())
                if stopping or run.step == run.num_steps or time.monotonic() - saved_at > SAVE_SECONDS:
                    run.save()
                    saved_at = time.monotonic()
                if stopping:
                    reason: Literal["time", "interrupted"] = "interrupted" if stop_asked.is_set() else "time"
                    yield TrainedDecoder(run.decoder, run.tokens_seen, reason, time.monotonic() - begun)
                    return
                if run.step == run.num_steps:
                    break
        run.decoder.name = run.name
        if folder is not None:
            save_decoder(folder.path, run.decoder, corpus.tokenizer)
        yield TrainedDecoder(run.decoder, run.tokens_seen, "finished", time.monotonic() - begun)


class _Run:
    """Everything that changes during training, how one step changes it, and how it is saved."""

    def __init__(
        self,
        corpus: Corpus,
        settings: DecoderSettings,
        training: DecoderTraining,
        device: torch.device,
        folder: RunFolder | None,
    ) -> None:
        if training.window > settings.longest:
            raise ValueError(f"a window has {training.window} tokens, but longest is {settings.longest}: raise that")
        self.corpus, self.training, self.folder = corpus, training, folder
        self.epoch(0).check()
        self.steps_per_epoch = self.epoch(0).num_windows
        self.num_steps = training.steps_of(training.tokens)
        self.check_steps = {
            max(1, round(check * self.num_steps / training.checks)) for check in range(1, training.checks + 1)
        }
        generator = torch.Generator().manual_seed(training.seed)
        num_words, eos = corpus.tokenizer.vocab_size, corpus.tokenizer.eos_id
        self.decoder = Decoder(settings, num_words, eos or 0, generator).to(device)
        on_gpu = device.type == "cuda"
        # A captured update reads its rate from memory.
        self._rate = torch.tensor(training.learning_rate, device=device) if on_gpu else None
        parameters = list(self.decoder.parameters())
        self.optimizer = torch.optim.AdamW(
            # Norms are not drawn towards 0.
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
        self._eager_left = EAGER_STEPS
        self._graph: torch.cuda.CUDAGraph | None = None
        self.about = {"decoder": asdict(settings), "training": asdict(training), "corpus": corpus.hash}

    def epoch(self, number: int) -> Epoch:
        training = self.training
        return Epoch(self.corpus.train, "independent", training.batch_size, training.window, training.seed, number)

    @property
    def tokens_seen(self) -> int:
        return self.step * self.training.batch_size * self.training.window

    @property
    def name(self) -> str:
        return f"decoder of {self.tokens_seen:,} tokens"

    def train_step(self, tokens: Int[Tensor, "B T"]) -> None:
        training = self.training
        factor = planned_factor("cosine", self.step, self.num_steps, training.warmup, training.final_rate)
        if self._rate is not None:
            self._rate.fill_(training.learning_rate * factor)
        else:
            for group in self.optimizer.param_groups:
                group["lr"] = training.learning_rate * factor
        # From memory that can be swapped out the copy would wait for the step before.
        self._tokens.copy_(tokens.pin_memory() if self._tokens.is_cuda else tokens, non_blocking=True)
        if self._tokens.is_cuda and self.training.graphs and self._eager_left == 0:
            self._graph = self._graph or captured(self._climb)
            self._graph.replay()
        else:
            self._climb()
            self._eager_left = max(0, self._eager_left - 1)
        self.step += 1

    def _climb(self) -> None:
        """All of a step in buffers of fixed place, so that on a GPU it is one CUDA graph."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.decoder.loss(self._tokens)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), self.training.clip)
        self.optimizer.step()
        self._last_loss.copy_(loss.detach())

    def loss(self) -> float:
        """Of the last step; raises if training has broken down. Waits for a GPU to finish."""
        loss = float(self._last_loss)
        require_hope(loss, self.decoder.num_words, self.step, self.num_steps)
        return loss

    def check(self) -> CheckEvent:
        self.loss()
        perplexity = decoder_perplexity(self.decoder, self.corpus.valid, self.training.window, VALID_TOKENS)
        improved = perplexity < self.best_perplexity
        self.best_perplexity = min(perplexity, self.best_perplexity)
        check = CheckEvent(self.step, self.num_steps, self.tokens_seen, perplexity, self.best_perplexity, improved)
        if self.folder is not None:
            self.folder.log({"kind": "check", **asdict(check)})
        return check

    def snapshot(self) -> Snapshot:
        decoder = copy.deepcopy(self.decoder).cpu().requires_grad_(False)
        decoder.name = self.name
        if self.folder is None:
            return Snapshot(self.tokens_seen, decoder, None)
        where = self.folder.path / f"tokens-{self.tokens_seen}"
        remove_partials(where)
        save_decoder(where, decoder, self.corpus.tokenizer)
        return Snapshot(self.tokens_seen, decoder, where)

    def save(self) -> None:
        if self.folder is None:
            return
        if self.step:
            self.loss()
        tensors = {f"decoder.{name}": value for name, value in weights_of(self.decoder).items()}
        for index, values in self.optimizer.state_dict()["state"].items():
            for name, value in values.items():
                tensors[f"optimizer.{index}.{name}"] = value
        self.folder.save_state(
            tensors, {"step": self.step, "best_perplexity": self.best_perplexity, "about": self.about}
        )

    def restore(self) -> None:
        """Goes on exactly where `save` left off."""
        saved = self.folder.load_state() if self.folder is not None else None
        if saved is None:
            return
        tensors, values = saved
        if values["about"] != self.about:
            raise ValueError("the run was begun with other settings or another text: resume it with the same ones")
        load_weights(self.decoder, part_of(tensors, "decoder."))
        restore_optimizer(self.optimizer, part_of(tensors, "optimizer."))
        self.step, self.best_perplexity = values["step"], values["best_perplexity"]
        assert self.folder is not None
        self.folder.cut_log(self.step)
