"""The compiled loops for small dense HMMs: the answers of the enumeration, and None where they have no answer."""

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from kinds import close, every_dtype, some_sentences
from oracle import EVERY_KIND, ragged, random_hmm

import vlhmm
from vlhmm.inference.small import SmallQueries, small_queries
from vlhmm.ops import dispatch, small_dense
from vlhmm.ops.small_dense import SmallDense, SmallText

DENSE = [kind for kind in EVERY_KIND if kind.support == "dense" and kind.transition != "low-rank"]
dense_kinds = pytest.mark.parametrize("kind", DENSE, ids=str)
RELATIVE = {torch.float64: 1e-9, torch.float32: 1e-5}


@dense_kinds
@every_dtype
def test_answers_are_those_of_the_enumeration(kind, dtype):
    for seed in range(3):
        oracle, tables = random_hmm(kind, seed, dtype)
        queries = small_queries(tables)
        sentences = some_sentences(oracle, seed)
        tokens, lengths = ragged(sentences, padding=oracle.num_words + 7)
        log_probs = queries.log_prob(tokens, lengths)
        if log_probs is None:
            # Probabilities that float64 does not hold are for other code.
            assert kind.ugly
            continue
        expected = np.array([oracle.log_prob(sentence) for sentence in sentences])
        np.testing.assert_allclose(log_probs, expected, rtol=RELATIVE[dtype], atol=RELATIVE[dtype])
        probs = queries.posterior(tokens, lengths).probs
        counts = queries.expected_counts(tokens, lengths)
        paths = queries.best_path(tokens, lengths)
        absolute = RELATIVE[dtype] * (1 + abs(expected).max())
        for row, sentence in enumerate(sentences):
            length = len(sentence)
            np.testing.assert_allclose(probs[row, :length], oracle.posterior(sentence), rtol=0, atol=absolute)
            assert not probs[row, length:].any()
            best = oracle.best_log_prob(sentence)
            assert paths.log_prob[row, 0].item() == pytest.approx(best, rel=RELATIVE[dtype], abs=RELATIVE[dtype])
            states = paths.states[row, 0]
            assert (states[length:] == -1).all()
            of_path = oracle.log_joint(sentence)[tuple(states[:length].tolist())]
            assert of_path == pytest.approx(best, rel=RELATIVE[dtype], abs=RELATIVE[dtype])
        every = [oracle.counts(sentence) for sentence in sentences]
        for name in ("start", "transition"):
            total = sum(getattr(one, name) for one in every)
            np.testing.assert_allclose(getattr(counts, name), total, rtol=0, atol=len(sentences) * absolute)


@dense_kinds
def test_an_ordinary_hmm_is_answered_here(kind):
    if kind.ugly:
        return
    oracle, tables = random_hmm(kind, 0, torch.float32)
    tokens, lengths = ragged(some_sentences(oracle, 0))
    hmm = vlhmm.HMM(tables)
    assert isinstance(hmm._prepared, SmallQueries)
    assert all(
        answer is not None
        for answer in (
            hmm._prepared.log_prob(tokens, lengths),
            hmm._prepared.posterior(tokens, lengths),
            hmm._prepared.expected_counts(tokens, lengths),
            hmm._prepared.best_path(tokens, lengths),
            hmm._prepared.sample(2, 3, None),
        )
    )


