"""The laws of automata, against enumeration of all short sequences."""

import itertools
import math
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlhmm.control import Automaton
from vlhmm.control.minimise import minimised
from vlhmm.control.operations import TooManyStates, complement, intersection, union


def sequences(num_tokens: int, longest: int) -> Iterator[tuple[int, ...]]:
    for size in range(longest + 1):
        yield from itertools.product(range(num_tokens), repeat=size)


@st.composite
def automata(draw: st.DrawFn, num_tokens: int = 3) -> Automaton:
    num_states, num_classes = draw(st.integers(1, 6)), draw(st.integers(1, 3))
    state, token_class = st.integers(0, num_states - 1), st.integers(0, num_classes - 1)
    rows = draw(
        st.lists(st.lists(state, min_size=num_classes, max_size=num_classes), min_size=num_states, max_size=num_states)
    )
    return Automaton(
        torch.tensor(draw(st.lists(token_class, min_size=num_tokens, max_size=num_tokens))),
        torch.tensor(rows),
        draw(state),
        torch.tensor(draw(st.lists(st.booleans(), min_size=num_states, max_size=num_states))),
    )


@given(automata(), automata())
def test_products_and_complement_are_set_operations(first: Automaton, second: Automaton) -> None:
    both, either, neither = intersection([first, second]), union([first, second]), complement(first)
    for tokens in sequences(3, 5):
        in_first, in_second = first.accepts(tokens), second.accepts(tokens)
        assert both.accepts(tokens) == (in_first and in_second)
        assert either.accepts(tokens) == (in_first or in_second)
        assert neither.accepts(tokens) != in_first


@given(automata())
def test_minimised_accepts_the_same_with_as_few_states_as_there_are_futures(automaton: Automaton) -> None:
    small = minimised(automaton)
    texts = list(sequences(3, 5))
    assert [small.accepts(tokens) for tokens in texts] == [automaton.accepts(tokens) for tokens in texts]
    # Six states are reached, and told apart, by texts of five tokens at most.
    reached = {small.run(before) for before in texts}
    assert reached == set(range(small.num_states))
    futures = {tuple(bool(small.accepting[small.run(after, state)]) for after in texts) for state in reached}
    assert len(futures) == small.num_states
    assert len({tuple(column) for column in small.next_state.T.tolist()}) == small.num_classes
    assert sorted(set(small.class_of_token.tolist())) == list(range(small.num_classes))


@given(automata())
def test_shortest_is_the_length_of_the_shortest_accepted_sequence(automaton: Automaton) -> None:
    distance = automaton.shortest()
    for state in range(automaton.num_states):
        accepted = (tokens for tokens in sequences(3, 5) if automaton.accepting[automaton.run(tokens, state)])
        assert distance[state] == min(map(len, accepted), default=math.inf)
    assert automaton.is_empty == math.isinf(distance[automaton.start])


@given(automata(), st.integers(0, 2), st.booleans())
def test_text_ends_at_eos(automaton: Automaton, eos_id: int, required: bool) -> None:
    ending = automaton.ending_at(eos_id, required=required)
    for tokens in sequences(3, 5):
        if eos_id in tokens:
            expected = automaton.accepts(tokens[: tokens.index(eos_id)])
        else:
            expected = not required and automaton.accepts(tokens)
        assert ending.accepts(tokens) == expected
    assert (ending.class_of_token == ending.class_of_token[eos_id]).sum() == 1


@given(automata(), st.integers(0, 2))
def test_ended_well_is_never_left(automaton: Automaton, eos_id: int) -> None:
    ending = automaton.ending_at(eos_id, required=True)
    ended = int(ending.accepting.nonzero().item())
    assert {ending.run([token], ended) for token in range(3)} == {ended}


def test_tokens_of_another_vocabulary_are_refused() -> None:
    automaton = Automaton(torch.zeros(3, dtype=torch.int64), torch.tensor([[0]]), 0, torch.tensor([True]))
    with pytest.raises(ValueError, match=r"token id 3 is outside 0\.\.2"):
        automaton.accepts([0, 3])
    with pytest.raises(ValueError, match=r"token is 7, outside 0\.\.2"):
        automaton.ending_at(7, required=True)


def test_product_of_too_many_states_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def counter(size: int) -> Automaton:
        return Automaton(
            torch.zeros(1, dtype=torch.int64),
            (torch.arange(size)[:, None] + 1) % size,
            0,
            torch.arange(size) == 0,
        )

    # Coprime, so that every pair of states is reached.
    monkeypatch.setattr("vlhmm.control.operations.MAX_STATES_BETWEEN", 419)
    with pytest.raises(TooManyStates, match="more than 419 automaton states"):
        intersection([counter(20), counter(21)])
    monkeypatch.setattr("vlhmm.control.operations.MAX_STATES_BETWEEN", 420)
    assert intersection([counter(20), counter(21)]).num_states == 420
