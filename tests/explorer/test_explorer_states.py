"""The states of an explorer page, against sums over dense arrays."""

import numpy as np
import pytest
import torch
from oracle import Kind, Oracle, random_hmm

from vlhmm.data import Tokens
from vlhmm.explorer.data import packed
from vlhmm.explorer.projection import neighbour_map
from vlhmm.explorer.states import EXAMPLES, LAMBDAS, RELEVANT_WORDS, States, Words, describing_states
from vlhmm.inspection.reading import Reading, read_text
from vlhmm.progress import result_of
from vlhmm.tables import Tables

KINDS = [
    Kind("dense", "table", reset=False, zeros=True),
    Kind("dense", "low-rank", reset=True),
    Kind("blocked", "softmax", reset=False),
    Kind("blocked", "table", reset=True, ugly=True),
    Kind("cloned", "block-factored", reset=False, ugly=True),
    Kind("uniform", "table", reset=False, zeros=True),
]
every_kind = pytest.mark.parametrize("kind", KINDS, ids=str)


def described(kind: Kind, max_states: int = 4096) -> tuple[Oracle, Tables, np.ndarray, Reading, States, Words]:
    oracle, tables = random_hmm(kind, seed=3)
    tokens = oracle.sentence(40, np.random.default_rng(0))
    reading = result_of(read_text(tables, Tokens.from_documents([tokens.tolist()], tables.num_words)))
    states, words = result_of(describing_states(tables, reading, max_states))
    return oracle, tables, tokens, reading, states, words


@every_kind
def test_states_come_by_their_use_and_unused_ones_are_left_out(kind: Kind) -> None:
    oracle, _, tokens, _, states, _ = described(kind)
    use = oracle.by_messages(tokens).posterior.sum(0)
    np.testing.assert_allclose(states.use, use[states.number], rtol=1e-5)
    assert (np.diff(states.use) <= 0).all()
    assert (states.use > 0).all()
    left_out = np.setdiff1d(np.arange(len(use)), states.number)
    assert use[left_out].sum() < 1e-12


@every_kind
def test_words_have_the_probabilities_that_the_states_use_gives_them(kind: Kind) -> None:
    oracle, _, tokens, _, states, words = described(kind)
    share = oracle.by_messages(tokens).posterior.sum(0) / len(tokens)
    np.testing.assert_allclose(words.prob, share @ oracle.emission, rtol=1e-5, atol=1e-30)
    for word in np.flatnonzero(words.prob > 1e-20):
        of_word = share * oracle.emission[:, word]
        of_word /= of_word.sum()
        expected = np.sort(of_word)[::-1][: words.state.shape[1]]
        np.testing.assert_allclose(words.state_prob[word], expected, rtol=1e-4, atol=1e-7)
        for rank, prob in zip(words.state[word], words.state_prob[word], strict=True):
            assert (
                rank >= 0 and of_word[states.number[rank]] == pytest.approx(prob, rel=1e-4, abs=1e-7)
            ) or prob < 1e-6


@every_kind
def test_every_weight_finds_its_most_relevant_words_among_those_kept(kind: Kind) -> None:
    oracle, _, _, _, states, words = described(kind)
    floor = np.finfo(np.float32).tiny
    for rank, state in enumerate(states.number):
        kept = slice(states.first_word[rank], states.first_word[rank + 1])
        possible = np.flatnonzero(oracle.emission[state] > 0)
        np.testing.assert_allclose(
            states.word_log_prob[kept], np.log(oracle.emission[state][states.word[kept]]), rtol=1e-5, atol=1e-6
        )
        assert len(set(states.word[kept])) == len(states.word[kept])
        log_prob = np.log(oracle.emission[state][possible])
        log_lift = log_prob - np.log(np.maximum(words.prob[possible], floor))
        for weight in LAMBDAS:
            relevance = weight * log_prob + (1 - weight) * log_lift
            least = np.sort(relevance)[::-1][:RELEVANT_WORDS][-1]
            clearly = possible[relevance > least + 1e-4]
            assert set(clearly) <= set(states.word[kept])


