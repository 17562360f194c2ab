"""Modified Kneser-Ney: the formulas, one distribution for every context, and the same scores however a text is cut."""

import math
from collections import Counter, defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_corpus

import vlhmm
from vlhmm.baselines import KneserNey
from vlhmm.data import Corpus, Tokens
from vlhmm.evaluate import Scorer, evaluate
from vlhmm.reports import evaluation

FALLBACK = (0.5, 1.0, 1.5)


def text(sentences: list[list[int]], num_words: int) -> Tokens:
    """Each sentence ends with word 0, EOS."""
    return Tokens.from_documents([[*sentence, 0] for sentence in sentences], num_words)


def random_sentences(seed: int, num: int, num_words: int) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    # Few words are frequent and many rare, as in a language.
    share = 1 / np.arange(1, num_words)
    share /= share.sum()
    lengths = generator.integers(0, 9, num)
    return [(1 + generator.choice(num_words - 1, length, p=share)).tolist() for length in lengths]


def log_probs(model: KneserNey, tokens: list[list[int]], lengths: list[int] | None = None) -> torch.Tensor:
    lengths = lengths or [len(row) for row in tokens]
    return model.score_window(torch.tensor(tokens), torch.tensor(lengths), None)[0]


class Formulas:
    """Chen & Goodman's formulas with dictionaries of n-grams, a word at a time; -1 is `<s>`."""

    def __init__(self, sentences: list[list[int]], order: int, num_words: int) -> None:
        padded = [(-1, *sentence, 0) for sentence in sentences]
        self.order, self.num_words = order, num_words
        self.seen = {
            length: Counter(
                sentence[first : first + length] for sentence in padded for first in range(len(sentence) - length + 1)
            )
            for length in range(1, order + 1)
        }
        self.adjusted = {
            length: self.seen[length] if length == order else self._left_words(length) for length in self.seen
        }
        del self.adjusted[1][(-1,)]
        self.discounts = {length: self._discount(Counter(counts.values())) for length, counts in self.adjusted.items()}

    def _left_words(self, length: int) -> Counter[tuple[int, ...]]:
        left = defaultdict(set)
        for gram in self.seen[length + 1]:
            left[gram[1:]].add(gram[0])
        return Counter({g: self.seen[length][g] if g[0] == -1 else len(left[g]) for g in self.seen[length]})

    def _discount(self, times: Counter[int]) -> tuple[float, ...]:
        if not (times[1] and times[2] and times[3]):
            return (0, *FALLBACK)
        y = times[1] / (times[1] + 2 * times[2])
        found = [j - (j + 1) * y * times[j + 1] / times[j] for j in (1, 2, 3)]
        return (0, *found) if min(found) > 0 else (0, *FALLBACK)

    def prob(self, word: int, context: tuple[int, ...]) -> float:
        length = len(context) + 1
        shorter = self.prob(word, context[1:]) if context else 1 / self.num_words
        after = {gram[-1]: count for gram, count in self.adjusted[length].items() if gram[:-1] == context}
        if not after:
            return shorter
        taken = {v: self.discounts[length][min(count, 3)] for v, count in after.items()}
        kept = after.get(word, 0) - taken.get(word, 0)
        return (kept + sum(taken.values()) * shorter) / sum(after.values())

    def log_probs(self, sentence: list[int]) -> list[float]:
        padded = (-1, *sentence, 0)
        return [
            math.log(self.prob(padded[at], padded[max(0, at - self.order + 1) : at])) for at in range(1, len(padded))
        ]


