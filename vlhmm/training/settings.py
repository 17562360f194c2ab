"""What decides a training run apart from the model and the text."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vlhmm.training.schedule import ScheduleKind

DROPOUT_STAGES = 5
"""The rates that an annealed dropout takes: each has shapes of its own, so on a GPU it is captured anew."""


@dataclass(frozen=True)
class TrainSettings:
    """The settings of a training run, apart from model and text.

    Example:
        >>> vlhmm.TrainSettings(epochs=5, learning_rate=0.02).schedule
        'cosine'
        >>> vlhmm.TrainSettings(epochs=0)
        Traceback (most recent call last):
            ...
        ValueError: epochs is 0, but must be at least 1
    """

    learning_rate: float = 1e-2
    """The largest learning rate, reached after warm-up."""
    schedule: ScheduleKind = "cosine"
    """cosine: falls to `final_rate` of the largest; plateau: divided by `decay` when validation stops improving; constant."""
    warmup: float = 0.02
    """The part of all steps in which the learning rate rises linearly from 0."""
    final_rate: float = 0.02
    """cosine: the learning rate at the end, as a part of the largest."""
    patience: int = 8
    """plateau: checks without a better validation loss after which the learning rate falls."""
    decay: float = 4.0
    """plateau: what the rate is divided by."""
    min_rate: float = 0.0
    """plateau: training ends when the learning rate falls below this."""
    epochs: int = 20
    """Passes over the training text."""
    batch_size: int = 16
    """Windows in a batch, which all ranks of torchrun share."""
    window: int = 32
    """Tokens in a window."""
    windows: Literal["carried", "independent"] = "carried"
    """carried: each window continues from the belief of the last; independent: each begins from the start distribution."""
    state_dropout: float = 0.5
    """The part of the states of each block that a step drops."""
    state_dropout_end: float = -1.0
    """The state dropout of the last epochs; it changes in equal steps between epochs. -1: it does not change."""
    dropout: Literal["states", "columns"] = "states"
    """states: exactly that part of each block is dropped; columns: each state, independently, cannot be entered in a step, which
    needs no blocks.
    """
    beta1: float = 0.9
    """Adam: decay of the mean of the gradient."""
    beta2: float = 0.999
    """Adam: decay of the mean of the squared gradient."""
    weight_decay: float = 0.0
    """AdamW: weight decay."""
    clip: float = 5.0
    """Largest norm of the gradient; 0: no clipping."""
    ema: float = 0.0
    """Decay of the exponential moving average of the weights, which is then evaluated and saved; 0: the weights themselves."""
    freeze_embeddings: float = 0.0
    """The part of all steps, from the first on, in which embeddings are frozen."""
    frozen: Literal["states", "words", "both"] = "both"
    """Which embeddings are frozen."""
    checks_per_epoch: int = 4
    """How often validation perplexity is computed."""
    graphs: bool = True
    """Run steps as CUDA graphs on a GPU. The result is the same; without them errors are easier to locate."""
    seed: int = 0
    """Seed of state dropout and of the order of the text."""
    token_dropout: float = 0.0
    """The part of the tokens that a step treats as missing: it sums over the words that may stand there. Their blocks stay known, in a
    dense HMM nothing; a token after which states begin anew is never missing. Not in steps that maximize p(x, z).
    """
    subword_dropout: float = 0.0
    """Probability with which each merge of a BPE token is undone in the training text, drawn anew in every epoch; needs carried
    windows. An epoch has as many tokens as without. Tokens that are no merges, such as whole words, stay as they are.
    """
    context: int = 0
    """Tokens at the beginning of each window that are read but not scored; needs independent windows. The gradient is exactly that of
    log p(the rest given these).
    """

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "window", "checks_per_epoch", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("learning_rate", "decay"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}, but must be finite and above 0")
        for name in ("state_dropout", "token_dropout", "subword_dropout", "ema", "beta1", "beta2"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 0 and below 1")
        if self.state_dropout_end != -1 and not 0 <= self.state_dropout_end < 1:
            raise ValueError(
                f"state_dropout_end is {self.state_dropout_end}, but must be at least 0 and below 1, or -1 for no change"
            )
        if self.subword_dropout and self.windows != "carried":
            raise ValueError(
                f"subword_dropout is {self.subword_dropout}, which needs windows = 'carried', not {self.windows!r}"
            )
        if not 0 <= self.context < self.window:
            raise ValueError(
                f"context is {self.context}, but must be at least 0 and below window, {self.window}: a window scores some token"
            )
        if self.context and self.windows != "independent":
            raise ValueError(f"context is {self.context}, which needs windows = 'independent', not {self.windows!r}")
        for name in ("warmup", "final_rate", "freeze_embeddings"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be between 0 and 1")
        for name in ("weight_decay", "clip", "min_rate"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 0")

    def dropout_in(self, epoch: int) -> float:
        """Return the state dropout of an epoch.

        Args:
            epoch: Number of the epoch, from 0.

        Returns:
            The part of the states that is dropped.

        Example:
            >>> settings = vlhmm.TrainSettings(epochs=5, state_dropout=0.5, state_dropout_end=0.0)
            >>> [round(settings.dropout_in(epoch), 3) for epoch in range(5)]
            [0.5, 0.375, 0.25, 0.125, 0.0]
        """
        if self.state_dropout_end == -1:
            return self.state_dropout
        stages = min(DROPOUT_STAGES, self.epochs)
        part = epoch * stages // self.epochs / max(1, stages - 1)
        return (1 - part) * self.state_dropout + part * self.state_dropout_end
