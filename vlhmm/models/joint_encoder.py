"""The networks of Lee & Berg-Kirkpatrick: one for each role or one for all, of layers or a transformer."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlhmm.models.decoder import Decoder, DecoderShape
from vlhmm.models.encoder import StateFeatures, roles_apart, rows
from vlhmm.models.settings import ModelSettings, Role
from vlhmm.models.unfilled import unfilled
from vlhmm.precision import EXACT, Numerics

Layer = Callable[[Tensor], Tensor]


class LayeredNetwork(nn.Module):
    """LayerNorm(ReLU(y) + y) of y = ReLU(E W_1) W_2, or of y = E W; parts are left out as the settings say."""

    def __init__(self, settings: ModelSettings, out_dim: int) -> None:
        super().__init__()
        dim = settings.dim
        self.skip, self.relu = settings.skip, settings.relu
        self.first = unfilled(nn.Linear, dim, dim) if settings.layers == 2 else None
        self.last = unfilled(nn.Linear, dim, out_dim)
        self.norm = nn.LayerNorm(out_dim) if settings.layer_norm else None

    def forward(self, embedding: Float[Tensor, "n H"]) -> Float[Tensor, "n W"]:
        return self.through(embedding, self.first, self.last, self.norm)

    def through(
        self, embedding: Float[Tensor, "... n H"], first: Layer | None, last: Layer, norm: Layer | None
    ) -> Float[Tensor, "... n W"]:
        """What a network of this form makes of the embedding by these layers."""
        hidden = embedding if first is None else self._activated(first(embedding))
        before = last(hidden)
        after = self._activated(before)
        if self.skip:
            after = after + before
        return after if norm is None else norm(after)

    def _activated(self, hidden: Tensor) -> Tensor:
        return hidden.relu() if self.relu else hidden


class JointEncoder(nn.Module):
    """An embedding for every state, or one for each of its roles, and a network for each role or one for all.

    All states are encoded, whichever are needed: a decoder reads them as one sequence.
    """

    embedding: nn.Embedding
    """For entering, or the first role that is read; under tied embeddings for every role."""

    def __init__(self, num_states: int, settings: ModelSettings) -> None:
        super().__init__()
        self.roles, self.start = settings.roles, settings.start
        separate = roles_apart(settings)
        self.embedding = unfilled(nn.Embedding, num_states, settings.dim)
        self.out_embedding = unfilled(nn.Embedding, num_states, settings.dim) if "out" in separate else None
        self.emit_embedding = unfilled(nn.Embedding, num_states, settings.dim) if "emit" in separate else None
        self.network: nn.Module | None = None
        self.networks = nn.ModuleDict()
        self.cuts_output = settings.monolithic and not separate
        if settings.monolithic:
            self.network = _network(settings, len(self.roles) if self.cuts_output else 1)
        else:
            self.networks = nn.ModuleDict({role: _network(settings, 1) for role in self.roles})

    def features(
        self,
        states: Int[Tensor, " n"] | None,
        leaving: Int[Tensor, " l"] | None = None,
        *,
        start: bool = True,
        numerics: Numerics = EXACT,
    ) -> StateFeatures:
        """As `StateEncoder.features`."""
        encoded = self._encoded(numerics)
        nothing = self.embedding.weight[:, :0]
        into, out, emit = (encoded.get(role, nothing) for role in ("into", "out", "emit"))
        begins = rows(out if self.start == "left" else into, states) if start else None
        return StateFeatures(
            start=begins,
            out=rows(out, states if leaving is None else leaving),
            into=rows(into, states),
            emit=rows(emit, states),
        )

    def out(self, states: Int[Tensor, " n"], numerics: Numerics = EXACT) -> Float[Tensor, "n H"]:
        """`features(states).out` alone."""
        return self.features(states, start=False, numerics=numerics).out

    def into(self, states: Int[Tensor, " n"] | None, numerics: Numerics = EXACT) -> Float[Tensor, "n H"]:
        """`features(states).into` alone."""
        return self.features(states, start=False, numerics=numerics).into

    def _encoded(self, numerics: Numerics) -> dict[Role, Float[Tensor, "Z H"]]:
        if self.network is not None and self.cuts_output:
            parts = _through(self.network, self.embedding.weight, numerics).chunk(len(self.roles), dim=1)
            return {role: part.contiguous() for role, part in zip(self.roles, parts, strict=True)}
        networks = [self.network or self.networks[role] for role in self.roles]
        embeddings = [self._embedding(role) for role in self.roles]
        layered = [network for network in networks if isinstance(network, LayeredNetwork)]
        if self.network is None and len(layered) == len(networks):
            made = _side_by_side(layered, embeddings)
        else:
            made = [_through(*pair, numerics) for pair in zip(networks, embeddings, strict=True)]
        return dict(zip(self.roles, made, strict=True))

    def _embedding(self, role: Role) -> Float[Tensor, "Z H"]:
        own = {"into": None, "out": self.out_embedding, "emit": self.emit_embedding}[role]
        weight: Tensor = (own or self.embedding).weight
        return weight


def _through(network: nn.Module, embedding: Float[Tensor, "Z H"], numerics: Numerics) -> Float[Tensor, "Z W"]:
    """What a network of `_network` makes of the embedding."""
    for layer in network if isinstance(network, nn.Sequential) else [network]:
        embedding = layer(embedding, numerics.tables) if isinstance(layer, Decoder) else layer(embedding)
    return embedding


def _side_by_side(
    networks: Sequence[LayeredNetwork], embeddings: Sequence[Float[Tensor, "Z H"]]
) -> Sequence[Float[Tensor, "Z H"]]:
    """What each network makes of its embedding. They have equal shapes and are small, so they are batched: on a GPU one takes as long as all."""
    firsts = [network.first for network in networks if network.first is not None]
    norms = [network.norm for network in networks if network.norm is not None]
    features = networks[0].through(
        torch.stack(list(embeddings)),
        _linear_side_by_side(firsts) if firsts else None,
        _linear_side_by_side([network.last for network in networks]),
        _norm_side_by_side(norms) if norms else None,
    )
    return features.unbind()


def _linear_side_by_side(layers: Sequence[nn.Linear]) -> Layer:
    weight, bias = torch.stack([layer.weight for layer in layers]), torch.stack([layer.bias for layer in layers])
    return lambda values: torch.baddbmm(bias[:, None], values, weight.mT)


def _norm_side_by_side(layers: Sequence[nn.LayerNorm]) -> Layer:
    weight, bias = torch.stack([layer.weight for layer in layers]), torch.stack([layer.bias for layer in layers])
    shape, eps = layers[0].normalized_shape, layers[0].eps
    return lambda values: torch.addcmul(
        bias[:, None], nn.functional.layer_norm(values, shape, eps=eps), weight[:, None]
    )


def _network(settings: ModelSettings, num_roles: int) -> nn.Module:
    """From an embedding to the features of so many roles, side by side."""
    if settings.parameterization == "neural":
        return LayeredNetwork(settings, num_roles * settings.dim)
    shape = DecoderShape(
        settings.dim,
        settings.decoder_layers,
        settings.decoder_heads,
        settings.key_heads,
        settings.gated_dim,
        settings.causal,
        settings.rope_theta,
        settings.norm_eps,
    )
    decoder = Decoder(shape)
    if num_roles == 1:
        return decoder
    # With equal features for all roles the transition logits would be symmetric.
    return nn.Sequential(decoder, unfilled(nn.Linear, settings.dim, num_roles * settings.dim))
