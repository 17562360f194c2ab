"""What decides a decoder and its training."""

from __future__ import annotations

import math
from dataclasses import dataclass

from vlhmm.models.decoder import DecoderShape


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
    def shape(self) -> DecoderShape:
        return DecoderShape(
            dim=self.dim,
            layers=self.layers,
            heads=self.heads,
            key_heads=self.heads,
            gated_dim=self.hidden or -(-self.dim * 8 // 3 // 32) * 32,
            causal=True,
            rope_theta=self.rope_theta,
            norm_eps=self.norm_eps,
        )


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
    graphs: bool = True
    """On a GPU: run steps as CUDA graphs. Off, errors are easier to find."""
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

    def steps_of(self, tokens: int) -> int:
        """At least one step for any tokens at all."""
        return 0 if tokens == 0 else max(1, round(tokens / (self.batch_size * self.window)))
