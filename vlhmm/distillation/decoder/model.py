"""The decoder as a language model: token embeddings, the layers that models of states use too, an output layer."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from vlhmm.data import Tokens
from vlhmm.distillation.decoder.settings import DecoderSettings
from vlhmm.models.decoder import DecoderLayer, DecoderShape, rotary
from vlhmm.models.unfilled import unfilled
from vlhmm.ops import dispatch
from vlhmm.ops.row_logsumexp import row_logsumexp

SCORED_AT_ONCE = 1 << 13
"""Tokens of a held-out text whose logits are made at once."""


@dataclass(frozen=True)
class LlamaConfig:
    """What the shapes of the body's parameters do not tell, under the names that transformers gives it."""

    num_attention_heads: int
    num_key_value_heads: int
    rope_theta: float
    rms_norm_eps: float
    hidden_act: str = "silu"


class DecoderBody(nn.Module):
    """Embeddings, layers, final norm; parameters are named as in transformers' LlamaModel."""

    def __init__(self, shape: DecoderShape, num_words: int) -> None:
        super().__init__()
        self.shape = shape
        self.embed_tokens = unfilled(nn.Embedding, num_words, shape.dim)
        self.layers = nn.ModuleList([DecoderLayer(shape) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.dim, shape.norm_eps)

    def forward(self, ids: Int[Tensor, "B T"], layer: int = -1) -> Float[Tensor, "B T H"]:
        """The output of a layer: 0 are the embeddings, -1 and the last number the final norm's."""
        hidden: Tensor = self.embed_tokens(ids)
        rotation = rotary(hidden, self.shape.head_dim, self.shape.rope_theta)
        last = len(self.layers) if layer == -1 else layer
        for index in range(last):
            hidden = self.layers[index](hidden, rotation)
        done: Tensor = self.norm(hidden) if last == len(self.layers) else hidden
        return done


class Decoder(nn.Module):
    """p(x_t | x_<t); a text begins with the token `begin_id`, which is read and never predicted.

    Distillation asks it for vectors: it is a `vlhmm.distillation.lvd.VectorTeacher`.
    """

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
        self.model = DecoderBody(settings.shape, num_words)
        self.lm_head = unfilled(nn.Linear, settings.dim, num_words, bias=False)
        if settings.tied:
            self.lm_head.weight = self.model.embed_tokens.weight
        self._initialise(generator or torch.Generator().manual_seed(0))

    @torch.no_grad()
    def _initialise(self, generator: torch.Generator) -> None:
        for name, parameter in self.named_parameters():
            if parameter.ndim == 1:
                parameter.fill_(1.0)
                continue
            # Initial weights of residual branches are scaled down with the number of layers.
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

    def loss(self, tokens: Int[Tensor, "B T"]) -> Float[Tensor, ""]:
        """-log p(x_t | x_<t) in nats per token."""
        if not dispatch.ROW_LOGSUMEXP.fits(self.settings.dim):
            return F.cross_entropy(self(tokens).flatten(0, 1).float(), tokens.flatten())
        with self._products():
            hidden = self.model(self._begun(tokens)[:, :-1])
        # A fused cross-entropy without the tensor of all logits, which on a GPU would take more time than all layers.
        features: Tensor = hidden.flatten(0, 1)
        words: Tensor = self.lm_head.weight
        if words.is_cuda:
            # Rounded as in the kernel, so that a token's logit and its normaliser have the same rounding.
            features, words = features.bfloat16().float(), words.bfloat16().float()
        logit = (features * words.index_select(0, tokens.flatten())).sum(dim=1)
        return (row_logsumexp(features, words) - logit).mean()

    @torch.no_grad()
    def hidden(self, tokens: Int[Tensor, "B T"], layer: int = -1) -> Float[Tensor, "B N H"]:
        """The vectors of the beginning and of the T tokens after it: N = T + 1."""
        with self._products():
            vectors: Tensor = self.model(self._begun(tokens), layer)
        return vectors.float()

    def output_matrix(self) -> Float[Tensor, "X H"]:
        """A vector for every word, as `vlhmm.models.set_word_embeddings` takes them."""
        weight: Tensor = self.lm_head.weight.detach()
        return weight

    def _begun(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B N"]:
        return torch.cat([torch.full_like(tokens[:, :1], self.begin_id), tokens], dim=1)

    def _products(self) -> torch.autocast:
        # No cache of cast weights: a captured graph would read the stale weights of its first step at every replay.
        on_gpu = self.device.type == "cuda"
        return torch.autocast(self.device.type, torch.bfloat16, enabled=on_gpu, cache_enabled=False)


@torch.no_grad()
def decoder_perplexity(decoder: Decoder, tokens: Tokens, window: int, max_tokens: int | None = None) -> float:
    """Of independent windows, each begun afresh; what does not fill a window is left out."""
    num_windows = min(len(tokens), max_tokens or len(tokens)) // window
    if not num_windows:
        raise ValueError(f"{len(tokens):,} tokens do not fill one window of {window}: give more text")
    loss, at_once = 0.0, max(1, SCORED_AT_ONCE // window)
    for first in range(0, num_windows, at_once):
        ends = min(first + at_once, num_windows)
        ids = torch.from_numpy(tokens.ids[first * window : ends * window].astype(np.int64)).view(-1, window)
        loss += float(decoder.loss(ids.to(decoder.device))) * ids.numel()
    return math.exp(loss / (num_windows * window))
