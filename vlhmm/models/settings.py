"""What distinguishes one model from another; written to and read from config.json."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

from vlhmm.precision import Precision
from vlhmm.settings import settings_from

Role = Literal["into", "out", "emit"]
"""What a state's features are read for: it is entered, it is left, it emits."""


@dataclass(frozen=True)
class ModelSettings:
    """What distinguishes one model from another; it is saved with the model.

    Example:
        >>> from vlhmm.models import ModelSettings
        >>> ModelSettings(dim=64, transition="block-factored").states_per_block
        256
    """

    parameterization: Literal["neural", "linear", "scalar", "transformer"] = "neural"
    """neural: networks of state embeddings; linear: the embeddings alone; scalar: free logits; transformer: a decoder that reads the
    embeddings of all states as one sequence, in the order of their numbers.
    """
    states_per_block: int = 256
    """K, the number of states that can emit a word."""
    dim: int = 256
    """H, the width of embeddings and networks. A scalar model has none."""
    transition: Literal["softmax", "block-factored", "low-rank", "table"] = "softmax"
    """softmax: over all states; block-factored: over blocks, then over the states of a block; low-rank: over `rank` classes, then
    over all states (Chiu, Deng & Rush 2021); table: free logits.
    """
    target_network: bool = False
    """Target states have a network (Chiu & Rush, eq. 9); without it their raw embedding is used (the code of that paper)."""
    embeddings: Literal["tied", "split", "factored"] = "tied"
    """tied: one embedding for each state; split: one each as source, as target and for emission; factored: one half belongs to the
    state, the other to its block, and in a neural model a further network for each role composes the two.
    """
    out_scale: float = 1.0
    """Factor of the source features in out . into: below 1, training begins with flatter transitions."""
    emission: Literal["blocked", "free", "unmasked"] = "blocked"
    """blocked: normalised over the words that a state can emit, from its features, or in scalar models from free logits; free: the
    same from free logits in every model; unmasked, for scalar models: over all words, with a logit for every pair. The probability
    of words of other blocks is then lost: perplexity is an upper bound, and the tables can be scored but not queried otherwise.
    """
    emission_bias: bool = True
    """Every word has a bias."""
    emission_floor: float = 0.0
    """The part of the emission of every state that is uniform over the words it can emit. Words that training never saw then stay
    possible; for small texts.
    """
    initialisation: Literal["code", "paper", "normal"] = "code"
    """code: embeddings N(0, 1), the rest as PyTorch does; paper: Kaiming uniform weights, biases 0; normal: embeddings, those of
    words too, N(0, 1), free logits N(0, init_scale^2), the rest as PyTorch does."""
    precision: Precision = "bf16"
    """What matrix products on a GPU read in training, in networks, recursion, normaliser and emissions; a CPU computes in float32."""
    init_scale: float = 0.01
    """Free logits start from U(-init_scale, init_scale)."""
    start: Literal["entered", "left", "free"] = "entered"
    """What p(z_1) is computed from. entered: features of the state as a target, in a neural model by Chiu & Rush with a network of
    its own; left: features of the state as a source (H_in w of Lee & Berg-Kirkpatrick); free: a free logit for each state.
    """
    network: Literal["residual", "layers"] = "residual"
    """Of a neural model. residual: that of Chiu & Rush; layers: that of Lee & Berg-Kirkpatrick, LayerNorm(ReLU(y) + y) with
    y = ReLU(E W_1) W_2, one for each role. The next four settings leave out parts of it.
    """
    layers: int = 2
    """Network "layers": 2, or 1 for y = E W."""
    skip: bool = True
    """Network "layers": y is added to its ReLU; without: the ReLU alone. Needs 2 layers."""
    relu: bool = True
    """Network "layers": without it the ReLUs are left out."""
    layer_norm: bool = True
    """Network "layers": normalise the result."""
    monolithic: bool = False
    """Network "layers", and transformer: one network for all roles, with a last layer that is wider by their number; with split
    embeddings the same network reads each.
    """
    decoder_layers: int = 4
    """Transformer: number of layers."""
    decoder_heads: int = 4
    """Transformer: heads of attention, each dim / decoder_heads wide."""
    decoder_kv_heads: int = 0
    """Transformer: heads of keys and values, each shared by several of the queries; 0: one for each."""
    decoder_hidden: int = 0
    """Transformer: width of the gated layers; 0: 8 for every 3 of dim."""
    causal: bool = True
    """Transformer: a state attends to states of lower number alone, as in a pretrained body; without it, to all."""
    rope_theta: float = 10_000.0
    """Transformer: base of the rotary positions."""
    norm_eps: float = 1e-5
    """Transformer: added to the mean square in its norms."""
    embedding_scale: float = 1.0
    """Multiplies the state embeddings that training starts from."""
    word_scale: float = 1.0
    """Multiplies the word embeddings that training starts from."""
    rank: int = 64
    """Number of classes of a low-rank transition."""

    def __post_init__(self) -> None:
        for name in ("states_per_block", "dim", "decoder_layers", "decoder_heads", "rank"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("out_scale", "init_scale", "embedding_scale", "word_scale", "decoder_kv_heads", "decoder_hidden"):
            if not math.isfinite(getattr(self, name)) or getattr(self, name) < 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be finite and at least 0")
        if not 0 <= self.emission_floor < 1:
            raise ValueError(f"emission_floor is {self.emission_floor}, but must be at least 0 and below 1")
        for name in ("rope_theta", "norm_eps"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0):
                raise ValueError(f"{name} is {getattr(self, name)}, but must be finite and above 0")
        self._check_matrices()
        self._check_networks()
        if self.parameterization == "transformer":
            self._check_decoder()

    @property
    def roles(self) -> tuple[Role, ...]:
        """What the features of a state are used for; free logits need none."""
        if self.parameterization == "scalar":
            return ()
        factored = self.transition != "table"
        read = {
            "into": factored or self.start == "entered",
            "out": factored or self.start == "left",
            "emit": self.emission == "blocked",
        }
        roles: tuple[Role, ...] = ("into", "out", "emit")
        return tuple(role for role in roles if read[role])

    @property
    def encodes_jointly(self) -> bool:
        """Whether one network computes the features of all states together."""
        layered = self.parameterization == "neural" and self.network == "layers"
        return layered or self.parameterization == "transformer"

    @property
    def key_heads(self) -> int:
        """Number of key and value heads of a transformer."""
        return self.decoder_kv_heads or self.decoder_heads

    @property
    def gated_dim(self) -> int:
        """Width of the gated layers of a transformer."""
        # Three such matrices are as many parameters as two of 4 dim.
        return self.decoder_hidden or max(1, round(self.dim / 3)) * 8

    def to_dict(self) -> dict[str, Any]:
        """Return all settings as a dictionary, for JSON.

        Returns:
            Name and value of each setting.

        Example:
            >>> from vlhmm.models import ModelSettings
            >>> ModelSettings(dim=64).to_dict()["dim"]
            64
        """
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> ModelSettings:
        """Make settings from names and values, each of which is checked.

        Args:
            values: Name and value of each setting that is not the default.

        Returns:
            The settings.

        Raises:
            ValueError: A name is unknown, or a value has the wrong type or is out of range.

        Example:
            >>> from vlhmm.models import ModelSettings
            >>> ModelSettings.from_dict({"dim": 64}).dim
            64
        """
        return settings_from(cls, values)

    def _check_matrices(self) -> None:
        if self.parameterization == "scalar" and self.transition != "table":
            raise ValueError(
                f"transition {self.transition!r} does not go with parameterization 'scalar': a scalar model has transition "
                '"table"'
            )
        if self.parameterization != "scalar" and not self.roles:
            raise ValueError(
                f"start, transition and emission are all free, so nothing of parameterization {self.parameterization!r} is "
                'left: use parameterization "scalar"'
            )
        if self.embeddings == "factored" and self.dim % 2:
            raise ValueError(f"dim is {self.dim}, but factored embeddings are two halves of it: make it even")
        if self.emission == "unmasked" and self.parameterization != "scalar":
            raise ValueError(
                f'emission "unmasked" is for scalar models, not for parameterization {self.parameterization!r}: use "blocked"'
            )

    def _check_networks(self) -> None:
        if self.layers not in (1, 2):
            raise ValueError(f"layers is {self.layers}; known are: 1, 2")
        if self.monolithic and not self.encodes_jointly:
            raise ValueError(
                'monolithic is for network "layers" of a neural model and for transformers: the others have no one network'
            )
        if self.encodes_jointly and self.embeddings == "factored":
            raise ValueError(
                'embeddings "factored" go with linear models and network "residual" alone: use "tied" or "split"'
            )
        if self.parameterization == "neural" and self.network == "layers" and self.skip:
            if self.layers == 1:
                raise ValueError("skip needs 2 layers, but layers is 1: set skip to false")
            if not self.relu:
                raise ValueError(
                    "skip adds a layer to its ReLU, but relu is false, so it would double it: set skip to false"
                )

    def _check_decoder(self) -> None:
        heads, key_heads = self.decoder_heads, self.key_heads
        if self.dim % (2 * heads):
            raise ValueError(
                f"dim is {self.dim}, but {heads} decoder_heads with rotary positions need a multiple of {2 * heads}"
            )
        if heads % key_heads:
            raise ValueError(
                f"decoder_heads is {heads}, which is no multiple of decoder_kv_heads, {key_heads}: each is shared by equally many"
            )
