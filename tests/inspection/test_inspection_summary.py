"""A reading in a few numbers, and the inspection of a small model."""

import math

import numpy as np
import pytest
import torch
from texts import as_text
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.cluster import word_counts
from vlhmm.inspection import Inspection, inspect_text
from vlhmm.inspection.summary import by_range, line_positions, usage


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return tiny_corpus(120)


@pytest.fixture(scope="module")
def lm(corpus: vlhmm.Corpus) -> vlhmm.LanguageModel:
    model = tiny_model(corpus, generator=torch.Generator().manual_seed(0))
    vlhmm.train(model, corpus, epochs=3, batch_size=8, window=16, learning_rate=0.05)
    return vlhmm.LanguageModel(model, corpus.tokenizer)


@pytest.fixture(scope="module")
def found(lm: vlhmm.LanguageModel, corpus: vlhmm.Corpus) -> Inspection:
    counts = word_counts(corpus.train, corpus.tokenizer.vocab_size)
    return inspect_text(lm, corpus.valid, train_counts=counts, memory=12, top=5)


def test_equal_states_are_all_used_and_a_lone_one_alone() -> None:
    equal = usage(torch.full((200,), 3.0).double())
    assert equal.effective == pytest.approx(200)
    assert equal.states_for == {0.5: 100, 0.9: 180, 0.99: 198}
    assert equal.at_least_one_token == 200
    lone = usage(torch.tensor([0.0, 7.0, 0.0]).double())
    assert (lone.effective, lone.at_least_one_token) == (pytest.approx(1), 1)
    assert set(lone.states_for.values()) == {1}
    assert usage(torch.zeros(4).double()).effective == 0


def test_ranges_are_a_partition_of_tokens_and_nats() -> None:
    random = np.random.default_rng(0)
    values, log_probs = random.integers(1, 60, 500), torch.tensor(-random.random(500))
    ranges = by_range(values, log_probs, (1, 2, 9, 40))
    assert [(one.first, one.last) for one in ranges] == [(1, 1), (2, 8), (9, 39), (40, None)]
    assert sum(one.num_tokens for one in ranges) == 500
    assert sum(one.share_of_nats for one in ranges) == pytest.approx(1)
    nats = sum(one.num_tokens * math.log(one.perplexity) for one in ranges)
    assert nats == pytest.approx(-float(log_probs.sum()))
    inside = (values >= 2) & (values < 9)
    assert ranges[1].perplexity == pytest.approx(math.exp(-float(log_probs[torch.from_numpy(inside)].mean())))


def test_places_in_a_line_begin_after_eos() -> None:
    assert line_positions(np.array([5, 6, 0, 7, 0, 0, 8]), eos_id=0).tolist() == [1, 2, 3, 1, 2, 1, 1]


def test_an_inspection_agrees_with_the_models_own_answers(
    found: Inspection, lm: vlhmm.LanguageModel, corpus: vlhmm.Corpus
) -> None:
    assert found.perplexity == pytest.approx(lm.perplexity(corpus.valid), rel=1e-6)
    posterior = lm.hmm.posterior(corpus.valid.ids[None].astype(np.int64))
    torch.testing.assert_close(found.reading.occupancy, posterior.dense().double().sum((0, 1)), rtol=1e-4, atol=1e-4)
    group = lm.model.support.group_of_word[torch.from_numpy(corpus.valid.ids.astype(np.int64))]
    for one in found.blocks:
        assert one.usage.num_tokens == pytest.approx(int((group == one.block).sum()), rel=1e-4)
    assert found.usage.num_tokens == pytest.approx(len(corpus.valid), rel=1e-5)


def test_more_memory_comes_to_the_whole_text(found: Inspection) -> None:
    memory = found.memory
    assert memory is not None
    assert memory.longest == 12
    assert memory.perplexity[0] > memory.perplexity[12]
    assert memory.perplexity[12] == pytest.approx(memory.unlimited, rel=1e-3)


def test_used_states_say_where_they_lead(found: Inspection, lm: vlhmm.LanguageModel) -> None:
    tables = lm.hmm.tables
    assert len(found.states) == 5
    for one in found.states:
        row = tables.transition.log_rows(torch.tensor([one.state.state])).exp()[0]
        next_state, prob = one.next_states[0]
        assert prob == pytest.approx(float(row.max()), rel=1e-5)
        assert next_state.state == int(row.argmax())
        word, word_prob = one.next_words[0]
        token = lm.tokenizer.token_id(word)
        assert token is not None
        emitted = row[tables.support.states_of(torch.tensor(token))] @ tables.log_emission[token].exp()
        assert word_prob == pytest.approx(float(emitted), rel=1e-4)


def test_nothing_is_shown_that_is_not_known(lm: vlhmm.LanguageModel, corpus: vlhmm.Corpus) -> None:
    found = inspect_text(lm, corpus.valid, memory=0, top=0)
    assert found.memory is None
    assert found.by_frequency == []
    assert found.states == []
    assert sum(one.num_tokens for one in found.by_line_position) == len(corpus.valid)


@pytest.mark.parametrize(
    ("ids", "options", "message"),
    [
        ([1, 2, 3], {"memory": 3}, "the text has 3 tokens, but contexts of 3 need at least 4"),
        ([], {"memory": 0}, "the text has 0 tokens"),
        ([1, 2, 999], {"memory": 1}, "token 999, but the model's vocabulary ends at"),
        ([1, 2, 3], {"memory": -1}, "memory is -1"),
        ([1, 2, 3], {"streams": 0}, "streams is 0, but must be at least 1"),
    ],
)
def test_bad_input_is_refused(lm: vlhmm.LanguageModel, ids: list[int], options: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        inspect_text(lm, as_text(ids), **options)  # type: ignore[arg-type]
