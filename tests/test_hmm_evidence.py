"""Soft evidence: every query given log-likelihoods of all states, against the enumeration of all state paths."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from kinds import close, every_kind
from oracle import EVERY_KIND, Kind, Oracle, random_hmm
from test_hmm_bad_input import refused

import vlhmm
from vlhmm.inference.errors import ImpossibleTextError

LENGTHS = (4, 1, 3)
some_kinds = pytest.mark.parametrize("kind", EVERY_KIND[1::8], ids=str)


def random_evidence(num_states: int, seed: int, lengths=LENGTHS) -> list[np.ndarray]:
    """Log-densities of any size, some states ruled out, never all of them; the first position knows its state for sure."""
    random = np.random.default_rng(seed)
    sequences = []
    for length in lengths:
        values = random.normal(3.0, 4.0, size=(length, num_states))
        ruled_out = random.random(values.shape) < 0.2
        ruled_out[np.arange(length), random.integers(num_states, size=length)] = False
        values[ruled_out] = -np.inf
        values[0] += random.normal(0, 100)
        sequences.append(values)
    return sequences


def seen_by(oracle: Oracle, evidence: np.ndarray) -> tuple[Oracle, np.ndarray]:
    """The HMM whose word t is what was seen at t; its columns need not sum to one."""
    return replace(oracle, emission=np.exp(evidence).T, reset_token=None), np.arange(len(evidence))


def with_evidence(kind: Kind, seed: int) -> tuple[vlhmm.HMM, list[tuple[Oracle, np.ndarray]], list[np.ndarray]]:
    oracle, tables = random_hmm(kind, seed)
    evidence = random_evidence(oracle.num_states, seed)
    # Evidence that the transition makes impossible is tested apart.
    seen = [seen_by(oracle, one) for one in evidence]
    possible = [number for number, one in enumerate(seen) if np.isfinite(one[0].log_prob(one[1]))]
    return vlhmm.HMM(tables), [seen[number] for number in possible], [evidence[number] for number in possible]


@every_kind
def test_queries_equal_enumeration(kind):
    hmm, seen, evidence = with_evidence(kind, seed=3)
    if not seen:
        pytest.skip("no sequence is possible")
    log_prob = hmm.log_prob(log_likelihoods=evidence)
    close(log_prob, [oracle.log_prob(tokens) for oracle, tokens in seen])
    token_log_probs = hmm.token_log_probs(log_likelihoods=evidence)
    posterior, filtered = hmm.posterior(log_likelihoods=evidence), hmm.filter(log_likelihoods=evidence)
    paths = hmm.viterbi(log_likelihoods=evidence)
    for row, (oracle, tokens) in enumerate(seen):
        length = len(tokens)
        close(token_log_probs[row, :length], oracle.token_log_probs(tokens))
        assert (token_log_probs[row, length:] == 0).all()
        assert torch.equal(posterior.states[row, 0], torch.arange(hmm.num_states))
        close(posterior.probs[row, :length], oracle.posterior(tokens))
        close(filtered.probs[row, :length], oracle.filter(tokens))
        close(filtered.belief.probs[row], oracle.filter(tokens)[-1])
        assert (posterior.probs[row, length:] == 0).all()
        close(paths.log_prob[row, 0], oracle.best_log_prob(tokens))
        close(oracle.log_joint(tokens)[tuple(paths.states[row, 0, :length])], oracle.best_log_prob(tokens))
    counts = hmm.expected_counts(log_likelihoods=evidence)
    close(counts.start, sum(oracle.counts(tokens).start for oracle, tokens in seen))
    close(counts.transition, sum(oracle.counts(tokens).transition for oracle, tokens in seen))
    assert counts.emission.shape[0] == 0


@some_kinds
def test_paths_entropy_and_samples_equal_enumeration(kind):
    hmm, seen, evidence = with_evidence(kind, seed=5)
    if not seen:
        pytest.skip("no sequence is possible")
    best, entropy = hmm.viterbi(log_likelihoods=evidence, k=4), hmm.posterior_entropy(log_likelihoods=evidence)
    drawn = hmm.sample_posterior(log_likelihoods=evidence, num=600, seed=0)
    for row, (oracle, tokens) in enumerate(seen):
        joint = oracle.log_joint(tokens)
        expected = np.sort(joint[joint > -np.inf])[::-1][:4]
        close(best.log_prob[row, : len(expected)], expected)
        assert torch.isneginf(best.log_prob[row, len(expected) :]).all()
        probs = oracle.path_probs(tokens).ravel()
        close(entropy.path[row], -(probs[probs > 0] * np.log(probs[probs > 0])).sum())
        position = oracle.posterior(tokens)
        terms = position * np.log(np.where(position > 0, position, 1.0))
        close(entropy.position[row, : len(tokens)], -terms.sum(1))
        often = np.zeros(position.shape)
        for t in range(len(tokens)):
            often[t] = np.bincount(drawn[row, :, t].numpy(), minlength=hmm.num_states) / 600
        np.testing.assert_allclose(often, position, atol=0.11)
        assert (drawn[row, :, len(tokens) :] == -1).all()


@pytest.mark.parametrize("kind", EVERY_KIND[::4], ids=str)
def test_the_log_emission_of_tokens_is_evidence(kind):
    """Of an HMM without reset token all answers are those for the tokens."""
    oracle, tables = random_hmm(kind, 7)
    hmm = vlhmm.HMM(tables).with_reset_token(None)
    tokens = torch.as_tensor(oracle.rare_sentence(5, np.random.default_rng(0)))
    evidence = hmm.emission.log().T[tokens]
    with_tokens = hmm.log_prob(tokens)
    if torch.isneginf(with_tokens):
        pytest.skip("possible only with the reset token")
    tolerance = {"rtol": 1e-10, "atol": 1e-10}
    torch.testing.assert_close(hmm.log_prob(log_likelihoods=evidence), with_tokens, **tolerance)
    torch.testing.assert_close(
        hmm.posterior(log_likelihoods=evidence).probs, hmm.posterior(tokens).dense(), **tolerance
    )
    # A belief after tokens can be followed by evidence, and where all states emit all words the other way round.
    belief = hmm.filter(tokens[:2]).belief
    continued = hmm.log_prob(log_likelihoods=evidence[2:], belief=belief)
    torch.testing.assert_close(continued, hmm.log_prob(tokens[2:], belief=belief), **tolerance)
    soft = hmm.filter(log_likelihoods=evidence[:2]).belief
    torch.testing.assert_close(hmm.log_prob(log_likelihoods=evidence[2:], belief=soft), continued, **tolerance)
    torch.testing.assert_close(hmm.next_token_probs(soft), hmm.next_token_probs(belief), **tolerance)
    if tables.support.dense:
        torch.testing.assert_close(hmm.log_prob(tokens[2:], belief=soft), continued, **tolerance)
        torch.testing.assert_close(hmm.stream(belief=soft).feed(tokens[2:]).sum(), continued, **tolerance)
    elif hmm.num_states > tables.support.states_per_word:
        refused(lambda: hmm.log_prob(tokens[2:], belief=soft), "log_likelihoods")


@pytest.mark.parametrize("window", [None, 2])
@some_kinds
def test_the_posterior_is_the_gradient_of_log_prob(kind, window):
    hmm, seen, evidence = with_evidence(kind, seed=11)
    if not seen:
        pytest.skip("no sequence is possible")
    leaves = [torch.tensor(one, requires_grad=True) for one in evidence]
    gradients = torch.autograd.grad(hmm.log_prob(log_likelihoods=leaves, window=window).sum(), leaves)
    posterior = hmm.posterior(log_likelihoods=evidence, window=window)
    for row, gradient in enumerate(gradients):
        oracle, tokens = seen[row]
        close(gradient, oracle.posterior(tokens))
        close(gradient, posterior.probs[row, : len(tokens)].numpy())


@some_kinds
def test_answers_do_not_depend_on_the_window_or_the_scan(kind):
    hmm, seen, evidence = with_evidence(kind, seed=13)
    if not seen:
        pytest.skip("no sequence is possible")
    for query in (hmm.log_prob, hmm.token_log_probs):
        close(query(log_likelihoods=evidence, window=1), query(log_likelihoods=evidence).numpy())
        close(query(log_likelihoods=evidence, parallel=True), query(log_likelihoods=evidence).numpy())
    close(
        hmm.posterior(log_likelihoods=evidence, window=1).probs, hmm.posterior(log_likelihoods=evidence).probs.numpy()
    )
    for k in (1, 3):
        whole, parts = hmm.viterbi(log_likelihoods=evidence, k=k), hmm.viterbi(log_likelihoods=evidence, k=k, window=2)
        close(parts.log_prob, whole.log_prob.numpy())


def test_a_position_that_no_state_explains_is_impossible():
    hmm = vlhmm.HMM.random(3, 2, dtype=torch.float64)
    evidence = torch.zeros(2, 3, 3, dtype=torch.float64)
    evidence[1, 1] = -torch.inf
    evidence.requires_grad_()
    log_prob = hmm.log_prob(log_likelihoods=evidence)
    close(log_prob.detach(), [0.0, -np.inf])
    (gradient,) = torch.autograd.grad(log_prob[0], evidence)
    close(gradient[0].sum(1), np.ones(3))
    posterior = hmm.posterior(log_likelihoods=evidence.detach())
    assert (posterior.probs[1, 1:] == 0).all()
    for query in (hmm.viterbi, hmm.posterior_entropy, hmm.sample_posterior):
        with pytest.raises(ImpossibleTextError, match="sequence 1 has probability zero from position 1"):
            query(log_likelihoods=evidence.detach())


def test_nothing_seen_is_a_row_of_zeros():
    """log p = 0, and the posterior is the prior."""
    hmm = vlhmm.HMM.random(4, 2, seed=3, dtype=torch.float64)
    nothing = torch.zeros(3, 4, dtype=torch.float64)
    close(hmm.log_prob(log_likelihoods=nothing), 0.0)
    posterior = hmm.posterior(log_likelihoods=nothing).probs
    prior = torch.stack([hmm.start, hmm.start @ hmm.transition, hmm.start @ hmm.transition @ hmm.transition])
    close(posterior, prior.numpy())


def test_one_state_and_one_position():
    hmm = vlhmm.HMM.random(1, 1, dtype=torch.float64)
    close(hmm.log_prob(log_likelihoods=[[2.5]]), 2.5)
    close(hmm.posterior(log_likelihoods=[[[2.5], [-1e5]]]).probs, [[[1.0], [1.0]]])
    assert hmm.viterbi(log_likelihoods=[[2.5], [1.0]]).states.tolist() == [[0, 0]]


def test_huge_log_densities_lose_nothing():
    """What differs between states counts, however far all of them are from 0."""
    hmm = vlhmm.HMM.random(3, 2, seed=1, dtype=torch.float64)
    values = torch.randn(5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shift = torch.tensor([1e6, -1e6, 3e5, 0.0, -7e5], dtype=torch.float64)[:, None]
    posterior = hmm.posterior(log_likelihoods=values).probs
    torch.testing.assert_close(hmm.posterior(log_likelihoods=values + shift).probs, posterior, rtol=1e-8, atol=1e-8)


def test_batches_are_padded_ragged_or_single():
    hmm = vlhmm.HMM.random(3, 4, dtype=torch.float64)
    one, other = random_evidence(3, 1, lengths=(4, 2))
    padded = np.full((2, 4, 3), np.nan)
    padded[0], padded[1, :2] = one, other
    expected = torch.stack([hmm.log_prob(log_likelihoods=one), hmm.log_prob(log_likelihoods=other)])
    assert expected.shape == (2,)
    for values, lengths in (
        ([one, other], None),
        ([torch.tensor(one), torch.tensor(other)], None),
        ([one.tolist(), other.tolist()], None),
        (padded, [4, 2]),
        (torch.tensor(padded), torch.tensor([4, 2])),
    ):
        close(hmm.log_prob(log_likelihoods=values, lengths=lengths), expected.numpy())
    close(hmm.log_prob(log_likelihoods=list(torch.tensor(one))), expected[0].numpy())
    assert hmm.posterior(log_likelihoods=one).probs.shape == (4, 3)
    assert hmm.posterior(log_likelihoods=one[None]).probs.shape == (1, 4, 3)


def test_bad_evidence_is_refused():
    hmm = vlhmm.HMM.random(3, 4)
    values = torch.zeros(2, 5, 3)
    refused(lambda: hmm.log_prob(), "tokens", "log_likelihoods")
    refused(lambda: hmm.log_prob([[0]], log_likelihoods=values), "both")
    refused(lambda: hmm.log_prob(log_likelihoods=torch.zeros(2, 5, 4)), r"\b4\b", r"\b3\b")
    refused(lambda: hmm.log_prob(log_likelihoods=torch.zeros(3)), "time")
    refused(lambda: hmm.posterior(log_likelihoods=torch.zeros(2, 0, 3)), r"\b0\b")
    refused(lambda: hmm.posterior(log_likelihoods=values.masked_fill(values == 0, torch.nan)), "nan")
    refused(lambda: hmm.posterior(log_likelihoods=values + torch.inf), "inf")
    refused(lambda: hmm.posterior(log_likelihoods=values, lengths=[5, 6]), r"\b6\b", r"\b5\b")
    refused(lambda: hmm.posterior(log_likelihoods=values[0], lengths=[5]), "lengths")
    refused(lambda: hmm.posterior(log_likelihoods=values > 0), "bool")
    refused(lambda: hmm.posterior(log_likelihoods="abc"), "log_likelihoods")
    refused(
        lambda: hmm.log_prob(log_likelihoods=values.clone().requires_grad_(), parallel=True), "parallel", "gradient"
    )
    only = vlhmm.HMM.random(3, 1, reset_token=0)
    refused(lambda: only.log_prob([0], belief=only.filter(log_likelihoods=values[0]).belief), "reset")


@pytest.mark.parametrize("kind", EVERY_KIND[::3], ids=str)
def test_an_em_step_normalises_the_counts_of_the_enumeration(kind):
    """Of start and transition; the emission, whose place the evidence takes, stays as it is."""
    hmm, seen, evidence = with_evidence(kind, seed=17)
    if not seen:
        pytest.skip("no sequence is possible")
    fitted = hmm.fit(log_likelihoods=evidence, iterations=1)
    close(fitted.log_probs[0], sum(oracle.log_prob(tokens) for oracle, tokens in seen))
    start = sum(oracle.counts(tokens).start for oracle, tokens in seen)
    transition = sum(oracle.counts(tokens).transition for oracle, tokens in seen)
    used = transition.sum(1) > 1e-12
    close(fitted.hmm.start, start / start.sum())
    close(fitted.hmm.transition[torch.as_tensor(used)], transition[used] / transition[used].sum(1, keepdims=True))
    assert torch.equal(fitted.hmm.emission, hmm.emission)
    assert fitted.hmm.tables.reset_token == hmm.tables.reset_token
    close(fitted.log_prob, fitted.hmm.log_prob(log_likelihoods=evidence).sum().numpy())
    assert fitted.num_tokens == sum(map(len, evidence))


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_size": 2, "learning_rate": 0.5, "seed": 0}, {"method": "adam"}, {"restarts": 2, "seed": 1}],
    ids=["em", "mini-batches", "adam", "restarts"],
)
def test_start_and_transition_are_fitted_to_evidence(options):
    truth = vlhmm.HMM.from_probabilities([0.9, 0.1], [[0.95, 0.05], [0.1, 0.9]], [[1.0], [1.0]], dtype=torch.float64)
    states = truth.sample(40, 30, seed=0).states
    evidence = 2.0 * torch.nn.functional.one_hot(states, 2).double()
    hmm = vlhmm.HMM.random(2, 3, dtype=torch.float64)
    fitted = hmm.fit(log_likelihoods=evidence, iterations=60, **options)
    np.testing.assert_allclose(fitted.hmm.transition, truth.transition, atol=0.15)
    assert fitted.log_prob > hmm.log_prob(log_likelihoods=evidence).sum() + 50
    assert torch.equal(fitted.hmm.emission, hmm.emission)
    # One of start, one of each row of the transition.
    assert fitted.num_parameters == 3


def test_known_states_and_fixed_probabilities_hold_with_evidence():
    hmm = vlhmm.HMM.random(3, 2, dtype=torch.float64)
    evidence = torch.randn(2, 5, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    path = [[0, 1, 2, 0, 1], [2, 0, 1, 2, 0]]
    known = hmm.fit(log_likelihoods=evidence, states=path, iterations=1).hmm
    close(known.transition, [[0, 1, 0], [0, 0, 1], [1, 0, 0]])
    close(known.start, [0.5, 0, 0.5])
    fixed = torch.eye(3, dtype=torch.bool)
    kept = hmm.fit(log_likelihoods=evidence, fixed={"transition": fixed}, params="t", iterations=3).hmm
    assert torch.equal(kept.transition[fixed], hmm.transition[fixed])
    assert torch.equal(kept.start, hmm.start)
    one = hmm.fit(log_likelihoods=evidence[0, :4], iterations=2).hmm
    padded = hmm.fit(log_likelihoods=evidence[:1], lengths=[4], iterations=2).hmm
    close(one.transition, padded.transition.numpy())
    refused(lambda: hmm.fit(), "0 sequences")
    refused(lambda: hmm.fit([[0]], log_likelihoods=evidence), "both")
    refused(lambda: hmm.fit(log_likelihoods=evidence, fixed={"emission": True}), "emission")
    refused(lambda: hmm.fit(log_likelihoods=evidence[:, :, :2]), r"\b3\b")
