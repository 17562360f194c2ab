"""A small decoder-only transformer, built and named as Llama is, and its training on a corpus at several budgets."""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import skip_init

from vlhmm.checkpoint import CONFIG, MODEL, TOKENIZER, FolderError, read_tensors, write_tensors
from vlhmm.data import Corpus, Tokenizer, Tokens
from vlhmm.data.atomic import atomic_write
from vlhmm.data.windows import Epoch
from vlhmm.run_folder import RunFolder
from vlhmm.schedule import planned_factor
from vlhmm.settings import settings_from
from vlhmm.step import part_of
from vlhmm.train import LOG_STEPS, SAVE_SECONDS, CheckEvent, DivergedError, StepEvent, stop_signals

FORMAT = "vlhmm-decoder"
VALID_TOKENS = 1 << 17
"""A check scores so many tokens of the validation text at most."""


@dataclass(frozen=True)
class DecoderSettings:
    dim: int = 256
    layers: int = 4
    heads: int = 4
    hidden: int = 0
    """Width inside a layer's network; 0: 8/3 of dim, rounded up to a multiple of 32."""
    tied: bool = True
    """The output layer is the embedding."""
    norm_eps: float = 1e-5
    rope_theta: float = 10_000.0
    longest: int = 2048
    """Tokens that may be read at once; positions are rotations, so none of them is a parameter."""

    def __post_init__(self) -> None:
        for name in ("dim", "layers", "heads", "longest"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.hidden < 0:
            raise ValueError(f"hidden is {self.hidden}, but must be at least 0")
        if self.dim % (2 * self.heads):
            raise ValueError(
                f"dim is {self.dim}, but must be a multiple of 2 x heads = {2 * self.heads}: rotations take pairs"
            )

    @property
    def inner(self) -> int:
        return self.hidden or -(-self.dim * 8 // 3 // 32) * 32


@dataclass(frozen=True)
class DecoderTraining:
    tokens: int = 10_000_000
    """Read in all; the text is read again when it ends."""
    learning_rate: float = 2e-3
    warmup: float = 0.05
    final_rate: float = 0.1
    batch_size: int = 200
    window: int = 64
    beta1: float = 0.9
    beta2: float = 0.95
    weight_decay: float = 0.1
    clip: float = 1.0
    checks: int = 4
    """How often validation perplexity is taken."""
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("batch_size", "window", "checks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.tokens < 0:
            raise ValueError(f"tokens is {self.tokens}, but must be at least 0")
        for name in ("learning_rate", "clip"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}, but must be finite and above 0")


@dataclass(frozen=True)
class LlamaConfig:
    """What the shapes of the body's parameters do not tell, under the names that transformers gives it."""

    num_attention_heads: int
    num_key_value_heads: int
    rope_theta: float
    rms_norm_eps: float
    hidden_act: str = "silu"


class _Attention(nn.Module):
    def __init__(self, settings: DecoderSettings) -> None:
        super().__init__()
        dim, self.heads = settings.dim, settings.heads
        self.q_proj = skip_init(nn.Linear, dim, dim, bias=False)
        self.k_proj = skip_init(nn.Linear, dim, dim, bias=False)
        self.v_proj = skip_init(nn.Linear, dim, dim, bias=False)
        self.o_proj = skip_init(nn.Linear, dim, dim, bias=False)

    def forward(self, x: Float[Tensor, "B T H"], turn: Float[Tensor, "2 T h"]) -> Float[Tensor, "B T H"]:
        query, key, value = (
            projection(x).unflatten(2, (self.heads, -1)).transpose(1, 2)
            for projection in (self.q_proj, self.k_proj, self.v_proj)
        )
        mixed = F.scaled_dot_product_attention(_turned(query, turn), _turned(key, turn), value, is_causal=True)
        done: Tensor = self.o_proj(mixed.transpose(1, 2).flatten(2))
        return done


class _Network(nn.Module):
    def __init__(self, settings: DecoderSettings) -> None:
        super().__init__()
        self.gate_proj = skip_init(nn.Linear, settings.dim, settings.inner, bias=False)
        self.up_proj = skip_init(nn.Linear, settings.dim, settings.inner, bias=False)
        self.down_proj = skip_init(nn.Linear, settings.inner, settings.dim, bias=False)

    def forward(self, x: Float[Tensor, "B T H"]) -> Float[Tensor, "B T H"]:
        done: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return done


class _Layer(nn.Module):
    def __init__(self, settings: DecoderSettings) -> None:
        super().__init__()
        self.self_attn, self.mlp = _Attention(settings), _Network(settings)
        self.input_layernorm = nn.RMSNorm(settings.dim, settings.norm_eps)
        self.post_attention_layernorm = nn.RMSNorm(settings.dim, settings.norm_eps)

    def forward(self, x: Float[Tensor, "B T H"], turn: Float[Tensor, "2 T h"]) -> Float[Tensor, "B T H"]:
        x = x + self.self_attn(self.input_layernorm(x), turn)
        done: Tensor = x + self.mlp(self.post_attention_layernorm(x))
        return done


class DecoderBody(nn.Module):
    """Embeddings, layers, final norm; parameters are named as in transformers' LlamaModel."""

    def __init__(self, settings: DecoderSettings, num_words: int) -> None:
        super().__init__()
        self.settings = settings
        self.embed_tokens = skip_init(nn.Embedding, num_words, settings.dim)
        self.layers = nn.ModuleList(_Layer(settings) for _ in range(settings.layers))
        self.norm = nn.RMSNorm(settings.dim, settings.norm_eps)

    def forward(self, ids: Int[Tensor, "B T"], layer: int = -1) -> Float[Tensor, "B T H"]:
        """The output of a layer: 0 are the embeddings, -1 and the last number the final norm's."""
        x: Tensor = self.embed_tokens(ids)
        turn = _rotation(ids.shape[1], self.settings, x.device)
        last = len(self.layers) if layer == -1 else layer
        for index in range(last):
            x = self.layers[index](x, turn)
        done: Tensor = self.norm(x) if last == len(self.layers) else x
        return done


class Decoder(nn.Module):
    """p(x_t | x_<t); a text begins with the token `begin_id`, which is read and never predicted from."""

    def __init__(
        self,
        settings: DecoderSettings,
        num_words: int,
        begin_id: int = 0,
        generator: torch.Generator | None = None,
        name: str = "decoder",
    ) -> None:
        super().__init__()
        if not 0 <= begin_id < num_words:
            raise ValueError(f"begin_id is {begin_id}, but tokens go from 0 to {num_words - 1}")
        self.settings, self.num_words, self.begin_id, self.name = settings, num_words, begin_id, name
        self.model = DecoderBody(settings, num_words)
        self.lm_head = skip_init(nn.Linear, settings.dim, num_words, bias=False)
        if settings.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self._initialise(generator or torch.Generator().manual_seed(0))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            # What is added to the residual stream counts less the more layers add to it.
            added = name.endswith(("o_proj.weight", "down_proj.weight"))
            parameter.normal_(0, 0.02 / math.sqrt(2 * self.settings.layers) if added else 0.02, generator=generator)

    @property
    def device(self) -> torch.device:
        device: torch.device = self.lm_head.weight.device
        return device

    @property
    def config(self) -> LlamaConfig:
        """So that the body can be moved into a model of states (`vlhmm.models.transfer`)."""
        settings = self.settings
        return LlamaConfig(settings.heads, settings.heads, settings.rope_theta, settings.norm_eps)

    @property
    def num_layers(self) -> int:
        return self.settings.layers

    @property
    def longest(self) -> int:
        return self.settings.longest - 1

    @property
    def sees_ahead(self) -> bool:
        return False

    def forward(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, "B T X"]:
        """Logits of p(x_t | x_<t) for t = 1, ..., T."""
        with self._products():
            logits: Tensor = self.lm_head(self.model(self._begun(tokens)[:, :-1]))
        return logits

    @torch.no_grad()
    def hidden(self, tokens: Int[Tensor, "B T"], layer: int = -1) -> Float[Tensor, "B N H"]:
        """The vectors of the beginning and of the T tokens after it: N = T + 1."""
        with self._products():
            vectors: Tensor = self.model(self._begun(tokens), layer)
        return vectors.float()

    def _begun(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B N"]:
        return torch.cat([torch.full_like(tokens[:, :1], self.begin_id), tokens], dim=1)

    def _products(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")


def _rotation(length: int, settings: DecoderSettings, device: torch.device) -> Float[Tensor, "2 T h"]:
    """Cosines and sines by which positions turn pairs of features."""
    half = settings.dim // settings.heads // 2
    rate = settings.rope_theta ** (-torch.arange(half, device=device) / half)
    angle = torch.arange(length, device=device)[:, None] * rate
    return torch.stack([angle.cos(), angle.sin()]).repeat(1, 1, 2)


def _turned(x: Float[Tensor, "B h T n"], turn: Float[Tensor, "2 T n"]) -> Float[Tensor, "B h T n"]:
    first, second = x.chunk(2, dim=3)
    return (x * turn[0] + torch.cat([-second, first], dim=3) * turn[1]).to(x.dtype)


@torch.no_grad()
def decoder_perplexity(decoder: Decoder, tokens: Tokens, window: int, max_tokens: int | None = None) -> float:
    """Of independent windows, each begun afresh; what does not fill a window is left out."""
    num_windows = min(len(tokens), max_tokens or len(tokens)) // window
    if not num_windows:
        raise ValueError(f"{len(tokens):,} tokens do not fill one window of {window}: give more text")
    loss, at_once = 0.0, max(1, (1 << 13) // window)
    for first in range(0, num_windows, at_once):
        ends = min(first + at_once, num_windows)
        ids = torch.from_numpy(tokens.ids[first * window : ends * window].astype(np.int64)).view(-1, window)
        loss += float(_loss(decoder, ids.to(decoder.device))) * ids.numel()
    return math.exp(loss / (num_windows * window))


def _loss(decoder: Decoder, tokens: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
    """Nats per token."""
    return F.cross_entropy(decoder(tokens).flatten(0, 1).float(), tokens.flatten())


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
        snapshots = {run.steps_of(budget) for budget in budgets}
        if resume:
            run.restore()
        elif 0 in snapshots:
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
        self.num_steps = self.steps_of(training.tokens)
        self.check_steps = {
            max(1, round(check * self.num_steps / training.checks)) for check in range(1, training.checks + 1)
        }
        generator = torch.Generator().manual_seed(training.seed)
        self.decoder = Decoder(settings, corpus.tokenizer.vocab_size, corpus.tokenizer.eos_id or 0, generator).to(
            device
        )
        parameters = list(self.decoder.parameters())
        self.optimizer = torch.optim.AdamW(
            # Norms are not drawn towards 0.
            [
                {"params": [weight for weight in parameters if weight.ndim > 1], "weight_decay": training.weight_decay},
                {"params": [weight for weight in parameters if weight.ndim == 1], "weight_decay": 0.0},
            ],
            lr=training.learning_rate,
            betas=(training.beta1, training.beta2),
            fused=device.type == "cuda",
        )
        self.step, self.best_perplexity = 0, math.inf
        self._last_loss = torch.zeros((), device=device)
        self.about = {"decoder": asdict(settings), "training": asdict(training), "corpus": corpus.hash}

    def steps_of(self, tokens: int) -> int:
        """At least one step for any tokens at all."""
        per_step = self.training.batch_size * self.training.window
        return 0 if tokens == 0 else max(1, round(tokens / per_step))

    def epoch(self, number: int) -> Epoch:
        training = self.training
        return Epoch(self.corpus.train, "independent", training.batch_size, training.window, training.seed, number)

    @property
    def tokens_seen(self) -> int:
        return self.step * self.training.batch_size * self.training.window

    def train_step(self, tokens: Int[Tensor, "B T"]) -> None:
        training, device = self.training, self.decoder.device
        factor = planned_factor("cosine", self.step, self.num_steps, training.warmup, training.final_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = training.learning_rate * factor
        ids = tokens.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tokens
        self.optimizer.zero_grad(set_to_none=True)
        loss = _loss(self.decoder, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.decoder.parameters(), training.clip)
        self.optimizer.step()
        self._last_loss = loss.detach()
        self.step += 1

    def loss(self) -> float:
        """Of the last step; raises if training has broken down. Waits for a GPU to finish."""
        loss = float(self._last_loss)
        limit = 3 * math.log(self.decoder.num_words) + 10
        if not loss <= limit:
            raise DivergedError(
                f"training diverged at step {self.step} of {self.num_steps}: the loss is {loss:.4g} nats per token, "
                f"the limit {limit:.4g}: try a smaller learning_rate"
            )
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
        decoder.name = f"decoder of {self.tokens_seen:,} tokens"
        if self.folder is None:
            return Snapshot(self.tokens_seen, decoder, None)
        where = self.folder.path / f"tokens-{self.tokens_seen}"
        save_decoder(where, decoder, self.corpus.tokenizer)
        return Snapshot(self.tokens_seen, decoder, where)

    def save(self) -> None:
        if self.folder is None:
            return
        if self.step:
            self.loss()
        tensors = {f"decoder.{name}": value for name, value in _weights(self.decoder).items()}
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
        _load_weights(self.decoder, part_of(tensors, "decoder."))
        state = self.optimizer.state_dict()
        for name, value in part_of(tensors, "optimizer.").items():
            index, key = name.split(".")
            state["state"].setdefault(int(index), {})[key] = value
        self.optimizer.load_state_dict(state)
        self.step, self.best_perplexity = values["step"], values["best_perplexity"]
        assert self.folder is not None
        self.folder.cut_log(self.step)


def save_decoder(folder: str | Path, decoder: Decoder, tokenizer: Tokenizer) -> None:
    """Writes config.json, tokenizer.json and, last, model.safetensors."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "format": FORMAT,
        "version": 1,
        "decoder": asdict(decoder.settings),
        "num_words": decoder.num_words,
        "begin_id": decoder.begin_id,
        "name": decoder.name,
    }
    tokenizer.save(folder / TOKENIZER)
    atomic_write(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    write_tensors(folder / MODEL, _weights(decoder), {})


def is_decoder_folder(folder: Path) -> bool:
    config = folder / CONFIG
    if not config.is_file():
        return False
    try:
        values: Any = json.loads(config.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT


def load_decoder(folder: str | Path, device: torch.device | str = "cpu") -> tuple[Decoder, Tokenizer]:
    """What `save_decoder` wrote, in evaluation mode."""
    folder = Path(folder)
    if not is_decoder_folder(folder):
        raise FolderError(f"{folder} holds no decoder: give a folder that `save_decoder` has written")
    values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if values.get("version") != 1:
        raise FolderError(f"{folder / CONFIG} is of version {values.get('version')}, this vlhmm reads version 1")
    decoder = Decoder(
        settings_from(DecoderSettings, values["decoder"]), values["num_words"], values["begin_id"], name=values["name"]
    )
    tensors, _ = read_tensors(folder / MODEL)
    try:
        _load_weights(decoder, tensors)
    except RuntimeError as error:
        raise FolderError(f"{folder / MODEL} does not fit {CONFIG}: {error}") from None
    return decoder.to(device).requires_grad_(False).eval(), Tokenizer.load(folder / TOKENIZER)


def _weights(decoder: Decoder) -> dict[str, Tensor]:
    """Each parameter once, though the output layer may be the embedding."""
    return {name: value.detach() for name, value in decoder.named_parameters()}


def _load_weights(decoder: Decoder, tensors: dict[str, Tensor]) -> None:
    if decoder.settings.tied and "model.embed_tokens.weight" in tensors:
        tensors = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    decoder.load_state_dict(tensors)
