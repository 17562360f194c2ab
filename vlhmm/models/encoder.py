"""State embeddings and networks: from states to the features that the heads read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn

from vlhmm.models.settings import ModelSettings, Role
from vlhmm.models.unfilled import unfilled
from vlhmm.ops.residual_network import Parameters, residual_networks
from vlhmm.ops.state_rows import state_rows
from vlhmm.precision import EXACT, Numerics, Precision


@dataclass(frozen=True)
class StateFeatures:
    """What n states look like in each of their roles."""

    start: Float[Tensor, "n H"] | None
    """None where it is not needed."""
    out: Float[Tensor, "m H"]
    """The state that a transition leaves; behind the n states further ones, where they were asked for."""
    into: Float[Tensor, "n H"]
    """The state that a transition enters."""
    emit: Float[Tensor, "n H"]


class ResidualMLP(nn.Module):
    """g(ReLU(E W_1)), where g(D) = LayerNorm(ReLU(D W_2) + D).

    Appendix A.3 of Chiu & Rush; the biases are those of their code.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = unfilled(nn.Linear, dim, dim)
        self.second = unfilled(nn.Linear, dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, embedding: Float[Tensor, "n H"], precision: Precision = "highest") -> Float[Tensor, "n H"]:
        (features,) = residual_networks(
            embedding, [[self.tensors()]], [embedding.shape[0]], eps=self.norm.eps, precision=precision
        )
        return features

    def tensors(self) -> Parameters:
        first, second, norm = self.first, self.second, self.norm
        return first.weight, first.bias, second.weight, second.bias, norm.weight, norm.bias