def test_a_bigram_model_computed_by_hand() -> None:
    # a b / a b / a c, with a, b, c = 1, 2, 3. Left words: a 1 (<s>), b 1, c 1, EOS 2, with the discounts 1/2 and 1.
    # Pairs: <s> a 3, a b 2, a c 1, b EOS 2, c EOS 1; so y = 2 / (2 + 4), and the discounts are 1/3, 3/2 and 3.
    model = KneserNey.fit(text([[1, 2], [1, 2], [1, 3]], 4), num_words=4, eos_id=0, order=2, fallback=FALLBACK)
    rare, eos = 0.5 / 5 + 0.5 / 4, 1 / 5 + 0.5 / 4
    expected = [rare, 0.5 / 3 + (3 / 2 + 1 / 3) / 3 * rare, 0.5 / 2 + 1.5 / 2 * eos]
    torch.testing.assert_close(log_probs(model, [[1, 2, 0]])[0].exp(), torch.tensor(expected, dtype=torch.float64))
    assert model.num_parameters == 5 + 5


@pytest.mark.parametrize("order", [1, 2, 3, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_scores_equal_the_formulas(order: int, seed: int) -> None:
    num_words = 12
    sentences = random_sentences(seed, 60, num_words - 2)  # Two words are never seen.
    model = KneserNey.fit(text(sentences, num_words), num_words=num_words, eos_id=0, order=order, fallback=FALLBACK)
    slow = Formulas(sentences, order, num_words)
    unseen = [*random_sentences(seed + 10, 6, num_words), [num_words - 1, 1], []]
    expected = [value for sentence in unseen for value in slow.log_probs(sentence)]
    found = log_probs(model, [text(unseen, num_words).ids.tolist()])[0]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-12)
    assert model.discounts is not None
    assert order == 1 or any(discount.estimated for discount in model.discounts)
    # <s> has no count, and unseen words have 1-grams of their own.
    assert model.num_parameters == num_words + 1 + sum(len(slow.seen[length]) for length in range(2, order + 1))


@settings(max_examples=20)
@given(
    sentences=st.lists(st.lists(st.integers(1, 5), max_size=6), min_size=1, max_size=8),
    context=st.lists(st.integers(0, 6), max_size=7),
    order=st.integers(1, 4),
    eos_id=st.sampled_from([0, None]),
)
def test_probabilities_after_any_context_sum_to_one(
    sentences: list[list[int]], context: list[int], order: int, eos_id: int | None
) -> None:
    model = KneserNey.fit(text(sentences, 7), num_words=7, eos_id=eos_id, order=order, fallback=FALLBACK)
    last = log_probs(model, [[*context, word] for word in range(7)])[:, -1]
    assert float(last.exp().sum()) == pytest.approx(1, rel=1e-12)
    assert bool((last > -math.inf).all())


@pytest.mark.parametrize("order", [1, 2, 4])
def test_windows_of_any_length_give_the_same_scores(order: int) -> None:
    tokens = text(random_sentences(3, 80, 9), 9)
    model = KneserNey.fit(tokens, num_words=9, eos_id=0, order=order, fallback=FALLBACK)
    whole = log_probs(model, [tokens.ids.tolist()])
    for window in (1, 2, 7, 512):
        assert evaluate(model, tokens, window=window).log_prob == pytest.approx(float(whole.sum()), rel=1e-12)


def test_padding_past_a_length_is_ignored_in_scores_and_state() -> None:
    tokens = text(random_sentences(4, 50, 9), 9)
    model = KneserNey.fit(tokens, num_words=9, eos_id=0, order=3, fallback=FALLBACK)
    first = torch.tensor([[3, 1, 2, 4], [2, 5, 999, -7]])
    scored, state = model.score_window(first, torch.tensor([4, 2]), None)
    assert scored.dtype == torch.float64
    assert scored[1, 2:].tolist() == [0, 0]
    after = model.score_window(torch.tensor([[1], [1]]), torch.tensor([1, 1]), state)[0]
    assert float(after[0, 0]) == pytest.approx(float(log_probs(model, [[3, 1, 2, 4, 1]])[0, -1]))
    assert float(after[1, 0]) == pytest.approx(float(log_probs(model, [[2, 5, 1]])[0, -1]))


def test_sentences_are_independent_and_one_endless_text_is_not() -> None:
    tokens = text(random_sentences(5, 200, 9), 9)
    model = KneserNey.fit(tokens, num_words=9, eos_id=0, order=4, fallback=FALLBACK)
    alone = log_probs(model, [[1, 2, 3]])[0]
    torch.testing.assert_close(log_probs(model, [[2, 2, 0, 1, 2, 3]])[0, 3:], alone)
    endless = KneserNey.fit(tokens, num_words=9, eos_id=None, order=4, fallback=FALLBACK)
    differs = log_probs(endless, [[2, 2, 0, 1, 2, 3]])[0, 3:] != log_probs(endless, [[1, 2, 3]])[0]
    assert bool(differs.any())
    assert "begun anew after token 0" in model.protocol
    assert "anew" not in endless.protocol


def test_a_text_shorter_than_the_order_backs_off() -> None:
    model = KneserNey.fit(text([[1, 2]], 4), num_words=4, eos_id=0, order=6, fallback=FALLBACK)
    assert [len(grams) for grams in model.orders] == [5, 3, 2, 1, 0, 0]
    assert bool(log_probs(model, [[1, 2, 0, 3, 1, 2]]).isfinite().all())


def test_a_text_too_small_for_discounts_is_refused_without_a_fallback() -> None:
    tokens = text([[1, 2], [1, 2], [1, 3]], 4)
    with pytest.raises(ValueError, match=r"3 1-grams .* count of 1, 1 of 2, 0 of 3.*fallback=\(0.5, 1.0, 1.5\)"):
        KneserNey.fit(tokens, num_words=4, eos_id=0, order=2)
    model = KneserNey.fit(tokens, num_words=4, eos_id=0, order=2, fallback=FALLBACK)
    assert model.discounts is not None
    assert [discount.estimated for discount in model.discounts] == [False, True]
    assert model.discounts[0].amounts == FALLBACK


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"order": 0}, "order 0"),
        ({"num_words": 3}, r"ids from 0 to 3.*0\.\.2"),
        ({"eos_id": 4}, r"EOS is token 4.*0\.\.3"),
        ({"tokens": text([], 4)}, "0 tokens"),
        ({"fallback": (0.5, 0.0, 1.0)}, "discount of 0.0 for a count of 2"),
        ({"fallback": (1.5, 1.0, 1.0)}, "discount of 1.5 for a count of 1"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], message: str) -> None:
    arguments = {"tokens": text([[1, 2], [3]], 4), "num_words": 4, "eos_id": 0, "fallback": FALLBACK}
    with pytest.raises(ValueError, match=message):
        KneserNey.fit(**{**arguments, **change})  # type: ignore[arg-type]


