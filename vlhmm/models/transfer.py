"""What a trained language model can give to a model before training: a decoder's body, state and word embeddings."""

from __future__ import annotations

from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from vlhmm.models.decoder import Decoder
from vlhmm.models.encoder import StateEncoder
from vlhmm.models.heads import FactoredEmission
from vlhmm.models.joint_encoder import JointEncoder
from vlhmm.models.model import Model
from vlhmm.models.settings import ModelSettings

_FIRST = "layers.0.self_attn.q_proj.weight"
"""Every body has it, whatever stands before its name."""


def body_settings(language_model: nn.Module) -> dict[str, Any]:
    """The settings by which a transformer model's decoders are of the size and kind of `language_model`'s body.

    Of a model of transformers, or of any other with parameters named as in Llama and such a `config`.
    """
    body, config = _body(language_model), _config(language_model)
    num_layers = 1 + max(int(name.split(".")[1]) for name in body if name.startswith("layers."))
    return {
        "dim": body["norm.weight"].shape[0],
        "decoder_layers": num_layers,
        "decoder_hidden": body["layers.0.mlp.gate_proj.weight"].shape[0],
        **config,
    }


@torch.no_grad()
def load_body(model: Model, language_model: nn.Module, *, centred: bool = False) -> None:
    """Copies the body of `language_model`, not its vocabulary, into every decoder of `model`.

    Behind a trained body all states are much alike, and words that they have in common drown what tells them apart: training
    may stay with the frequencies of words for long. `centred`: the new layer behind it takes off what they have in common, and
    gives features the spread that they had before.
    """
    decoders = [module for module in model.modules() if isinstance(module, Decoder)]
    if not decoders:
        raise ValueError(
            f"a model of parameterization {model.settings.parameterization!r} has no decoder: a body fits "
            'parameterization "transformer" alone'
        )
    wanted, own = body_settings(language_model), _own(model.settings)
    different = [f"{name} = {wanted[name]!r}, not {own[name]!r}" for name in wanted if wanted[name] != own[name]]
    if different:
        raise ValueError(f"the body has {'; '.join(different)}: build the model with the settings of `body_settings`")
    body = _body(language_model)
    for name, tensor in body.items():
        if not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} of the body is not finite: its weights are broken")
    for decoder in decoders:
        unfit = set(body).symmetric_difference(decoder.state_dict())
        if unfit:
            raise ValueError(f"the body is not Llama's: {', '.join(sorted(unfit)[:3])} is in one of the two alone")
    behind = _LayerBehindBody(model) if centred else None
    for decoder in decoders:
        decoder.load_state_dict(body)
    if behind is not None:
        behind.centre()


@torch.no_grad()
def set_state_embeddings(model: Model, vectors: Float[Tensor, "Z H"]) -> None:
    """Every state's embedding, in each of its roles, is its row, say the centroid of its cluster."""
    for parameter in state_embeddings(model):
        _copy(parameter, vectors, "state vectors", "states")


@torch.no_grad()
def set_word_embeddings(model: Model, vectors: Float[Tensor, "X H"]) -> None:
    """Every word's embedding is its row, say of the output matrix of a teacher with the same vocabulary."""
    for parameter in word_embeddings(model):
        _copy(parameter, vectors, "word vectors", "words")


def state_embeddings(model: Model) -> list[nn.Parameter]:
    """One, or one for each role where embeddings are split."""
    encoder = model.encoder
    if not isinstance(encoder, StateEncoder | JointEncoder) or model.settings.embeddings == "factored":
        raise ValueError(
            f"a model of parameterization {model.settings.parameterization!r} with embeddings {model.settings.embeddings!r} "
            'has no embedding for each state alone: use embeddings "tied" or "split" of another parameterization'
        )
    tables: tuple[nn.Embedding | None, ...] = (encoder.embedding, encoder.out_embedding, encoder.emit_embedding)
    return [table.get_parameter("weight") for table in tables if table is not None]


def word_embeddings(model: Model) -> list[nn.Parameter]:
    """One: the weights of the emission's last layer."""
    if not isinstance(model.emission, FactoredEmission):
        raise ValueError('the emission has free logits and no word embeddings: use emission "blocked" of another model')
    return [model.emission.words.get_parameter("weight")]


