"""Queries of a dense HMM as graphs: equal to the plain ones, and silent where those must speak."""

import copy
import os
from typing import Any

import pytest
import torch
from graphs import WorkAgain, graphs_on_cpu

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

import vlhmm.hmm as hmm_module
from vlhmm.hmm import HMM
from vlhmm.inference import replay
from vlhmm.inference.replay import Replays
from vlhmm.ops import dispatch
from vlhmm.records import convert
from vlhmm.support import dense_support
from vlhmm.tables import Tables
from vlhmm.transitions import TableTransition

NUM_WORDS, NUM_STATES = 11, 6
TOLERANCE = {"cpu": 1e-5, "cuda": 2e-2}
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture(autouse=True)
def made(monkeypatch: pytest.MonkeyPatch) -> list[WorkAgain]:
    """The graphs, where there is no GPU."""
    return [] if torch.cuda.is_available() else graphs_on_cpu(monkeypatch)


def num_graphs(replays: Replays) -> int:
    return sum(replays._graphed.has_graph(key) for key in replays._shapes)


def small_tables(device: str, reset_token: int | None = None, seed: int = 0) -> Tables:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    tables = Tables(
        dense_support(NUM_WORDS, NUM_STATES),
        normal(NUM_STATES).log_softmax(0),
        TableTransition(normal(NUM_STATES, NUM_STATES).log_softmax(1)),
        normal(NUM_WORDS, NUM_STATES).log_softmax(0),
        reset_token,
    )
    return convert(tables, device=device)


def texts(device: str, seed: int, ragged: bool) -> tuple[torch.Tensor, torch.Tensor | None]:
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(NUM_WORDS, (2, 3), generator=generator).to(device)
    return tokens, torch.tensor([3, 2], device=device) if ragged else None


def plain(tables: Tables) -> HMM:
    return HMM(tables.to("cpu", torch.float64))


def same(ours: Any, theirs: Any, device: str) -> None:
    torch.testing.assert_close(ours.cpu().double(), theirs, rtol=TOLERANCE[device], atol=TOLERANCE[device])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reset_token", [None, 3])
def test_every_query_equals_the_plain_one_when_asked_again_and_again(device: str, reset_token: int | None) -> None:
    tables = small_tables(device, reset_token)
    replays, hmm = Replays(tables), plain(tables)
    for seed in range(3):
        tokens, lengths = texts(device, seed, ragged=reset_token is not None)
        there = (tokens.cpu(), None if lengths is None else lengths.cpu())
        log_prob, per_token = replays.log_prob(tokens, lengths), replays.token_log_probs(tokens, lengths)
        posterior, counts = replays.posterior(tokens, lengths), replays.expected_counts(tokens, lengths)
        best = replays.best_path(tokens, lengths)
        assert posterior is not None
        assert counts is not None
        assert best is not None
        same(log_prob, hmm.log_prob(*there), device)
        same(per_token, hmm.token_log_probs(*there), device)
        same(posterior.probs, hmm.posterior(*there).probs, device)
        expected, path = hmm.expected_counts(*there), hmm.viterbi(*there)
        same(counts.start, expected.start, device)
        same(counts.transition, expected.transition, device)
        same(counts.emission, expected.emission, device)
        same(best.log_prob, path.log_prob, device)
        assert torch.equal(best.states.cpu(), path.states)


@pytest.mark.parametrize("device", DEVICES)
def test_an_answer_outlives_the_next_text(device: str) -> None:
    replays = Replays(small_tables(device))
    answers = [replays.log_prob(*texts(device, seed, ragged=False)) for seed in (1, 1, 1, 2)]
    assert all(answer is not None for answer in answers)
    torch.testing.assert_close(answers[2], answers[0])
    assert not torch.equal(answers[2], answers[3])  # type: ignore[arg-type]


@pytest.mark.parametrize("device", DEVICES)
def test_bad_input_and_impossible_texts_are_left_to_the_plain_way(device: str) -> None:
    tables = small_tables(device)
    tables.log_emission[4] = -torch.inf
    replays = Replays(tables)
    tokens, lengths = texts(device, 0, ragged=True)
    assert lengths is not None
    tokens[:] = tokens.remainder(4)
    wrong, impossible = tokens.clone(), tokens.clone()
    wrong[1, 1], impossible[1, 1] = NUM_WORDS, 4
    # Ids past the length are nobody's business.
    tokens[1, 2:] = -7
    for _ in range(3):
        assert replays.log_prob(tokens, lengths) is not None
        assert replays.log_prob(wrong, lengths) is None
        assert replays.log_prob(tokens, lengths * 2) is None
        assert replays.log_prob(tokens, lengths - 3) is None
        assert replays.best_path(tokens, lengths) is not None
        assert replays.best_path(impossible, lengths) is None
    assert replays.log_prob(tokens.float(), lengths) is None
    assert replays.log_prob(tokens[0], None) is None
    assert replays.log_prob(tokens.tolist(), None) is None


@pytest.mark.parametrize("device", DEVICES)
def test_tables_changed_in_place_are_seen(device: str) -> None:
    tables, other = small_tables(device), small_tables(device, seed=1)
    replays = Replays(tables)
    tokens, _ = texts(device, 0, ragged=False)
    for _ in range(3):
        replays.log_prob(tokens, None)
    tables.log_emission.copy_(other.log_emission)
    same(replays.log_prob(tokens, None), plain(tables).log_prob(tokens.cpu()), device)


