"""What distinguishes one model from another; written to and read from config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vlhmm.precision import Precision
from vlhmm.settings import settings_from


@dataclass(frozen=True)
class ModelSettings:
    parameterization: Literal["neural", "linear", "scalar"] = "neural"
    """neural: residual networks of state embeddings; linear: the embeddings alone; scalar: free logits."""
    states_per_block: int = 256
    """K: the states that can emit a word."""
    dim: int = 256
    """H: the width of embeddings and networks. A scalar model has none."""
    transition: Literal["softmax", "block-factored", "table"] = "softmax"
    """softmax: over all states; block-factored: over blocks, then over a block's states; table: free logits."""
    target_network: bool = False
    """A network for the state that is entered (Chiu & Rush, eq. 9), or its raw embedding (their code)."""
    embeddings: Literal["tied", "split", "factored"] = "tied"
    """tied: one embedding a state; split: one each for leaving, entering (start too) and emitting; factored: half of it the
    state's own, half its block's, and in a neural model a further network for each role composes the two."""
    out_scale: float = 1.0
    """Multiplies out in out . in: below 1, training begins with flatter transitions."""
    emission: Literal["blocked", "unmasked"] = "blocked"
    """blocked: normalised over the words that a state can emit; unmasked, in scalar models: over all words, with a logit for
    every pair. What falls on words of other blocks is then lost: perplexity is an upper bound, and the tables, which can be
    scored, are not a whole HMM that could be asked anything else."""
    emission_bias: bool = True
    """A bias for every word."""
    initialisation: Literal["code", "paper"] = "code"
    """code: embeddings N(0, 1), the rest as PyTorch does; paper: Kaiming uniform weights, biases 0."""
    precision: Precision = "bf16"
    """What matrix products on a GPU read, in networks, recursion, normaliser and emissions; a CPU computes in float32."""
    init_scale: float = 0.01
    """Scalar tables start from U(-init_scale, init_scale)."""

    def __post_init__(self) -> None:
        for name in ("states_per_block", "dim"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("out_scale", "init_scale"):
            if not math.isfinite(getattr(self, name)) or getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be finite and at least 0")
        if (self.parameterization == "scalar") != (self.transition == "table"):
            raise ValueError(
                f"transition {self.transition!r} does not go with parameterization "
                f'{self.parameterization!r}: a scalar model has transition "table", the others "softmax" or "block-factored"'
            )

        if self.embeddings == "factored" and self.dim % 2:
            raise ValueError(f"dim is {self.dim}, but factored embeddings are two halves of it: make it even")
        if self.emission == "unmasked" and self.parameterization != "scalar":
            raise ValueError(
                f'emission "unmasked" is for scalar models, not for parameterization {self.parameterization!r}: use "blocked"'
            )

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelSettings:
        """Settings that a person wrote: each name, type and choice is checked."""
        return settings_from(cls, values)
