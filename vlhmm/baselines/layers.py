"""What the neural baselines share: embeddings of words that may be missing, dropout from a given generator, the output layer.

Every baseline is called with a window of tokens, the state that the window before it left, and a generator for its dropout: with
none it is the model that is evaluated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor, nn

State = tuple[Tensor, ...]
"""What a window leaves to the next one; the first tensors are the last words, -1 where there are none yet."""

After = Callable[[Int[Tensor, " B"]], State]
"""From the word that came to the state it leaves."""

MAX_LOGITS: Final = 1 << 26
"""Logits that are held at once without gradients."""


@dataclass(frozen=True)
class Scored:
    token_log_probs: Float[Tensor, "B T"]
    """log p(x_t | all before it)."""
    state: State
    penalty: Float[Tensor, ""] | None = None
    """What is added to the loss in training."""


def embed(weight: Float[Tensor, "X H"], tokens: Int[Tensor, "*S"]) -> Float[Tensor, "*S H"]:
    """The words' rows; zeros where no word is."""
    return F.embedding(tokens.clamp(min=0), weight) * (tokens >= 0)[..., None]


def shifted(last: Int[Tensor, " B"], tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
    """The word before each."""
    return torch.cat([last[:, None], tokens[:, :-1]], dim=1)


def dropout(values: Float[Tensor, ...], rate: float, noise: torch.Generator | None) -> Float[Tensor, ...]:
    """Each value is 0 with probability `rate`, else scaled up; without `noise` nothing happens."""
    if noise is None or rate == 0:
        return values
    return values * kept(values, tuple(values.shape), rate, noise)


def kept(like: Float[Tensor, ...], shape: tuple[int, ...], rate: float, noise: torch.Generator) -> Float[Tensor, ...]:
    """0 with probability `rate`, else 1 / (1 - rate): independent draws of the given shape."""
    mask = torch.empty(shape, dtype=like.dtype, device=like.device)
    return mask.bernoulli_(1 - rate, generator=noise).div_(1 - rate)


def lstm_step(
    values: Float[Tensor, "B I"], layer: nn.LSTM, hidden: Float[Tensor, "B H"], cell: Float[Tensor, "B H"]
) -> tuple[Float[Tensor, "B H"], Float[Tensor, "B H"]]:
    """Hidden state and cell after one word, by the weights of a layer that reads windows."""
    weights = [layer.get_parameter(f"{name}_l0") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")]
    made: tuple[Tensor, Tensor] = torch.lstm_cell(values, (hidden, cell), *weights)
    return made


def word_log_probs(
    hidden: Float[Tensor, "B T H"],
    weight: Float[Tensor, "X H"],
    bias: Float[Tensor, " X"] | None,
    tokens: Int[Tensor, "B T"],
) -> Float[Tensor, "B T"]:
    """log softmax(weight h + bias) at each token."""
    hidden, targets = hidden.flatten(0, 1), tokens.flatten()
    # A text scored in one piece would need logits of its length times the vocabulary. A gradient needs all of them anyway.
    rows = len(hidden) if hidden.requires_grad else max(1, MAX_LOGITS // len(weight))
    parts = [
        -F.cross_entropy(F.linear(some, weight, bias), wanted, reduction="none")
        for some, wanted in zip(hidden.split(rows), targets.split(rows), strict=True)
    ]
    return torch.cat(parts).view(tokens.shape)


@torch.no_grad()
def kaiming_uniform(module: nn.Module, generator: torch.Generator | None) -> None:
    """Draws all weights of `module` anew, as Chiu & Rush do; biases are 0."""
    for parameter in module.parameters():
        if parameter.ndim > 1:
            bound = math.sqrt(6 / parameter.shape[1])
            parameter.uniform_(-bound, bound, generator=generator)
        else:
            parameter.zero_()
