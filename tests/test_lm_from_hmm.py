"""A language model made of an HMM, moved, and asked by the argument names of transformers."""

import math
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from kinds import close, every_kind, some_sentences
from oracle import Kind, random_hmm

import vlhmm
from vlhmm.control import contains, words
from vlhmm.data import Tokens, word_tokenizer


def named(num_words: int) -> vlhmm.Tokenizer:
    """Token t is the word `wt`; none of them ends a text."""
    vocabulary = {f"w{token}": token for token in range(num_words)}
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token=""))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    return vlhmm.Tokenizer.from_backend(backend)


def text_of(tokens: np.ndarray) -> str:
    return " ".join(f"w{token}" for token in tokens)


@every_kind
def test_it_answers_as_enumeration_does_and_comes_back_from_its_folder(kind: Kind, tmp_path: Path) -> None:
    oracle, tables = random_hmm(kind, seed=1)
    lm = vlhmm.LanguageModel.from_hmm(vlhmm.HMM(tables), named(oracle.num_words), {"note": "drawn"})
    sentences = some_sentences(oracle, seed=1)
    expected = np.array([oracle.log_prob(tokens) for tokens in sentences])
    texts = [text_of(tokens) for tokens in sentences]
    close(np.array([score.log_prob for score in lm.score(texts)]), expected, torch.float32)
    lm.save(tmp_path)
    again = vlhmm.load(tmp_path)
    assert again.about == {"note": "drawn"}
    assert again.score(texts) == lm.score(texts)


def test_an_hmm_over_another_vocabulary_is_refused() -> None:
    hmm = vlhmm.HMM.from_probabilities([1.0], [[1.0]], [[0.5, 0.5]])
    with pytest.raises(ValueError, match="the tokenizer has 3 tokens, but the model has 2"):
        vlhmm.LanguageModel.from_hmm(hmm, named(3))


@pytest.fixture(scope="module")
def lm() -> vlhmm.LanguageModel:
    """Words a, b, c after any history with probabilities 0.5, 0.2, 0.1; the text ends with 0.2."""
    tokenizer = word_tokenizer(["a", "b", "c"], unk=False)
    emission = torch.zeros(1, 4, dtype=torch.float64)
    for name, prob in {"a": 0.5, "b": 0.2, "c": 0.1, "<eos>": 0.2}.items():
        token = tokenizer.token_id(name)
        assert token is not None
        emission[0, token] = prob
    hmm = vlhmm.HMM.from_probabilities([1.0], [[1.0]], emission, reset_token=tokenizer.eos_id)
    return vlhmm.LanguageModel.from_hmm(hmm, tokenizer)


def test_moving_keeps_the_answers_and_gives_the_model_back(lm: vlhmm.LanguageModel) -> None:
    before = lm.score("a b"), lm.generate("a", do_sample=False), lm.infill("a ___", num=0)
    hmm = lm.hmm
    assert lm.to("cpu") is lm
    assert lm.hmm is not hmm
    assert (lm.score("a b"), lm.generate("a", do_sample=False), lm.infill("a ___", num=0)) == before
    with pytest.raises(ValueError, match="meta"):
        lm.to("meta")
    assert lm.score("a b") == before[0]


def test_perplexity_of_texts_and_of_tokens(lm: vlhmm.LanguageModel) -> None:
    assert lm.perplexity("a b") == pytest.approx((0.5 * 0.2) ** (-1 / 2), rel=1e-6)
    assert lm.perplexity("a b", eos=True) == pytest.approx((0.5 * 0.2 * 0.2) ** (-1 / 3), rel=1e-6)
    assert lm.perplexity(["a", "c c"]) == pytest.approx([2, 10], rel=1e-6)
    eos = lm.tokenizer.eos_id
    assert eos is not None
    tokens = Tokens.from_documents([[*lm.tokenizer.encode("a b"), eos], [*lm.tokenizer.encode("c"), eos]], 4)
    assert lm.perplexity(tokens) == pytest.approx((0.5 * 0.2 * 0.2 * 0.1 * 0.2) ** (-1 / 5), rel=1e-6)
    with pytest.raises(ValueError, match="eos=True is for texts"):
        lm.perplexity(tokens, eos=True)


