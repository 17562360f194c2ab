"""Soft evidence: an HMM whose emission is given at each position, as a log-likelihood of every state.

It is a dense HMM with uninformative words, log p(word | z) = 0; the log-likelihoods are in `Batch.log_evidence`.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.inference.gather import Batch
from vlhmm.inference.posterior import as_table
from vlhmm.records import convert
from vlhmm.support import dense_support
from vlhmm.tables import Belief, Tables

NO_TOKEN = -1
"""The token of a belief after soft evidence."""
SOFT, RESET = 0, 1
"""The words of `evidence_tables`: that of every position, and one after which the start distribution follows."""


def evidence_tables(tables: Tables) -> Tables:
    """The same start and transition with every state possible at every position."""
    transition = tables.transition
    if not (tables.support.dense or transition.by_products):
        # A blocked transition may have no tile over all states.
        transition = as_table(tables).transition
    return Tables(
        convert(dense_support(2, tables.num_states), device=tables.device),
        tables.log_start,
        transition,
        tables.log_emission.new_zeros(2, tables.num_states),
        None if tables.reset_token is None else RESET,
        tables.precision,
    )


def evidence_batch(log_likelihoods: Float[Tensor, "B T Z"], lengths: Int[Tensor, " B"]) -> Batch:
    words = torch.full(log_likelihoods.shape[:2], SOFT, device=log_likelihoods.device)
    return Batch(words, lengths, log_evidence=log_likelihoods)


def over_all_states(belief: Belief, tables: Tables) -> Belief:
    """A belief of `tables`, after tokens or after soft evidence, as one of their `evidence_tables`."""
    log_probs = belief.log_probs
    if log_probs.shape[1] != tables.num_states:
        states = tables.support.states_of(belief.token)
        log_probs = log_probs.new_full((log_probs.shape[0], tables.num_states), -torch.inf)
        log_probs = log_probs.scatter(1, states, belief.log_probs)
    elif not tables.support.dense:
        # One group of all states in another order, or evidence, which has them in order.
        after_token = (belief.token != NO_TOKEN)[:, None]
        states = tables.support.states_of(belief.token.clamp(min=0))
        if states.shape[1] == tables.num_states:
            log_probs = torch.where(after_token, torch.zeros_like(log_probs).scatter(1, states, log_probs), log_probs)
    begins_anew = torch.zeros_like(belief.token, dtype=torch.bool)
    if tables.reset_token is not None:
        begins_anew = belief.token == tables.reset_token
    return Belief(torch.where(begins_anew, RESET, SOFT), log_probs)


def after_evidence(belief: Belief) -> Belief:
    """A belief of `evidence_tables` as one of the tables that they were made of."""
    return replace(belief, token=torch.full_like(belief.token, NO_TOKEN))


def before_tokens(belief: Belief, tables: Tables) -> Belief:
    """A belief that tokens can follow: after soft evidence it gets a token that is not the reset token."""
    soft = belief.token == NO_TOKEN
    if not bool(soft.any()):
        return belief
    if not tables.support.dense:
        raise ValueError(
            f"the belief is over all {tables.num_states} states after log_likelihoods, but a token of this HMM can follow "
            f"{tables.support.states_per_word} states only: continue with log_likelihoods, e.g. hmm.emission[:, token].log()"
        )
    plain = next((word for word in (0, 1) if word != tables.reset_token and word < tables.num_words), None)
    if plain is None:
        raise ValueError(
            "the belief is one after log_likelihoods, but the only word of this HMM is its reset token: use with_reset_token(None)"
        )
    return replace(belief, token=torch.where(soft, plain, belief.token))