@pytest.mark.parametrize("device", DEVICES)
def test_a_shape_first_met_with_a_refused_text_answers_the_next_one(device: str) -> None:
    tables = small_tables(device)
    replays = Replays(tables)
    tokens, _ = texts(device, 0, ragged=False)
    wrong = tokens.clone()
    wrong[1, 1] = NUM_WORDS
    for text in (tokens, wrong, wrong, tokens, wrong, tokens):
        found = replays.log_prob(text, None)
        if text is wrong:
            assert found is None
        else:
            same(found, plain(tables).log_prob(tokens.cpu()), device)


def test_a_copy_has_graphs_of_its_own() -> None:
    replays = Replays(small_tables("cpu"))
    tokens, _ = texts("cpu", 0, ragged=False)
    for _ in range(3):
        replays.log_prob(tokens, None)
    assert num_graphs(replays) == 1
    assert num_graphs(copy.deepcopy(replays)) == 0


def test_where_a_gradient_is_asked_for_there_is_no_graph() -> None:
    tables = small_tables("cpu")
    tables.log_emission.requires_grad_()
    assert Replays(tables).log_prob(*texts("cpu", 0, ragged=False)) is None


def test_an_idle_graph_makes_room_and_one_in_use_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "MAX_GRAPHS", 2)
    monkeypatch.setattr(replay, "IDLE_ASKS", 4)
    replays = Replays(small_tables("cpu"))
    tokens, _ = texts("cpu", 0, ragged=False)

    def ask(*lengths: int) -> list[int]:
        for length in lengths:
            assert replays.log_prob(tokens[:, :length].contiguous(), None) is not None
        assert num_graphs(replays) == len(replays._shapes)
        return [key[1][0][1] for key in replays._shapes]  # type: ignore[index]

    assert ask(1, 1, 2, 2, 3, 1, 2, 3) == [1, 2]
    # They share memory and go together; one that was in use is back when it is asked for again.
    assert ask(2, 3) == [3]
    assert ask(2, 2, 3) == [2, 3]


def test_a_shape_that_comes_seldom_is_not_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "IDLE_ASKS", 3)
    replays = Replays(small_tables("cpu"))
    tokens = torch.randint(NUM_WORDS, (2, 4), generator=torch.Generator().manual_seed(0))
    for length in (1, 2, 3, 4, 1, 2, 3, 4):
        assert replays.log_prob(tokens[:, :length], None) is not None
    assert num_graphs(replays) == 0
    replays.log_prob(tokens, None)
    assert num_graphs(replays) == 1


@pytest.mark.skipif(torch.cuda.is_available(), reason="a graph does not say whose memory it uses")
def test_graphs_of_one_hmm_share_their_memory(made: list[WorkAgain]) -> None:
    replays = Replays(small_tables("cpu"))
    for length in (1, 2, 3):
        for _ in range(2):
            replays.log_prob(torch.zeros(2, length, dtype=torch.int64), None)
    first, *others = made
    assert [graph.in_memory_of for graph in others] == [first, first]


@pytest.mark.parametrize("device", DEVICES)
def test_a_graph_made_in_inference_mode_answers_outside_of_it(device: str) -> None:
    tables = small_tables(device)
    replays, hmm = Replays(tables), plain(tables)
    with torch.inference_mode():
        tokens, _ = texts(device, 0, ragged=False)
        for _ in range(3):
            assert replays.log_prob(tokens, None) is not None
    assert num_graphs(replays) == 1
    tokens, _ = texts(device, 1, ragged=False)
    for inside in (False, True):
        with torch.inference_mode(inside):
            same(replays.log_prob(tokens, None), hmm.log_prob(tokens.cpu()), device)


def test_tables_that_change_uncounted_are_left_to_the_plain_way() -> None:
    with torch.inference_mode():
        replays = Replays(small_tables("cpu"))
        assert replays.log_prob(*texts("cpu", 0, ragged=False)) is None


def test_few_states_and_a_long_text_are_left_to_the_scan() -> None:
    replays = Replays(small_tables("cpu"))
    assert replays.log_prob(torch.zeros(2, 2048, dtype=torch.int64), None) is None


def test_an_hmm_has_graphs_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "MAX_LOOP_STATES", 0)
    tables = small_tables("cpu")
    assert HMM(tables)._prepared is None
    monkeypatch.setattr(hmm_module, "kernels_run", lambda dtype, device: dtype == torch.float32)
    hmm = HMM(tables)
    assert hmm._prepared is not None
    assert hmm.to(dtype=torch.float64)._prepared is None
    assert hmm.with_reset_token(2)._prepared is not None
    assert HMM(tables, graphs=False).with_reset_token(2)._prepared is None
    tokens, lengths = texts("cpu", 0, ragged=True)
    wrong = tokens.clone()
    wrong[0, 1] = NUM_WORDS
    for _ in range(3):
        same(hmm.log_prob(tokens, lengths), plain(tables).log_prob(tokens, lengths), "cpu")
        with pytest.raises(ValueError, match=f"{NUM_WORDS}"):
            hmm.log_prob(wrong, lengths)
    assert copy.deepcopy(hmm)._prepared is not hmm._prepared
