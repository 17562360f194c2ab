"""Gradients of the likelihood: posteriors, and finite differences."""

import numpy as np
import pytest
import torch
from kinds import SEEDS, close, every_dtype, every_kind, some_sentences, table_kinds
from oracle import Kind, assemble, ragged, random_hmm, random_logits, random_support

import vlhmm
from vlhmm.tables import Belief, Tables
from vlhmm.transitions import TableTransition


def leaves(tables: Tables) -> Tables:
    """The same table HMM with tensors that collect gradients."""
    return Tables(
        tables.support,
        tables.log_start.clone().requires_grad_(),
        TableTransition(tables.transition.log_prob.clone().requires_grad_()),
        tables.log_emission.clone().requires_grad_(),
        tables.reset_token,
    )


@every_dtype
@table_kinds
def test_gradient_equals_posterior(kind, dtype):
    for seed in SEEDS:
        oracle, tables = random_hmm(kind, seed, dtype)
        tables = leaves(tables)
        hmm = vlhmm.HMM(tables)
        sentences = some_sentences(oracle, seed)
        tokens, lengths = ragged(sentences, padding=-5)
        weights = torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=dtype)
        (weights * hmm.log_prob(tokens, lengths)).sum().backward()
        counts = [oracle.counts(sentence) for sentence in sentences]
        start, transition, emission = (
            sum(weight * part for weight, part in zip(weights.tolist(), parts, strict=True))
            for parts in zip(*counts, strict=True)
        )
        states = tables.support.states_of(torch.arange(oracle.num_words)).numpy()
        close(tables.log_start.grad, start, dtype)
        close(tables.transition.log_prob.grad, transition, dtype)
        close(tables.log_emission.grad, np.take_along_axis(emission.T, states, axis=1), dtype)


@pytest.mark.parametrize("with_belief", [False, True])
@every_kind
def test_gradient_equals_finite_differences(kind, with_belief):
    random = np.random.default_rng(11)
    support = random_support(kind.support, random)
    logits = random_logits(kind, support, random)
    tables = assemble(kind, support, logits)
    oracle, _ = random_hmm(kind, 11)
    sentences = some_sentences(oracle, 11, lengths=(3, 1))
    tokens, lengths = ragged(sentences)
    belief = None
    if with_belief:
        # One past that ends in the reset token where there is one, one that need not.
        last = tables.reset_token or 0
        belief = hmm_belief(tables, torch.tensor([last, int(sentences[0][0])]))
    # Cells that are closed for good have no finite differences.
    free = {name: logit.isfinite() for name, logit in logits.items()}
    inputs = tuple(logit[free[name]].clone().requires_grad_() for name, logit in logits.items())

    def scores(*values):
        filled = {
            name: torch.full_like(logits[name], -torch.inf).masked_scatter(free[name], value)
            for name, value in zip(logits, values, strict=True)
        }
        hmm = vlhmm.HMM(assemble(kind, support, filled))
        token_log_probs = hmm.token_log_probs(tokens, lengths, belief=belief)
        log_prob = hmm.log_prob(tokens, lengths, belief=belief)
        return token_log_probs[torch.isfinite(token_log_probs)], log_prob[torch.isfinite(log_prob)]

    assert torch.autograd.gradcheck(scores, inputs, fast_mode=True)


def hmm_belief(tables: Tables, token: torch.Tensor) -> Belief:
    states = tables.support.states_per_word
    log_probs = torch.linspace(0.0, 1.0, states, dtype=torch.float64).log_softmax(dim=0)
    return Belief(token, log_probs.expand(token.shape[0], states))


def test_queries_leave_no_tape():
    _, tables = random_hmm(Kind("blocked", "table", reset=False), seed=1)
    hmm = vlhmm.HMM(leaves(tables))
    tokens = [[0, 1, 0]]
    assert hmm.log_prob(tokens).requires_grad
    assert hmm.token_log_probs(tokens).requires_grad
    with torch.no_grad():
        assert not hmm.log_prob(tokens).requires_grad
    assert not vlhmm.HMM(tables).log_prob(tokens).requires_grad
    assert hmm.viterbi(tokens).states.dtype == torch.int64
    assert hmm.sample(2, 3).tokens.dtype == torch.int64