def test_names_of_transformers_mean_the_same(lm: vlhmm.LanguageModel) -> None:
    def seeded() -> torch.Generator:
        return torch.Generator().manual_seed(0)

    ours = lm.generate("a", max_tokens=7, num=4, seed=seeded())
    theirs = lm.generate("a", max_new_tokens=7, num_return_sequences=4, do_sample=True, seed=seeded())
    assert ours == theirs
    assert len(ours) == 4
    assert lm.generate("b", do_sample=False, max_new_tokens=3) == ["b a a a"]
    # By p(token, constraint): a 0.5 (0.8^2 - 0.7^2), c 0.1 0.8^2; then a 0.5 0.1, c 0.1 0.8.
    assert lm.generate("b", do_sample=False, constraint=contains("c") & words(3, 3), max_tokens=4) == ["b a c a"]


@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"temperature": 0.5}, {"a": 25, "b": 4, "c": 1, "<eos>": 4}),
        ({"temperature": 2.0}, {"a": 5**0.5, "b": 2**0.5, "c": 1, "<eos>": 2**0.5}),
        ({"temperature": 1e-40}, {"a": 1}),
        ({"top_k": 1}, {"a": 1}),
        ({"top_p": 0.5}, {"a": 1}),
        ({"top_p": 1.0}, {"a": 5, "b": 2, "c": 1, "<eos>": 2}),
        ({"top_k": 3, "temperature": 0.5}, {"a": 25, "b": 4, "<eos>": 4}),
    ],
)
def test_settings_act_on_the_exact_next_token_distribution(
    lm: vlhmm.LanguageModel, settings: dict[str, float], expected: dict[str, float], constrained: bool
) -> None:
    """A constraint that every first token but the end can meet leaves the same distribution without the end."""
    num = 3000
    constraint = words(1) if constrained else None
    if constrained and "top_k" in settings and settings["top_k"] == 3:
        expected = {"a": 25, "b": 4, "c": 1}
    elif constrained:
        expected = {token: weight for token, weight in expected.items() if token != "<eos>"}
    drawn = lm.generate(
        num_return_sequences=num,
        max_new_tokens=1,
        constraint=constraint,
        seed=5,
        **settings,
    )
    total = sum(expected.values())
    counts = {token: drawn.count(token if token != "<eos>" else "") for token in expected}
    assert sum(counts.values()) == num
    for token, weight in expected.items():
        prob = weight / total
        assert abs(counts[token] - num * prob) <= 4.5 * math.sqrt(num * prob * (1 - prob))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"max_tokens": 3, "max_new_tokens": 3}, "two names of one limit"),
        ({"num": 2, "num_return_sequences": 2}, "two names of one number"),
        ({"do_sample": False, "temperature": 0.7}, r"temperature=0\.7 would change nothing"),
        ({"do_sample": False, "top_k": 5, "top_p": 0.9}, r"top_k=5, top_p=0\.9 would change nothing"),
        ({"do_sample": False, "num": 2}, "has one text for each prompt, but 2"),
        ({"max_new_tokens": 0}, "max_new_tokens is 0"),
        ({"num_return_sequences": 0}, "num_return_sequences is 0"),
        ({"top_p": 0.0}, r"top_p is 0\.0"),
    ],
)
def test_contradicting_arguments_are_refused(lm: vlhmm.LanguageModel, settings: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lm.generate("a", **settings)


def test_a_language_model_of_an_hmm_says_what_it_is() -> None:
    hmm = vlhmm.HMM.random(num_states=5, num_words=3)
    lm = vlhmm.LanguageModel(hmm, named(3))
    assert lm.score("w0 w2") == vlhmm.LanguageModel.from_hmm(hmm, named(3)).score("w0 w2")
    # 5 + 5 x 5 + 5 x 3 free logits.
    assert repr(lm) == "LanguageModel(5 states, 3 tokens (words), 45 parameters, cpu)"
    assert repr(lm.model) == "Model(scalar, 5 states, 3 words, 45 parameters, cpu)"