@every_kind
def test_neighbours_are_the_likeliest_states_after_and_before(kind: Kind) -> None:
    oracle, _, _, _, states, _ = described(kind)
    moves = oracle.transition[np.ix_(states.number, states.number)]
    arrivals = states.use[:, None] * moves
    with np.errstate(invalid="ignore"):
        arrivals = np.nan_to_num(arrivals / arrivals.sum(0)).T
    for probs, ranks, found in (
        (moves, states.next, states.next_prob),
        (arrivals, states.previous, states.previous_prob),
    ):
        expected = np.sort(probs, axis=1)[:, ::-1][:, : found.shape[1]]
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-7)
        chosen = np.take_along_axis(probs, ranks.clip(0), axis=1)
        np.testing.assert_allclose(
            np.where(ranks >= 0, chosen, 0), np.where(ranks >= 0, found, 0), rtol=1e-4, atol=1e-7
        )


@every_kind
def test_examples_are_where_a_state_is_likeliest_most_certain_first(kind: Kind) -> None:
    oracle, _, tokens, reading, states, _ = described(kind)
    posterior = oracle.by_messages(tokens).posterior
    np.testing.assert_allclose(reading.likeliest_prob.numpy(), posterior.max(1), rtol=1e-5)
    at = np.take_along_axis(posterior, reading.likeliest_state.numpy()[:, None], axis=1)[:, 0]
    np.testing.assert_allclose(at, posterior.max(1), rtol=1e-5)
    for rank, state in enumerate(states.number):
        where = np.flatnonzero(reading.likeliest_state.numpy() == state)
        expected = np.sort(reading.likeliest_prob.numpy()[where])[::-1][:EXAMPLES]
        real = states.example[rank] >= 0
        np.testing.assert_allclose(states.example_prob[rank][real], expected, rtol=1e-6)
        assert set(states.example[rank][real]) <= set(where)


def test_the_most_used_states_are_kept_and_others_are_no_ones_neighbours() -> None:
    kind = KINDS[2]
    *_, whole, _ = described(kind)
    *_, part, words = described(kind, max_states=2)
    assert part.number.tolist() == whole.number[:2].tolist()
    assert part.next.max() < 2
    assert words.state.max() < 2
    assert (part.previous_prob.sum(1) <= 1 + 1e-6).all()


@pytest.mark.parametrize("num_points", [1, 2, 3, 40])
def test_the_map_is_finite_fills_its_square_and_is_the_same_every_time(num_points: int) -> None:
    points = torch.rand(num_points, 7, generator=torch.Generator().manual_seed(num_points))
    one, other = (neighbour_map(points, torch.Generator().manual_seed(0)) for _ in range(2))
    assert torch.equal(one, other)
    assert bool(one.isfinite().all())
    assert float(one.abs().max()) == pytest.approx(1 if num_points > 1 else 0, abs=1e-6)


def test_the_map_keeps_clusters_together_and_parts_equal_points() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = 5 * torch.eye(4, 12)
    points = centres.repeat_interleave(25, dim=0) + 0.1 * torch.randn(100, 12, generator=generator)
    points[1] = points[0]
    place = neighbour_map(points, generator)
    distance = torch.cdist(place, place)
    distance.fill_diagonal_(torch.inf)
    assert (distance.argmin(1) // 25 == torch.arange(100) // 25).float().mean() > 0.95
    assert float(distance[0, 1]) > 0


@pytest.mark.parametrize(
    "column", [np.array([0, -1, 127]), np.array([40_000]), np.array([], np.int64), np.ones((2, 3)) / 3]
)
def test_packed_columns_hold_the_numbers(column: np.ndarray) -> None:
    import base64

    found = packed(column)
    values = np.frombuffer(base64.b64decode(found["base64"]), dtype=found["type"]).reshape(found["shape"])
    np.testing.assert_array_equal(values, column.astype(values.dtype))
    assert values.dtype.itemsize == {3: 1, 1: 4, 0: 1, 6: 4}[column.size]
