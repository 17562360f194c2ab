"""What distinguishes one model from another; written to and read from config.json."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args, get_origin, get_type_hints


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
    embeddings: Literal["tied", "split"] = "tied"
    """tied: one embedding a state; split: one each for leaving, entering (start too) and emitting."""
    out_scale: float = 1.0
    """Multiplies out in out . in: below 1, training begins with flatter transitions."""
    emission_bias: bool = True
    """A bias for every word."""
    initialisation: Literal["code", "paper"] = "code"
    """code: embeddings N(0, 1), the rest as PyTorch does; paper: Kaiming uniform weights, biases 0."""
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

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelSettings:
        """Settings that a person wrote: each name, type and choice is checked."""
        known = get_type_hints(cls)
        for name in values:
            if name not in known:
                raise ValueError(f"unknown model setting {name!r}; {_nearest(name, known)}")
        return cls(**{name: _checked(name, value, known[name]) for name, value in values.items()})


def _checked(name: str, value: Any, hint: Any) -> Any:
    if get_origin(hint) is Literal:
        if value not in get_args(hint):
            raise ValueError(f"{name} is {value!r}; {_nearest(str(value), get_args(hint))}")
    elif hint is float and type(value) is int:
        # JSON and the command line write 1 for 1.0.
        return float(value)
    elif type(value) is not hint:
        raise ValueError(f"{name} is {value!r}, but must be of type {hint.__name__}")
    return value


def _nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    nearest = difflib.get_close_matches(name, known, n=1)
    suggestion = f"did you mean {nearest[0]!r}? " if nearest else ""
    return f"{suggestion}known are: {', '.join(known)}"