def counted(corpus: Corpus) -> tuple[dict[str, Scorer[Any]], str]:
    """The models that a report compares with, and its notes about them."""
    steps, notes = evaluation.counting_baselines(corpus), list[str]()
    while True:
        try:
            notes.append(next(steps).text)
        except StopIteration as stop:
            return stop.value, "\n".join(notes)


def test_reports_compare_with_it_and_say_what_it_guessed(monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = tiny_corpus(100)
    scorers, notes = counted(corpus)
    assert list(scorers) == ["uniform", "unigram", "Kneser-Ney 5-gram"]
    perplexities = [evaluate(scorer, corpus.test).perplexity for scorer in scorers.values()]
    assert perplexities == sorted(perplexities, reverse=True)
    assert "too small to estimate discounts of order 1" in notes
    monkeypatch.setattr(evaluation, "KNESER_NEY_TOKENS", 10)
    scorers, notes = counted(corpus)
    assert list(scorers) == ["uniform", "unigram"]
    assert "counted for comparison up to 10" in notes


@pytest.mark.data
def test_the_penn_treebank_gives_the_published_perplexity() -> None:
    corpus = vlhmm.load_corpus("ptb")
    model = KneserNey.fit(corpus.train, num_words=corpus.tokenizer.vocab_size, eos_id=corpus.tokenizer.eos_id)
    assert model.num_parameters == 2_317_234
    # Chiu & Rush 2020, Table 1.
    assert evaluate(model, corpus.test).perplexity == pytest.approx(141.2, abs=0.05)
