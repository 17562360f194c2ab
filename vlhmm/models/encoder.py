"""State embeddings and networks: from states to the features that the heads read."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int, Shaped
from torch import Tensor, nn
from torch.nn.utils import skip_init

from vlhmm.models.settings import ModelSettings


@dataclass(frozen=True)
class StateFeatures:
    """What n states look like in each of their roles."""

    start: Float[Tensor, "n H"]
    out: Float[Tensor, "n H"]
    """The state that a transition leaves."""
    into: Float[Tensor, "n H"]
    """The state that a transition enters."""
    emit: Float[Tensor, "n H"]


class ResidualMLP(nn.Module):
    """g(ReLU(E W_1)), where g(D) = LayerNorm(ReLU(D W_2) + D).

    Appendix A.3 of Chiu & Rush; the biases are those of their code.
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.first = skip_init(nn.Linear, dim, dim)
        self.second = skip_init(nn.Linear, dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, embedding: Float[Tensor, "n H"]) -> Float[Tensor, "n H"]:
        hidden = self.first(embedding).relu()
        normed: Tensor = self.norm(self.second(hidden).relu() + hidden)
        return normed


class StateEncoder(nn.Module):
    """An embedding for every state, tied over the roles or split, and a network (or none) for each role."""

    embedding: nn.Embedding
    """For entering, and under tied embeddings for every role."""

    def __init__(self, num_states: int, settings: ModelSettings) -> None:
        super().__init__()
        dim = settings.dim
        # `skip_init` leaves the values to `initialise`: nothing here draws from the global generator.
        self.embedding = skip_init(nn.Embedding, num_states, dim)
        split = settings.embeddings == "split"
        self.out_embedding = skip_init(nn.Embedding, num_states, dim) if split else None
        self.emit_embedding = skip_init(nn.Embedding, num_states, dim) if split else None

        neural = settings.parameterization == "neural"
        self.start_network = ResidualMLP(dim) if neural else nn.Identity()
        self.out_network = ResidualMLP(dim) if neural else nn.Identity()
        self.into_network = ResidualMLP(dim) if neural and settings.target_network else nn.Identity()
        self.emit_network = ResidualMLP(dim) if neural else nn.Identity()

    def features(self, states: Int[Tensor, " n"] | None) -> StateFeatures:
        """The features of `states`; None: of all."""
        shared = rows(self.embedding.weight, states)
        out = shared if self.out_embedding is None else rows(self.out_embedding.weight, states)
        emit = shared if self.emit_embedding is None else rows(self.emit_embedding.weight, states)
        return StateFeatures(
            start=self.start_network(shared),
            out=self.out_network(out),
            into=self.into_network(shared),
            emit=self.emit_network(emit),
        )

    def out(self, states: Int[Tensor, " n"]) -> Float[Tensor, "n H"]:
        """`features(states).out` alone."""
        embedding = self.embedding if self.out_embedding is None else self.out_embedding
        features: Tensor = self.out_network(rows(embedding.weight, states))
        return features

    def into(self, states: Int[Tensor, " n"] | None) -> Float[Tensor, "n H"]:
        """`features(states).into` alone."""
        features: Tensor = self.into_network(rows(self.embedding.weight, states))
        return features


class NoEncoder(nn.Module):
    """The encoder of a scalar model, whose heads know their states by number: features of width 0."""

    def __init__(self, num_states: int) -> None:
        super().__init__()
        self.register_buffer("nothing", torch.empty(num_states, 0), persistent=False)
        self.nothing: Tensor

    def features(self, states: Int[Tensor, " n"] | None) -> StateFeatures:
        nothing = rows(self.nothing, states)
        return StateFeatures(nothing, nothing, nothing, nothing)

    def out(self, states: Int[Tensor, " n"]) -> Float[Tensor, "n H"]:
        return rows(self.nothing, states)

    def into(self, states: Int[Tensor, " n"] | None) -> Float[Tensor, "n H"]:
        return rows(self.nothing, states)


def rows(per_state: Shaped[Tensor, "Z ..."], states: Int[Tensor, " n"] | None) -> Shaped[Tensor, "n ..."]:
    """per_state[states]; None: all of it."""
    # Unlike indexing, `index_select` has a gradient that sorts nothing.
    return per_state if states is None else per_state.index_select(0, states)
