"""The networks that settings ask for: an encoder of states, and heads for start and emission; `heads` has that of the transition."""

from __future__ import annotations

import torch

from vlhmm.memory import require_memory
from vlhmm.models.encoder import NoEncoder, StateEncoder
from vlhmm.models.heads import (
    EmissionHead,
    FactoredEmission,
    FactoredStart,
    ScalarEmission,
    ScalarStart,
    StartHead,
    UnmaskedEmission,
)
from vlhmm.models.joint_encoder import JointEncoder
from vlhmm.models.settings import ModelSettings
from vlhmm.support import Support

Encoder = StateEncoder | JointEncoder | NoEncoder


def require_agreement(settings: ModelSettings, support: Support, reset_token: int | None) -> None:
    """Settings and support must agree, and what they make must fit in memory."""
    if settings.states_per_block != support.states_per_word:
        raise ValueError(
            f"the settings ask for {settings.states_per_block} states per block, but the support has "
            f"{support.states_per_word}: set states_per_block to that"
        )
    if settings.embeddings == "factored" and not support.partition:
        raise ValueError('embeddings "factored" need words and states partitioned into blocks: use "tied" or "split"')
    if settings.emission == "unmasked":
        require_memory(
            support.num_states * support.num_words * torch.get_default_dtype().itemsize,
            f"an emission table of {support.num_states} states and {support.num_words} words",
            'use fewer states, or emission "blocked"',
            support.group_of_word.device,
        )
    if reset_token is not None and not 0 <= reset_token < support.num_words:
        raise ValueError(f"the reset token is {reset_token}, but tokens go from 0 to {support.num_words - 1}")


def encoder_of(settings: ModelSettings, support: Support) -> Encoder:
    if settings.parameterization == "scalar":
        return NoEncoder(support.num_states)
    if settings.encodes_jointly:
        return JointEncoder(support.num_states, settings)
    return StateEncoder(support.num_states, settings)


def start_head(settings: ModelSettings, support: Support) -> StartHead:
    free_start = settings.parameterization == "scalar" or settings.start == "free"
    return ScalarStart(support.num_states) if free_start else FactoredStart(settings.dim)


def emission_head(settings: ModelSettings, support: Support) -> EmissionHead:
    if settings.emission == "unmasked":
        return UnmaskedEmission(support.num_states, support.num_words)
    if settings.parameterization == "scalar" or settings.emission == "free":
        return ScalarEmission(support.num_words, support.states_per_word)
    return FactoredEmission(support.num_words, settings.dim, settings.emission_bias)
