"""What decides each neural baseline and its training: one record a baseline, the papers' values as defaults."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class AdamSettings:
    """Training by AdamW, as Chiu & Rush (2020), appendix A.2, train their LSTM."""

    epochs: int = 50
    batch_size: int = 16
    """Windows side by side."""
    window: int = 32
    """Tokens of a window."""
    learning_rate: float = 1e-3
    schedule: Literal["plateau", "constant"] = "plateau"
    """plateau: the rate is divided by decay when validation stops falling."""
    patience: int = 8
    """plateau: checks without a better validation loss before the rate falls."""
    decay: float = 4.0
    min_rate: float = 1e-6
    """Training ends when the rate has fallen below this: nothing changes any more."""
    weight_decay: float = 0.0
    clip: float = 5.0
    """The largest norm of the gradient; 0: not clipped."""
    checks_per_epoch: int = 4
    graphs: bool = True
    """On a GPU: run steps as a CUDA graph."""

    def __post_init__(self) -> None:
        _at_least(self, ("epochs", "batch_size", "window", "patience", "checks_per_epoch"), 1)
        _above_zero(self, ("learning_rate", "decay"))
        _at_least(self, ("min_rate", "weight_decay", "clip"), 0)


@dataclass(frozen=True, kw_only=True)
class FeedForwardSettings(AdamSettings):
    """The 5-gram network of Chiu & Rush (2020), appendix A.2."""

    dim: int = 256
    """H: the width of embeddings and hidden layers."""
    order: int = 5
    """A word is predicted from the order - 1 words before it."""
    dropout: float = 0.3
    """After each of the two hidden layers."""
    epochs: int = 100
    batch_size: int = 128
    window: int = 64
    graphs: bool = False
    """Steps are few, so that little is gained in all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(self, ("dim",), 1)
        _at_least(self, ("order",), 2)
        _parts(self, ("dropout",))


@dataclass(frozen=True, kw_only=True)
class LSTMSettings(AdamSettings):
    """The LSTM of Chiu & Rush (2020), appendix A.2."""

    dim: int = 256
    """H: the width of embeddings and layers."""
    num_layers: int = 2
    dropout: float = 0.3
    """Before, between and after the layers."""
    initialisation: Literal["paper", "code"] = "paper"
    """paper: Kaiming uniform, biases 0; code: PyTorch's defaults, so embeddings are N(0, 1), biases as small as weights."""
    shuffle: bool = True
    """Documents in new order every epoch; false: the text in its order, so that what came before a document can be learnt."""

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(self, ("dim", "num_layers"), 1)
        _parts(self, ("dropout",))


@dataclass(frozen=True, kw_only=True)
class BuysHMMSettings(AdamSettings):
    """The scalar HMM of Buys et al. (2018), and its way to an RNN; as it stands, an exact HMM."""

    num_states: int = 900
    transition_input: Literal["none", "add", "gate"] = "none"
    """What the previous word does to the transition's logits: nothing, shifts them, or gates them, by destination."""
    input_scale: float = 1.0
    """Times the word's embedding there, whose entries are logits of num_states states: 1 / sqrt(num_states) makes their sum
    as large as one of them, so that a rate that suits logits suits its weights too."""
    delay_transition_softmax: bool = False
    """The softmax is taken of W u instead of W: the next state is no longer a mixture of rows."""
    state: Literal["softmax", "sigmoid"] = "softmax"
    """sigmoid: states are on or off each by itself. Needs delay_transition_softmax."""
    delay_emission_softmax: bool = False
    """Words are predicted by softmax(E s + c) instead of a mixture of each state's words."""
    init_scale: float = 2.0
    """Weights start from U(-init_scale, init_scale)."""
    batch_size: int = 20
    window: int = 35
    learning_rate: float = 3e-2
    min_rate: float = 1e-4

    def __post_init__(self) -> None:
        super().__post_init__()
        _at_least(self, ("num_states",), 1)
        _above_zero(self, ("init_scale", "input_scale"))
        if self.state == "sigmoid" and not self.delay_transition_softmax:
            raise ValueError("state = 'sigmoid' replaces the delayed softmax: set delay_transition_softmax = true too")

    @property
    def relaxed(self) -> bool:
        """Some switch is on: no HMM any more."""
        return self.transition_input != "none" or self.delay_transition_softmax or self.delay_emission_softmax


@dataclass(frozen=True, kw_only=True)
class AWDLSTMSettings:
    """Merity et al. (2017) on the Penn Treebank. WikiText-2: batch_size 80, input_dropout 0.65, hidden_dropout 0.2."""

    embedding_dim: int = 400
    hidden_dim: int = 1150
    num_layers: int = 3
    """The last one is as wide as the embeddings, which are the output weights too."""
    embedding_dropout: float = 0.1
    """Whole words."""
    input_dropout: float = 0.4
    hidden_dropout: float = 0.25
    """Between layers."""
    output_dropout: float = 0.4
    weight_dropout: float = 0.5
    """Of the weights from hidden to hidden, one draw a window."""
    activation_penalty: float = 2.0
    """AR: times the mean square of the outputs."""
    change_penalty: float = 1.0
    """TAR: times the mean square of what outputs change from word to word."""
    epochs: int = 500
    batch_size: int = 20
    window: int = 70
    """Windows are about this long, sometimes half; the rate goes with their length."""
    learning_rate: float = 30.0
    weight_decay: float = 1.2e-6
    clip: float = 0.25
    checks_per_epoch: int = 1
    patience: int = 5
    """Averaging of weights begins when validation is worse than its best of more than so many checks ago."""
    average_after: int = 0
    """Averaging begins after so many checks at the latest, for short runs; 0: by patience alone."""
    graphs: bool = True
    """On a GPU: run steps as CUDA graphs, one for each length of a window."""

    def __post_init__(self) -> None:
        _at_least(self, ("embedding_dim", "hidden_dim", "num_layers", "epochs", "batch_size", "checks_per_epoch"), 1)
        _at_least(self, ("window",), 10)
        _at_least(self, ("patience",), 1)
        _at_least(self, ("activation_penalty", "change_penalty", "weight_decay", "clip", "average_after"), 0)
        _above_zero(self, ("learning_rate",))
        _parts(self, ("embedding_dropout", "input_dropout", "hidden_dropout", "output_dropout", "weight_dropout"))


BaselineSettings = FeedForwardSettings | LSTMSettings | BuysHMMSettings | AWDLSTMSettings

BASELINES: dict[str, type[BaselineSettings]] = {
    "awd-lstm": AWDLSTMSettings,
    "lstm": LSTMSettings,
    "feedforward": FeedForwardSettings,
    "buys-hmm": BuysHMMSettings,
}
"""By the name that recipes have for them."""


def kind_of(settings: BaselineSettings) -> str:
    return next(name for name, kind in BASELINES.items() if type(settings) is kind)


def _at_least(settings: object, names: Iterable[str], least: int) -> None:
    for name in names:
        value = getattr(settings, name)
        if not (math.isfinite(value) and value >= least):
            raise ValueError(f"{name} is {value}, but must be finite and at least {least}")


def _above_zero(settings: object, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(settings, name)
        if not (math.isfinite(value) and value > 0):
            raise ValueError(f"{name} is {value}, but must be finite and above 0")


def _parts(settings: object, names: Iterable[str]) -> None:
    for name in names:
        value = getattr(settings, name)
        if not 0 <= value < 1:
            raise ValueError(f"{name} is {value}, but must be at least 0 and below 1")
