"""How likely a constraint will be met, against the sum over all continuations."""

import itertools
import math

import numpy as np
import pytest
import torch
from enumerated import accepted, continuations, random_automaton
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import TOLERANCE, every_dtype, every_kind
from oracle import EVERY_KIND, Kind, Oracle, log_sum, random_hmm

from vlhmm import HMM
from vlhmm.control import layout, product, tokens
from vlhmm.control.automaton import Automaton
from vlhmm.control.product import TransitionMatrix, lookahead
from vlhmm.control.tokens import ConstrainedTokens
from vlhmm.tables import Belief, Tables

LENGTH = 3


def beliefs(oracle: Oracle, tables: Tables, seed: int) -> list[tuple[np.ndarray, Belief | None]]:
    """Prefixes of several lengths, the empty one among them, with what they leave to believe."""
    random = np.random.default_rng(seed)
    prefixes = [oracle.sentence(length, random) for length in (0, 1, 2)]
    hmm = HMM(tables)
    return [(prefix, hmm.filter(prefix[None]).belief if len(prefix) else None) for prefix in prefixes]


def expected_log(probs: dict[tuple[int, ...], float]) -> float:
    return math.log(total) if (total := math.fsum(probs.values())) > 0 else -math.inf


@every_kind
@every_dtype
def test_the_probability_of_a_constraint_is_the_sum_over_accepted_texts(kind: Kind, dtype: torch.dtype) -> None:
    oracle, tables = random_hmm(kind, seed=3, dtype=dtype)
    automaton = random_automaton(tables.num_words, seed=5)
    ahead = lookahead(tables, automaton, LENGTH)
    for prefix, belief in beliefs(oracle, tables, seed=7):
        for steps in range(LENGTH + 1):
            log_prob = ahead.log_prob(tables, belief, steps)
            expected = expected_log(accepted(oracle, automaton, prefix, steps))
            np.testing.assert_allclose(log_prob.item(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


@settings(max_examples=25)
@given(kind=st.sampled_from(EVERY_KIND), hmm_seed=st.integers(0, 999), seed=st.integers(0, 999))
def test_next_tokens_under_a_constraint_are_those_of_the_listed_texts(kind: Kind, hmm_seed: int, seed: int) -> None:
    oracle, tables = random_hmm(kind, hmm_seed)
    automaton = random_automaton(tables.num_words, seed)
    ahead = lookahead(tables, automaton, LENGTH)
    following = ConstrainedTokens(tables, ahead)
    for prefix, belief in beliefs(oracle, tables, seed):
        found = following(following.log_ahead(belief), [automaton.start], LENGTH)
        joint, prob = np.zeros(tables.num_words), np.zeros(tables.num_words)
        for text, text_prob in continuations(oracle, prefix, LENGTH).items():
            prob[text[0]] += text_prob
            joint[text[0]] += text_prob * automaton.accepts(text)
        np.testing.assert_allclose(found.log_joint[0].exp().numpy(), joint, atol=1e-10, rtol=1e-10)
        np.testing.assert_allclose(found.log_prob[0].exp().numpy(), prob, atol=1e-10, rtol=1e-10)
        # Joint with the constraint a token is never likelier than alone, and all of them together are the constraint.
        assert (found.log_joint <= found.log_prob + 1e-12).all()
        total, whole = found.log_joint.logsumexp(1), ahead.log_prob(tables, belief, LENGTH)
        np.testing.assert_allclose(total.exp().numpy(), whole.exp().numpy(), atol=1e-10)
        allowed = following.allowed([automaton.start], LENGTH)[0].numpy()
        assert not np.any((joint > 0) & ~allowed)


@settings(max_examples=15)
@given(kind=st.sampled_from(EVERY_KIND), seed=st.integers(0, 999))
def test_what_is_ahead_after_a_token_is_what_is_ahead_after_the_longer_prefix(kind: Kind, seed: int) -> None:
    oracle, tables = random_hmm(kind, seed)
    following = ConstrainedTokens(tables, lookahead(tables, random_automaton(tables.num_words, seed), 1))
    text = oracle.sentence(3, np.random.default_rng(seed))
    log_ahead = following.log_ahead(None)
    for end, token in enumerate(text, 1):
        log_ahead = following.log_ahead_after(log_ahead, torch.tensor([token]))
        probs = log_ahead[0].exp().numpy() @ oracle.emission
        np.testing.assert_allclose(probs, oracle.next_token_probs(text[:end]), atol=1e-10)


@pytest.mark.parametrize("seed", range(3))
def test_large_classes_and_rows_in_many_states_change_nothing(seed: int) -> None:
    """A vocabulary large enough for slices of its own, against the plain sum in log space."""
    random = np.random.default_rng(seed)
    num_words, num_states, steps = 200, 5, 4
    hmm = HMM.from_probabilities(
        random.dirichlet(np.ones(num_states)),
        random.dirichlet(np.ones(num_states), size=num_states),
        random.dirichlet(np.ones(num_words), size=num_states),
    )
    sizes = [90, 50, 40, 9, 5, 3, 2, 1]
    automaton = Automaton(
        torch.tensor(random.permutation(np.repeat(np.arange(8), sizes))),
        torch.tensor(random.integers(6, size=(6, 8))),
        0,
        torch.tensor([False, True, False, False, True, False]),
    )
    following = ConstrainedTokens(hmm.tables, lookahead(hmm.tables, automaton, steps))
    states = [0, 3, 5, 2, 2, 1, 4]
    log_ahead = torch.tensor(random.dirichlet(np.ones(num_states), size=len(states))).log().to(hmm.tables.dtype)
    for left in range(1, steps + 1):
        found, expected = following(log_ahead, states, left), following._exact(log_ahead, states, left - 1)
        torch.testing.assert_close(found.log_joint, expected.log_joint, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(found.log_prob, expected.log_prob, rtol=1e-5, atol=1e-5)


def test_a_constraint_too_strict_for_float32_keeps_its_probability() -> None:
    """Twenty times in a row a token of probability 1e-3: 1e-60."""
    tables = HMM.from_probabilities([1.0], [[1.0]], [[1e-3, 1 - 1e-3]]).tables
    only_zero = Automaton(torch.tensor([0, 1]), torch.tensor([[0, 1], [1, 1]]), 0, torch.tensor([True, False]))
    ahead = lookahead(tables, only_zero, 20)
    assert ahead.log_prob(tables, None, 20).item() == pytest.approx(60 * math.log(0.1), rel=1e-6)
    following = ConstrainedTokens(tables, ahead)
    found = following(following.log_ahead(None), [0], 20)
    assert found.log_joint.logsumexp(1).item() == pytest.approx(60 * math.log(0.1), rel=1e-6)
    assert found.log_joint[0].isinf().tolist() == [False, True]


def test_a_state_that_only_an_improbable_belief_needs_is_not_lost() -> None:
    """The past is all but certain of a state from which the constraint is 1e-90 as likely as from the other."""
    hmm = HMM.from_probabilities([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], [[1e-30, 1 - 1e-30], [0.5, 0.5]])
    only_zero = Automaton(torch.tensor([0, 1]), torch.tensor([[0, 1], [1, 1]]), 0, torch.tensor([True, False]))
    following = ConstrainedTokens(hmm.tables, lookahead(hmm.tables, only_zero, 3))
    log_ahead = torch.tensor([[0.0, -torch.inf]])
    assert following(log_ahead, [0], 3).log_joint[0, 0].item() == pytest.approx(90 * math.log(0.1), rel=1e-5)
    # All of the belief in one state, all of the token in the other but for 1e-44 of it.
    apart = HMM.from_probabilities([0.5, 0.5], [[1.0, 0.0], [0.0, 1.0]], [[1e-44, 1.0], [1.0, 0.0]])
    following = ConstrainedTokens(apart.tables, lookahead(apart.tables, only_zero, 1))
    assert following(log_ahead, [0], 1).log_joint[0, 0].item() == pytest.approx(44 * math.log(0.1), rel=1e-5)


@every_kind
def test_a_transition_too_large_to_store_is_used_in_rows(kind: Kind, monkeypatch: pytest.MonkeyPatch) -> None:
    _, tables = random_hmm(kind, seed=1)
    automaton = random_automaton(tables.num_words, seed=2)
    whole = lookahead(tables, automaton, 3)
    belief = HMM(tables).filter([[0], [1]]).belief
    ahead = TransitionMatrix(tables).log_ahead(belief)
    monkeypatch.setattr(product, "available_bytes", lambda device: 0)
    monkeypatch.setattr(product, "CHUNK_BYTES", 16)
    monkeypatch.setattr(tokens, "CHUNK_BYTES", 16)
    monkeypatch.setattr(layout, "CHUNK_BYTES", 16)
    in_rows = lookahead(tables, automaton, 3, TransitionMatrix(tables))
    torch.testing.assert_close(in_rows.log_met, whole.log_met, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(TransitionMatrix(tables).log_ahead(belief), ahead, rtol=1e-12, atol=1e-12)
    one, many = ConstrainedTokens(tables, whole), ConstrainedTokens(tables, in_rows, TransitionMatrix(tables))
    states = [automaton.start, 0]
    torch.testing.assert_close(one(ahead, states, 2).log_joint, many(ahead, states, 2).log_joint)


def test_what_cannot_be_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    _, tables = random_hmm(Kind("dense", "table", reset=False), seed=0)
    with pytest.raises(ValueError, match=r"the HMM has \d+: compile it with the HMM's own tokenizer"):
        lookahead(tables, random_automaton(tables.num_words + 1, 0), 2)
    automaton = random_automaton(tables.num_words, 0)
    with pytest.raises(ValueError, match="is -1, but must be at least 0"):
        lookahead(tables, automaton, -1)
    monkeypatch.setattr("vlhmm.memory.available_bytes", lambda device: 100)
    with pytest.raises(ValueError, match=r"a look-ahead of 900 tokens .* GiB are available .* fewer tokens"):
        lookahead(tables, automaton, 900)


@every_dtype
def test_states_that_lie_farther_apart_than_any_float(dtype: torch.dtype) -> None:
    """Nobody leaves a state; the text that is asked for is certain in one and has 1e-99 a token in the other."""
    hmm = HMM.from_probabilities(
        [0.5, 0.5], np.eye(2), [[1e-99, 1.0, 0.0], [0.5, 0.25, 0.25]], dtype=dtype, reset_token=None
    )
    only_first = Automaton(torch.tensor([0, 1, 1]), torch.tensor([[0, 1], [1, 1]]), 0, torch.tensor([True, False]))
    ahead = lookahead(hmm.tables, only_first, 9)
    certain = Belief(torch.tensor([1]), torch.tensor([[0.0, -torch.inf]], dtype=dtype))
    for steps in (4, 9):
        assert ahead.log_prob(hmm.tables, certain, steps).item() == pytest.approx(steps * math.log(1e-99), rel=1e-6)
    assert ahead.log_prob(hmm.tables, None, 9).item() == pytest.approx(math.log(0.5) + 9 * math.log(0.5), rel=1e-6)
    faded = Belief(torch.tensor([1]), torch.tensor([[0.0, -2000.0]], dtype=dtype))
    log_ahead = TransitionMatrix(hmm.tables).log_ahead(faded)
    assert log_ahead[0].tolist() == [0.0, -2000.0]


def test_any_constraint_of_an_ugly_hmm() -> None:
    """In log space, as single texts have probabilities beneath every float."""
    kinds = [kind for kind in EVERY_KIND if kind.ugly]
    for seed, kind in enumerate(kinds):
        oracle, tables = random_hmm(kind, seed)
        automaton = random_automaton(tables.num_words, seed)
        prefix = oracle.rare_sentence(2, np.random.default_rng(seed))
        texts = itertools.product(range(tables.num_words), repeat=LENGTH)
        log_probs = [oracle.log_prob(np.array([*prefix, *text])) for text in texts if automaton.accepts(text)]
        expected = float(log_sum(np.array([*log_probs, -np.inf]), axis=0)) - oracle.log_prob(prefix)
        belief = HMM(tables).filter(prefix[None]).belief
        found = lookahead(tables, automaton, LENGTH).log_prob(tables, belief, LENGTH).item()
        assert found == pytest.approx(expected, rel=1e-9, abs=1e-9), kind