class StateEncoder(nn.Module):
    """An embedding for every state, tied over the roles, split or shared with its block, and for each role a network, two
    (where halves are composed first) or none."""

    embedding: nn.Embedding
    """For entering, or the first role that is read; under tied embeddings for every role."""

    def __init__(self, num_states: int, settings: ModelSettings) -> None:
        super().__init__()
        dim, self.states_per_block, self.start = settings.dim, settings.states_per_block, settings.start
        factored, separate = settings.embeddings == "factored", roles_apart(settings)
        # Values are set by `initialise`.
        self.embedding = unfilled(nn.Embedding, num_states, dim // 2 if factored else dim)
        num_blocks = num_states // self.states_per_block
        self.block_embedding = unfilled(nn.Embedding, num_blocks, dim // 2) if factored else None
        self.out_embedding = unfilled(nn.Embedding, num_states, dim) if "out" in separate else None
        self.emit_embedding = unfilled(nn.Embedding, num_states, dim) if "emit" in separate else None

        neural, roles = settings.parameterization == "neural", settings.roles
        # Appendix A.3: a network composes the halves, unshared, also for the target, which has none of its own in the code.
        depth = neural * (1 + factored)
        target_depth = neural * (settings.target_network + factored)
        self.start_network = _networks(depth if self.start == "entered" else 0, settings)
        self.out_network = _networks(depth if "out" in roles else 0, settings)
        self.into_network = _networks(target_depth if settings.transition != "table" else 0, settings)
        self.emit_network = _networks(depth if "emit" in roles else 0, settings)

    def features(
        self,
        states: Int[Tensor, " n"] | None,
        leaving: Int[Tensor, " l"] | None = None,
        *,
        start: bool = True,
        numerics: Numerics = EXACT,
    ) -> StateFeatures:
        """The features of `states`, equally many of each block, block by block; None: of all. `leaving`: these are left,
        `states` themselves first; None: they alone."""
        # One lookup and one pass of the encoder for all roles, so that the gradient of the large table is computed once.
        num_states = self.embedding.num_embeddings if states is None else states.shape[0]
        leaving = states if leaving is None else leaving
        embedded, first = self._embedded_from(self.embedding, leaving, num_states)
        num_left = embedded.shape[0]
        together: Readers = {"into": (self.into_network, num_states)}
        if start and self.start != "left":
            together["start"] = self.start_network, num_states
        if self.out_embedding is None:
            together["out"] = self.out_network, num_left
        if self.emit_embedding is None:
            together["emit"] = self.emit_network, num_states
        features = _encoded(embedded, first, together, numerics)
        if self.out_embedding is not None:
            of_left, _ = self._embedded_from(self.out_embedding, leaving, num_states)
            features["out"] = _through(self.out_network, of_left, numerics)
        if self.emit_embedding is not None:
            of_emitting, _ = self._embedded_from(self.emit_embedding, states, num_states)
            features["emit"] = _through(self.emit_network, of_emitting, numerics)
        if start and self.start == "left":
            features["start"] = features["out"][:num_states]
        return StateFeatures(features.get("start"), features["out"], features["into"], features["emit"])

    def out(self, states: Int[Tensor, " n"], numerics: Numerics = EXACT) -> Float[Tensor, "n H"]:
        """`features(states).out` alone."""
        embedding = self.embedding if self.out_embedding is None else self.out_embedding
        return _through(self.out_network, self._embedded(embedding, states), numerics)

    def into(self, states: Int[Tensor, " n"] | None, numerics: Numerics = EXACT) -> Float[Tensor, "n H"]:
        """`features(states).into` alone."""
        return _through(self.into_network, self._embedded(self.embedding, states), numerics)

    def _embedded(self, embedding: nn.Embedding, states: Int[Tensor, " n"] | None) -> Float[Tensor, "n H"]:
        return self._embedded_from(embedding, states, 0)[0]

    def _embedded_from(
        self, embedding: nn.Embedding, states: Int[Tensor, " m"] | None, num_first: int
    ) -> tuple[Float[Tensor, "m H"], Float[Tensor, "n H"]]:
        """Of all `states`, and of the first of them alone, which must all differ and come block by block."""
        per_block = None if self.block_embedding is None else self.block_embedding.weight
        if states is not None:
            return state_rows(embedding.weight, states, num_first, per_block)
        embedded = embedding.weight
        if per_block is not None:
            block = per_block[:, None].expand(-1, self.states_per_block, -1).flatten(0, 1)
            embedded = torch.cat([block, embedded], dim=1)
        return embedded, embedded


class NoEncoder(nn.Module):
    """The encoder of a scalar model, whose heads know their states by number: features of width 0."""

    def __init__(self, num_states: int) -> None:
        super().__init__()
        nothing = torch.empty(num_states, 0)
        if nothing.is_meta:
            # Not saved in the checkpoint, so it must be a real tensor even in a model built on "meta".
            nothing = torch.empty(num_states, 0, device="cpu")
        self.register_buffer("nothing", nothing, persistent=False)
        self.nothing: Tensor

    def features(
        self,
        states: Int[Tensor, " n"] | None,
        leaving: Int[Tensor, " l"] | None = None,
        *,
        start: bool = True,
        numerics: Numerics = EXACT,
    ) -> StateFeatures:
        nothing = rows(self.nothing, states)
        out = nothing if leaving is None else rows(self.nothing, leaving)
        return StateFeatures(nothing if start else None, out, nothing, nothing)

    def out(self, states: Int[Tensor, " n"], numerics: Numerics = EXACT) -> Float[Tensor, "n H"]:
        return rows(self.nothing, states)

    def into(self, states: Int[Tensor, " n"] | None, numerics: Numerics = EXACT) -> Float[Tensor, "n H"]:
        return rows(self.nothing, states)


def roles_apart(settings: ModelSettings) -> tuple[Role, ...]:
    """Roles with an embedding of their own beside the first."""
    return settings.roles[1:] if settings.embeddings == "split" else ()


def rows(per_state: Shaped[Tensor, "Z ..."], states: Int[Tensor, " n"] | None) -> Shaped[Tensor, "n ..."]:
    """per_state[states]; None: all of it."""
    # The backward pass of `index_select` does not sort its indices, unlike that of advanced indexing.
    return per_state if states is None else per_state.index_select(0, states)


Readers = dict[str, tuple[nn.Module, int]]
"""By role: the network, and how many rows of the embedding it reads."""


def _encoded(
    embedding: Float[Tensor, "m H"], first: Float[Tensor, "n H"], readers: Readers, numerics: Numerics
) -> dict[str, Tensor]:
    """What each reader makes of its rows, all or the first; residual networks run side by side."""
    chains = {role: chain for role, (network, _) in readers.items() if (chain := _residual_networks(network))}
    features = dict[str, Tensor]()
    if chains:
        some = next(iter(chains.values()))[0]
        made = residual_networks(
            embedding,
            [[network.tensors() for network in chain] for chain in chains.values()],
            [readers[role][1] for role in chains],
            eps=some.norm.eps,
            precision=numerics.tables,
        )
        features |= zip(chains, made, strict=True)
    others = {role: reader for role, reader in readers.items() if role not in chains}
    return features | {
        role: network(first if count == first.shape[0] else embedding) for role, (network, count) in others.items()
    }


def _through(network: nn.Module, embedding: Float[Tensor, "n H"], numerics: Numerics) -> Float[Tensor, "n H"]:
    """What a network of `_networks` makes of the embedding."""
    for residual in _residual_networks(network):
        embedding = residual(embedding, numerics.tables)
    return embedding


def _residual_networks(network: nn.Module) -> list[ResidualMLP]:
    """Those that `_networks` made a network of, in their order."""
    return [module for module in network.modules() if isinstance(module, ResidualMLP)]


def _networks(depth: int, settings: ModelSettings) -> nn.Module:
    """So many residual networks, one after the other."""
    networks = [ResidualMLP(settings.dim) for _ in range(depth)]
    match networks:
        case []:
            return nn.Identity()
        case [network]:
            return network
        case _:
            return nn.Sequential(*networks)