def split_frozen(
    model: Model, frozen: Literal["states", "words", "both"]
) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
    """All parameters: embeddings that the first part of training leaves as they are, and the others.

    They belong in two groups of the optimizer, that of the embeddings with rate 0 as long as they are frozen. A gradient of 0
    would not freeze them: weight decay is applied all the same.
    """
    embeddings = state_embeddings(model) if frozen != "words" else []
    if frozen != "states":
        embeddings = embeddings + word_embeddings(model)
    numbers = {id(parameter) for parameter in embeddings}
    return embeddings, [parameter for parameter in model.parameters() if id(parameter) not in numbers]


def _copy(parameter: nn.Parameter, vectors: Tensor, what: str, rows: str) -> None:
    if vectors.shape != parameter.shape:
        raise ValueError(
            f"the {what} are {vectors.shape[0]} of width {vectors.shape[1]}, but the model has {parameter.shape[0]} {rows} "
            f"and dim {parameter.shape[1]}: project them, or build the model with that dim"
        )
    if not bool(vectors.isfinite().all()):
        row = int((~vectors.isfinite()).any(dim=1).nonzero()[0, 0])
        raise ValueError(f"the {what} are not finite in row {row}: leave it out, or fix their source")
    parameter.copy_(vectors)


class _LayerBehindBody:
    """The layer that makes the features of all roles from what the one decoder makes of the states."""

    def __init__(self, model: Model) -> None:
        encoder = model.encoder
        network = encoder.network if isinstance(encoder, JointEncoder) else None
        if not isinstance(encoder, JointEncoder) or not isinstance(network, nn.Sequential):
            raise ValueError(
                "features can be centred where one decoder is followed by a layer for all roles: build the model with "
                'monolithic = true and embeddings "tied"'
            )
        decoder, layer = network
        assert isinstance(layer, nn.Linear)
        self._decoder, self._layer = decoder, layer
        self._states: Tensor = encoder.embedding.weight
        self._spread_before = self._spread(self._layer(self._encoded()))

    def centre(self) -> None:
        """Features of mean 0 over the states, as far apart as when this was made."""
        encoded = self._encoded()
        features: Tensor = self._layer(encoded)
        spread = self._spread(features)
        # A smaller spread is rounding error.
        if not spread > 1e-5 * features.square().mean().sqrt():
            raise ValueError(
                f"the body makes the same of all {len(encoded)} states, so nothing is left of them when they are centred: "
                "take another body, or at least 2 states"
            )
        self._layer.weight.mul_(self._spread_before / spread)
        self._layer.bias.copy_(-(self._layer.weight @ encoded.mean(0)))

    def _encoded(self) -> Float[Tensor, "Z H"]:
        encoded: Tensor = self._decoder(self._states)
        return encoded

    @staticmethod
    def _spread(features: Float[Tensor, "Z W"]) -> Float[Tensor, ""]:
        return (features - features.mean(0)).square().mean().sqrt()


def _body(language_model: nn.Module) -> dict[str, Tensor]:
    """Its layers and last norm, under Llama's names."""
    state = language_model.state_dict()
    prefix = next((name.removesuffix(_FIRST) for name in state if name.endswith(_FIRST)), None)
    if prefix is None:
        raise ValueError(f"{type(language_model).__name__} has no {_FIRST}: its body is not named as Llama's")
    body = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    return {name: tensor for name, tensor in body.items() if _of_body(name)}


def _of_body(name: str) -> bool:
    return name.startswith("layers.") or name == "norm.weight"


def _config(language_model: nn.Module) -> dict[str, Any]:
    """Configuration values that do not follow from the shapes of parameters."""
    config: Any = getattr(language_model, "config", None)
    if config is None:
        raise ValueError(f"{type(language_model).__name__} has no config that tells its heads and positions")
    if getattr(config, "hidden_act", "silu") != "silu":
        raise ValueError(f"the body's activation is {config.hidden_act!r}, but must be 'silu' as in Llama")
    rope = getattr(config, "rope_parameters", None) or {}
    kind = rope.get("rope_type", "default")
    if kind != "default":
        raise ValueError(f"the body's rotary positions are of type {kind!r}, but must be 'default'")
    return {
        "decoder_heads": int(config.num_attention_heads),
        "decoder_kv_heads": int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads),
        "rope_theta": float(rope.get("rope_theta") or config.rope_theta),
        "norm_eps": float(config.rms_norm_eps),
    }


def _own(settings: ModelSettings) -> dict[str, Any]:
    return {**settings.to_dict(), "decoder_kv_heads": settings.key_heads, "decoder_hidden": settings.gated_dim}