@pytest.mark.parametrize(("states", "size"), [(1, 37), (2, 48), (3, 10), (4, 5), (4, 33), (5, 37), (33, 17), (70, 21)])
@every_dtype
def test_any_number_of_states_equals_the_recursion_of_torch(states, size, dtype, monkeypatch):
    """Loops take sixteen states or sequences at a time; long texts, lengths in disorder, and a reset in the middle."""
    generator = torch.Generator().manual_seed(states)
    start, moves, emissions = (
        torch.rand(*shape, generator=generator, dtype=torch.float64)
        for shape in ((states,), (states, states), (states, 7))
    )
    if states > 1:
        moves[:, states // 2] = 0
    arrays = (start / start.sum(), moves / moves.sum(1, keepdim=True), emissions / emissions.sum(1, keepdim=True))
    make = lambda: vlhmm.HMM.from_probabilities(*arrays, reset_token=3, dtype=dtype)  # noqa: E731
    tokens = torch.randint(7, (size, 200), generator=generator)
    lengths = torch.randint(1, 201, (size,), generator=generator)
    lengths[:5] = torch.tensor([200, 1, 2, 57, 199])
    # Past a length nothing is read.
    tokens[torch.arange(200) >= lengths[:, None]] = -5
    ours = make()
    found = [
        ours.log_prob(tokens, lengths),
        ours.posterior(tokens, lengths).probs,
        ours.viterbi(tokens, lengths).states,
    ]
    counts = ours.expected_counts(tokens, lengths)
    monkeypatch.setattr(dispatch, "MAX_LOOP_STATES", 0)
    other = make()
    assert other._prepared is None
    expected = [other.log_prob(tokens, lengths), other.posterior(tokens, lengths).probs]
    close(found[0], expected[0], dtype)
    np.testing.assert_allclose(found[1], expected[1], atol=2e-5 if dtype == torch.float32 else 1e-11)
    of_torch = other.expected_counts(tokens, lengths)
    for name in ("start", "transition", "emission"):
        one, another = getattr(counts, name), getattr(of_torch, name)
        np.testing.assert_allclose(one, another, rtol=2e-4 if dtype == torch.float32 else 1e-9, atol=1e-4)
    torch.testing.assert_close(found[2], other.viterbi(tokens, lengths).states)


@pytest.mark.parametrize("states", [2, 3, 4, 5])
@every_dtype
def test_of_equal_predecessors_the_first_counts(states, dtype, monkeypatch):
    """Also where backpointers of all lanes are followed together, and where a state cannot be entered or left."""
    moves = torch.ones(states, states, dtype=torch.float64)
    moves[0, 1:] = 0
    moves[1, 0] = 0
    uniform = torch.full((states,), 1 / states, dtype=torch.float64)
    emissions = torch.full((states, 3), 1 / 3, dtype=torch.float64)
    make = lambda: vlhmm.HMM.from_probabilities(  # noqa: E731
        uniform, moves / moves.sum(1, keepdim=True), emissions, reset_token=2, dtype=dtype
    )
    tokens = torch.randint(3, (35, 40), generator=torch.Generator().manual_seed(0))
    tokens[:20] %= 2
    found = make().viterbi(tokens)
    monkeypatch.setattr(dispatch, "MAX_LOOP_STATES", 0)
    expected = make().viterbi(tokens)
    torch.testing.assert_close(found.states, expected.states)
    torch.testing.assert_close(found.log_prob, expected.log_prob)


def test_threads_change_nothing(monkeypatch):
    hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
    tokens = torch.randint(3, (7, 50), generator=torch.Generator().manual_seed(0))
    alone = hmm.log_prob(tokens), hmm.posterior(tokens).probs, hmm.viterbi(tokens).states
    counts = hmm.expected_counts(tokens)
    threads = torch.get_num_threads()
    monkeypatch.setattr(small_dense, "THREAD_WORK", 1)
    torch.set_num_threads(3)
    try:
        together = hmm.log_prob(tokens), hmm.posterior(tokens).probs, hmm.viterbi(tokens).states
        counts_together = hmm.expected_counts(tokens)
    finally:
        torch.set_num_threads(threads)
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one, other)
    torch.testing.assert_close(counts.transition, counts_together.transition)
    torch.testing.assert_close(counts.start, counts_together.start)


def test_tables_that_were_changed_in_place_are_read_anew():
    hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]])
    before = hmm.log_prob([[0, 1]])
    hmm.tables.log_start.copy_(torch.tensor([0.1, 0.9]).log())
    assert not torch.equal(hmm.log_prob([[0, 1]]), before)
    assert torch.equal(hmm.log_prob([[0, 1]]), vlhmm.HMM(hmm.tables).log_prob([[0, 1]]))


