"""Lists of texts: every answer is the one that the text gets alone, whatever stands beside it."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny import NOUNS, PLACES, VERBS, tiny_corpus, tiny_model

import vlhmm
from vlhmm.control import contains, words
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.text.batching import as_texts, in_batches

WORDS = ["the", "in", *NOUNS, *VERBS, *PLACES, "unheard"]
TEXT = st.lists(st.sampled_from(WORDS), max_size=9).map(" ".join)
TEXTS = st.lists(TEXT, min_size=1, max_size=6)
UGLY = ["", "the", "the cat sees the dog in it", "the", "", "garden garden"]


def make(kind: str) -> vlhmm.LanguageModel:
    corpus, generator = tiny_corpus(60), torch.Generator().manual_seed(0)
    if kind == "dense":
        model = vlhmm.scalar_hmm(vlhmm.Blocks(np.zeros(corpus.tokenizer.vocab_size, np.int64), 1), states_per_block=5)
    else:
        model = tiny_model(corpus, reset=kind)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += torch.randn(parameter.shape, generator=generator)
    return vlhmm.LanguageModel(model, corpus.tokenizer)


@pytest.fixture(scope="module", params=["eos", "carry", "dense"])
def lm(request: pytest.FixtureRequest) -> vlhmm.LanguageModel:
    return make(request.param)


def same(left: Any, right: Any) -> None:
    """Equal to the rounding of float32, in every field of every record."""
    if isinstance(left, float):
        assert left == pytest.approx(right, rel=2e-6, abs=2e-6)
    elif dataclasses.is_dataclass(left):
        assert type(left) is type(right)
        same(
            [getattr(left, f.name) for f in dataclasses.fields(left)],
            [getattr(right, f.name) for f in dataclasses.fields(right)],
        )
    elif isinstance(left, list | tuple):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            same(one, other)
    else:
        assert left == right


def of_names(pairs: list[tuple[str, float]]) -> dict[str, float]:
    return dict(sorted(pairs))


@example(UGLY)
@given(TEXTS)
@settings(max_examples=6, deadline=None)
def test_scores_of_a_list_are_those_of_each_text(lm: vlhmm.LanguageModel, texts: list[str]) -> None:
    same(lm.score(texts, eos=True), [lm.score(text, eos=True) for text in texts])
    same(lm.perplexity(tuple(texts), eos=True), [lm.score(text, eos=True).perplexity for text in texts])


@example(UGLY)
@given(TEXTS)
@settings(max_examples=6, deadline=None)
def test_next_tokens_of_a_list_are_those_of_each_text(lm: vlhmm.LanguageModel, texts: list[str]) -> None:
    every = lm.tokenizer.vocab_size
    for text, found in zip(texts, lm.next_tokens(texts, top=every), strict=True):
        # Words of equal probability may change places.
        assert of_names(found) == pytest.approx(of_names(lm.next_tokens(text, top=every)), abs=2e-6)
        assert [prob for _, prob in found] == sorted((prob for _, prob in found), reverse=True)


@example([text for text in UGLY if text])
@given(TEXTS.map(lambda texts: [text or "the" for text in texts]))
@settings(max_examples=2, deadline=None)
def test_posteriors_paths_and_explanations_of_a_list_are_those_of_each_text(
    lm: vlhmm.LanguageModel, texts: list[str]
) -> None:
    def by_state(tokens: list[Any]) -> list[dict[int, float]]:
        return [{state.state: prob for state, prob in token.states} for token in tokens]

    def pairs(token: Any) -> dict[tuple[int, int], float]:
        return {(one.state.state, other.state): one.prob * prob for one in token.states for other, prob in one.next}

    every = lm.hmm.num_states
    for text, posterior, path, paths, explanation in zip(
        texts,
        lm.posterior(texts, every),
        lm.viterbi(texts),
        lm.viterbi(texts, 3),
        lm.explain(texts, every, every),
        strict=True,
    ):
        alone = lm.posterior(text, every)
        for found, expected in zip(by_state(posterior), by_state(alone), strict=True):
            assert found == pytest.approx(expected, abs=2e-6)
        # Rounded probabilities of a few 1e-7, times the logarithms of small ones.
        for token, other in zip(posterior, alone, strict=True):
            assert token.token == other.token
            assert token.entropy == pytest.approx(other.entropy, abs=3e-5)
        assert path.log_prob == pytest.approx(lm.viterbi(text).log_prob, abs=1e-5)
        assert path.tokens == [token.token for token in alone]
        same([one.log_prob for one in paths], [one.log_prob for one in lm.viterbi(text, 3)])
        expected = lm.explain(text, every, every)
        same(explanation.score, expected.score)
        assert explanation.path_entropy == pytest.approx(expected.path_entropy, abs=1e-5)
        for token, one in zip(explanation.tokens, expected.tokens, strict=True):
            # Of rare states p(next | state) is a ratio of small numbers: p(state, next) is as precise as all are.
            left, right = pairs(token), pairs(one)
            either = left.keys() | right.keys()
            assert [left.get(pair, 0) for pair in either] == pytest.approx(
                [right.get(pair, 0) for pair in either], abs=3e-6
            )


@example(UGLY)
@given(TEXTS)
@settings(max_examples=2, deadline=None)
def test_constraints_after_a_list_are_those_after_each_text(lm: vlhmm.LanguageModel, texts: list[str]) -> None:
    wanted = contains("dog") & words(1, 4)
    for until_eos in (False, True):
        found = lm.constraint_probability(texts, wanted, 4, until_eos=until_eos)
        same(found, [lm.constraint_probability(text, wanted, 4, until_eos=until_eos) for text in texts])
    best = lm.best_text(texts, max_tokens=4, constraint=wanted)
    same(
        [one.log_prob for one in best], [lm.best_text(text, max_tokens=4, constraint=wanted).log_prob for text in texts]
    )
    assert all(contained.text.count("dog") > text.count("dog") for text, contained in zip(texts, best, strict=True))


@example(UGLY)
@given(TEXTS)
@settings(max_examples=2, deadline=None)
def test_a_prompt_with_its_own_generator_is_continued_as_alone(lm: vlhmm.LanguageModel, texts: list[str]) -> None:
    def seeded() -> list[torch.Generator]:
        return [torch.Generator().manual_seed(seed) for seed in range(len(texts))]

    for constraint in (None, contains("the")):
        together = lm.generate(texts, num=3, max_tokens=5, constraint=constraint, seed=seeded())
        alone = [
            lm.generate(text, num=3, max_tokens=5, constraint=constraint, seed=generator)
            for text, generator in zip(texts, seeded(), strict=True)
        ]
        assert together == alone


def test_prompts_of_a_list_are_drawn_independently(lm: vlhmm.LanguageModel) -> None:
    """One generator for all: the frequencies of the first token are those of `next_tokens`, for each prompt."""
    prompts = ["", "the", "the cat sees the dog in"]
    num = 2000
    drawn = lm.generate(prompts, num=num, max_tokens=1, seed=1)
    for prompt, texts in zip(prompts, drawn, strict=True):
        for token, prob in lm.next_tokens(prompt, top=5):
            ending = prompt if token == "<eos>" else f"{prompt} {token}".strip()
            count = sum(text == ending for text in texts)
            assert abs(count - num * prob) < 5 * math.sqrt(num * prob * (1 - prob)) + 1


def test_gaps_of_a_list_are_filled_as_those_of_each_text(lm: vlhmm.LanguageModel) -> None:
    texts = ["the ___ sees the dog", "___", "the cat ___{1,2} the ___"]
    same(lm.infill(texts, num=0), [lm.infill(text, num=0) for text in texts])


def test_many_texts_are_one_forward_pass(lm: vlhmm.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[torch.Size] = []
    ask = vlhmm.HMM.token_log_probs

    def counted(self: vlhmm.HMM, tokens: torch.Tensor, *args: Any, **settings: Any) -> torch.Tensor:
        calls.append(tokens.shape)
        return ask(self, tokens, *args, **settings)

    monkeypatch.setattr(vlhmm.HMM, "token_log_probs", counted)
    lm.score(["the cat", "the", "the dog sees the cat"] * 20)
    assert calls == [(60, 5)]


@pytest.mark.parametrize("limit", [1, 5_000, 20_000, 1 << 28])
def test_batches_are_bounded_and_hold_every_text_once(lm: vlhmm.LanguageModel, limit: int) -> None:
    tables = lm.hmm.tables
    ids = [[1] * length for length in (3, 9, 1, 1, 7, 2, 30, 1)]
    batches = list(in_batches(ids, tables, limit))
    assert sorted(place for batch in batches for place in batch.places) == list(range(len(ids)))
    per_token = 8 * tables.support.states_per_word * tables.log_emission.element_size()
    for batch in batches:
        assert batch.tokens.numel() * per_token <= limit or len(batch.places) == 1
        for place, row in zip(batch.places, batch.rows(batch.tokens), strict=True):
            assert row == ids[place]


def test_answers_do_not_depend_on_the_size_of_batches(lm: vlhmm.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["the cat sees the dog", "", "the", "the bird hears the fish in the river", "", "in the house"]

    def answers() -> list[Any]:
        generator = torch.Generator().manual_seed(0)
        one_each = [torch.Generator().manual_seed(seed) for seed in range(len(texts))]
        return [
            lm.score(texts, eos=True),
            [sorted(found) for found in lm.next_tokens(texts, top=100)],
            lm.constraint_probability(texts, contains("the"), 3),
            lm.generate(texts, max_tokens=4, num=2, seed=one_each),
            lm.generate(texts, max_tokens=4, constraint=contains("the"), seed=generator, top_k=1),
        ]

    whole = answers()
    for module in ("text.batching", "text.queries", "text.generation", "control.generate"):
        monkeypatch.setattr(f"vlhmm.{module}.BATCH_BYTES", 1)
    monkeypatch.setattr(in_batches, "__defaults__", (1,))
    same(answers(), whole)


def test_no_text_has_no_answer(lm: vlhmm.LanguageModel) -> None:
    questions: list[Callable[[Any], Any]] = [
        lm.score, lm.perplexity, lm.next_tokens, lm.posterior, lm.viterbi, lm.explain, lm.generate, lm.best_text, lm.infill,
        lambda texts: lm.constraint_probability(texts, contains("dog"), 3),
    ]  # fmt: skip
    for question in questions:
        assert question([]) == []


def test_lists_are_read_from_arrays_and_iterators() -> None:
    texts = ["the cat", "the"]
    for given_as in (np.array(texts), iter(texts), tuple(texts)):
        assert as_texts("text", given_as) == texts


def test_a_bad_text_of_a_list_is_named_by_its_place(lm: vlhmm.LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"text 1 of the list .* has 0 tokens"):
        lm.score(["the", "", "cat"])
    with pytest.raises(ValueError, match=r"text\[2\] is 5 \(int\), but text \(str\) is needed"):
        as_texts("text", ["the", "cat", 5])
    for wrong in (5, None, b"the", {"the"}, {"the": 1}):
        with pytest.raises(ValueError, match=r"a list of texts is needed"):
            as_texts("text", wrong)
    with pytest.raises(ValueError, match=r"seed has 1 generators or numbers, but there are 2 prompts"):
        lm.generate(["the", "cat"], seed=[torch.Generator()])


def test_an_impossible_text_of_a_list_is_named_by_its_place() -> None:
    tokenizer = vlhmm.data.word_tokenizer(["a", "b"], unk=False)
    a, b, eos = (tokenizer.token_id(name) for name in ("a", "b", "<eos>"))
    emission = np.zeros((2, 3))
    emission[0, a], emission[1, [b, eos]] = 1, 0.5
    hmm = vlhmm.HMM.from_probabilities([1, 0], [[0, 1], [0, 1]], emission, reset_token=eos)
    lm = vlhmm.LanguageModel.from_hmm(hmm, tokenizer)
    assert lm.score(["a b", "b a", "a"])[1].log_prob == -math.inf
    for question in (lm.viterbi, lm.explain):
        with pytest.raises(ImpossibleTextError, match="text 2 of the list"):
            question(["a b b b", "a", "b a", "a b"])
    with pytest.raises(ImpossibleTextError, match="gives 'b' probability zero"):
        lm.generate(["a", "b", "a b"])
    with pytest.raises(ValueError, match=r"text 1 of the list .* probability zero"):
        lm.generate(["", "a"], constraint=contains("a"), max_tokens=3)


def test_infill_of_a_list_names_the_text_that_it_refuses(lm: vlhmm.LanguageModel) -> None:
    with pytest.raises(ValueError, match=r"^text 1 of the list \(the first is 0\): the text has 0 gaps"):
        lm.infill(["the ___", "no gap"])
    with pytest.raises(ValueError, match=r"^the text has 0 gaps"):
        lm.infill("no gap")


def test_a_seed_is_a_number_or_a_generator_and_the_older_name_warns(lm: vlhmm.LanguageModel) -> None:
    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(4)

    for draw in (
        lambda **given: lm.generate("the", num=4, max_tokens=6, **given),
        lambda **given: lm.generate("the", num=4, max_tokens=6, constraint=contains("the"), **given),
        lambda **given: lm.generate(["the", "cat"], num=2, max_tokens=6, **given),
        lambda **given: lm.infill(["the ___{3} the", "___ cat"], num=4, **given),
    ):
        drawn = draw(seed=4)
        assert draw(seed=seeded()) == drawn
        with pytest.warns(DeprecationWarning, match="generator= is now seed="):
            assert draw(generator=seeded()) == drawn
    assert lm.generate(["the", "cat"], seed=[4, 7]) == [lm.generate("the", seed=4), lm.generate("cat", seed=7)]