def test_a_copy_gives_the_same_answers():
    hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]])
    expected = hmm.log_prob([[0, 1]])
    assert torch.equal(pickle.loads(pickle.dumps(hmm)).log_prob([[0, 1]]), expected)


def test_a_gradient_is_asked_of_other_code():
    hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.5], [0.1, 0.9]])
    hmm.tables.log_start.requires_grad_()
    hmm.log_prob([[0, 1]]).sum().backward()
    assert hmm.tables.log_start.grad.sum().item() == pytest.approx(1)


@pytest.mark.parametrize(
    ("tokens", "lengths"),
    [
        ([[0, 2]], None),
        ([[0, -1]], None),
        ([[0, 1]], [3]),
        ([[0, 1]], [0]),
        ([[0.0, 1.0]], None),
        ([], None),
        ([[0], [0, 1]], None),
    ],
)
def test_what_is_out_of_range_has_no_answer_here(tokens, lengths):
    queries = vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[0.5, 0.5]])._prepared
    assert queries.log_prob(tokens, lengths) is None
    assert queries.best_path(tokens, lengths) is None
    assert queries.posterior(tokens, lengths) is None


def test_a_lost_state_that_would_come_back_has_no_answer_here():
    """What word 0 leaves of state 1 is below float64; only it can emit word 1."""
    loops = SmallDense(
        *(
            np.log(np.array(table)) if table is not None else None
            for table in ([0.5, 0.5], [[1e-200, 1.0], [1e-200, 1.0]])
        ),
        np.log(np.array([[1.0, 1e-300], [1e-300, 1.0]])),
    )
    text = SmallText(np.array([[0, 0, 0, 0]]), np.array([4]), -1)
    assert loops.token_log_probs(text) is None


rows = st.lists(st.sampled_from([0.0, 1e-300, 1e-12, 0.1, 1.0, 3.0]), min_size=1, max_size=9).filter(any)


@given(rows, st.lists(st.floats(0, 1, exclude_max=True), min_size=1, max_size=5))
def test_draws_are_the_inverse_of_the_cumulative_distribution(row, uniforms):
    probs = np.array(row) / sum(row)
    with np.errstate(divide="ignore"):
        loops = SmallDense(np.log(probs), np.log(np.tile(probs, (len(probs), 1))), np.log(np.ones((1, len(probs)))))
    numbers = np.array(uniforms)[None, :, None].repeat(2, 2)
    states, tokens = loops.sample(numbers, -1)
    cumulative = np.exp(np.log(probs, where=probs > 0, out=np.full(len(probs), -np.inf))).cumsum()
    expected = np.searchsorted(cumulative, numbers[0, :, 0] * cumulative[-1], side="right")
    assert states[0].tolist() == expected.tolist()
    assert (probs[states] > 0).all()
    assert not tokens.any()


def test_frequencies_of_draws_are_the_probabilities():
    """Four standard deviations of a multinomial of 20,000 draws."""
    start, moves, emissions = [0.2, 0.8], [[0.1, 0.9], [0.6, 0.4]], [[0.7, 0.2, 0.1], [0.0, 0.5, 0.5]]
    hmm = vlhmm.HMM.from_probabilities(start, moves, emissions)
    drawn = hmm.sample(20_000, 2, seed=0)
    joint = np.einsum("a,ax,ab,by->axby", start, emissions, moves, emissions)
    found = np.zeros_like(joint)
    places = (drawn.states[:, 0], drawn.tokens[:, 0], drawn.states[:, 1], drawn.tokens[:, 1])
    np.add.at(found, tuple(part.numpy() for part in places), 1 / 20_000)
    assert (np.abs(found - joint) <= 4 * np.sqrt(joint * (1 - joint) / 20_000)).all()


def test_without_numba_torch_answers(monkeypatch):
    monkeypatch.setattr(dispatch, "loops_unavailable", lambda device: "numba is not installed")
    hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
    assert hmm._prepared is None
    close(hmm.log_prob([[0, 1, 2, 2]]), [-4.3157], torch.float32)
    assert dispatch.backends(torch.device("cpu"))[0].reason == "numba is not installed"
