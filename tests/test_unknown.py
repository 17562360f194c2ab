"""The unknown token is left out where tokens are drawn or proposed, exactly renormalised; scores are the model's own."""

import math
from collections import Counter
from itertools import product

import pytest
import torch
from tiny import tiny_model

import vlhmm
from vlhmm.control.possible import ImpossibleConstraintError
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.predict import without_token

LENGTH = 2
DRAWS = 3000


@pytest.fixture(scope="module", params=["eos", "carry"])
def lm(request: pytest.FixtureRequest) -> vlhmm.LanguageModel:
    """Untrained, so that all words are likely."""
    words = ["cat", "dog", "sees", "<unk>"]
    tokenizer = vlhmm.data.word_tokenizer(words)
    ids = torch.randint(5, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    tokens = vlhmm.data.Tokens.from_documents([ids], tokenizer.vocab_size)
    corpus = vlhmm.Corpus.from_splits("random", tokenizer, tokens, tokens, tokens)
    torch.manual_seed(1)
    return vlhmm.LanguageModel(tiny_model(corpus, reset=request.param), tokenizer)


def next_probs(lm: vlhmm.LanguageModel, words: tuple[str, ...]) -> dict[str, float]:
    return dict(lm.next_tokens(" ".join(words), top=100, unk=True))


def test_next_tokens_are_renormalised_over_the_known_words(lm: vlhmm.LanguageModel) -> None:
    for words in ((), ("cat",), ("<unk>", "dog")):
        every, known = next_probs(lm, words), dict(lm.next_tokens(" ".join(words), top=100))
        assert every.keys() - known.keys() == {"<unk>"}
        assert every["<unk>"] > 0.001
        for word, prob in known.items():
            assert prob == pytest.approx(every[word] / (1 - every["<unk>"]), rel=1e-5)
        stream = lm.stream()
        stream.feed(" ".join(words))
        if words:
            assert dict(stream.next_tokens(100)) == pytest.approx(known, rel=1e-5)
            assert dict(stream.next_tokens(100, unk=True)) == pytest.approx(every, rel=1e-5)


def every_text(lm: vlhmm.LanguageModel) -> dict[tuple[str, ...], tuple[float, float]]:
    """Texts of up to LENGTH tokens: p(text), and the product of p(token | before, it is known)."""
    found: dict[tuple[str, ...], tuple[float, float]] = {}
    for length in range(1, LENGTH + 1):
        for words in product(("cat", "dog", "sees", "<unk>", "<eos>"), repeat=length):
            if "<eos>" in words[:-1] or (length < LENGTH and words[-1] != "<eos>"):
                continue
            own = step = 1.0
            for position, word in enumerate(words):
                probs = next_probs(lm, words[:position])
                own *= probs[word]
                step *= 0.0 if word == "<unk>" else probs[word] / (1 - probs["<unk>"])
            found[words] = own, step
    return found


def draws(lm: vlhmm.LanguageModel, **how: object) -> Counter[str]:
    generator = torch.Generator().manual_seed(0)
    return Counter(lm.generate(num=DRAWS, max_tokens=LENGTH, seed=generator, **how))  # type: ignore[arg-type]


def require_drawn_from(drawn: Counter[str], probs: dict[str, float]) -> None:
    assert sum(probs.values()) == pytest.approx(1, rel=1e-4)
    assert drawn.keys() <= {text for text, prob in probs.items() if prob > 0}
    for text, prob in probs.items():
        assert abs(drawn[text] - DRAWS * prob) <= 5 * math.sqrt(DRAWS * prob * (1 - prob)) + 1


def by_text(probs: dict[tuple[str, ...], float]) -> dict[str, float]:
    """An EOS is not seen in a text: with it and without are two texts only where one more token may follow."""
    found: Counter[str] = Counter()
    for words, prob in probs.items():
        found[" ".join(word for word in words if word != "<eos>")] += prob
    return dict(found)


def test_each_token_is_drawn_given_that_it_is_known(lm: vlhmm.LanguageModel) -> None:
    texts = every_text(lm)
    require_drawn_from(draws(lm), by_text({words: step for words, (_, step) in texts.items()}))
    require_drawn_from(draws(lm, unk=True), by_text({words: own for words, (own, _) in texts.items()}))


def test_under_a_constraint_the_whole_text_is_drawn_given_that_it_is_known(lm: vlhmm.LanguageModel) -> None:
    met = {words: own for words, (own, _) in every_text(lm).items() if "cat" in words}
    known = {words: own for words, own in met.items() if "<unk>" not in words}
    for kept, unk in ((known, False), (met, True)):
        total = sum(kept.values())
        expected = by_text({words: own / total for words, own in kept.items()})
        require_drawn_from(draws(lm, constraint=vlhmm.contains("cat"), unk=unk), expected)
    assert "<unk>" not in lm.best_text(max_tokens=LENGTH).text


def test_a_constraint_that_only_unknown_words_meet_is_impossible(lm: vlhmm.LanguageModel) -> None:
    with pytest.raises(ImpossibleConstraintError):
        lm.generate(constraint=vlhmm.contains("<unk>"))
    assert "<unk>" in lm.generate(constraint=vlhmm.contains("<unk>"), unk=True)[0]


def test_top_k_and_top_p_choose_among_the_known_words(lm: vlhmm.LanguageModel) -> None:
    likeliest = lm.next_tokens(top=1)[0][0]
    assert set(draws(lm, top_k=1)) == set(draws(lm, top_p=1e-9))
    first = next(iter(draws(lm, top_k=1))).split()
    assert first[:1] == ([likeliest] if likeliest != "<eos>" else [])


def test_infilling_is_the_posterior_of_known_words(lm: vlhmm.LanguageModel) -> None:
    candidates = ("cat", "dog", "sees", "<unk>")
    joint = {word: math.exp(lm.score(f"cat {word} dog").log_prob) for word in candidates}
    for unk in (False, True):
        kept = {word: prob for word, prob in joint.items() if unk or word != "<unk>"}
        filled = lm.infill("cat ___ dog", unk=unk, num=0)
        expected = {word: prob / sum(kept.values()) for word, prob in kept.items()}
        assert dict(filled.gaps[0].tokens[0]) == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("unk", [False, True])
def test_lists_are_answered_as_each_text_is(lm: vlhmm.LanguageModel, unk: bool) -> None:
    texts = ["cat", "", "<unk> dog"]
    for text, found in zip(texts, lm.next_tokens(texts, top=100, unk=unk), strict=True):
        assert dict(found) == pytest.approx(dict(lm.next_tokens(text, top=100, unk=unk)), rel=1e-4)
    for constraint in (None, vlhmm.contains("cat")):
        seeded = [torch.Generator().manual_seed(seed) for seed in range(3)]
        drawn = lm.generate(texts, num=20, max_tokens=3, unk=unk, constraint=constraint, seed=seeded)
        best = lm.best_text(texts, max_tokens=3, unk=unk, constraint=constraint)
        for seed, text in enumerate(texts):
            alone = torch.Generator().manual_seed(seed)
            assert drawn[seed] == lm.generate(text, num=20, max_tokens=3, unk=unk, constraint=constraint, seed=alone)
            expected = lm.best_text(text, max_tokens=3, unk=unk, constraint=constraint).log_prob
            assert best[seed].log_prob == pytest.approx(expected, abs=1e-4)
        new = [text[len(prompt) :] for prompt, rows in zip(texts, drawn, strict=True) for text in rows]
        assert any("<unk>" in text for text in new) == unk
    for gaps in ("cat ___ dog", "___{1,2} sees"):
        alone_filled = lm.infill(gaps, unk=unk, num=0)
        (filled,) = lm.infill([gaps], unk=unk, num=0, max_gap_tokens=3)
        assert filled.log_prob == pytest.approx(alone_filled.log_prob, abs=1e-5)
        assert any(token == "<unk>" for gap in filled.gaps for row in gap.tokens for token, _ in row) == unk


def test_scores_are_the_models_own(lm: vlhmm.LanguageModel) -> None:
    assert math.exp(lm.score("cat mouse").tokens[1].log_prob) == pytest.approx(
        next_probs(lm, ("cat",))["<unk>"], rel=1e-4
    )


def test_where_only_the_unknown_word_can_follow_the_way_out_is_named() -> None:
    with pytest.raises(ImpossibleTextError, match="unk=True"):
        without_token(torch.tensor([[0.0, 1.0]]), 1)
    with pytest.raises(ImpossibleTextError, match=r"text 5 of the list .* unk=True"):
        without_token(torch.tensor([[0.5, 0.5], [0.0, 1.0]]), 1, [4, 5])
    impossible = torch.zeros(1, 2)
    assert without_token(impossible, 1).tolist() == [[0.0, 0.0]]
    # Next to nothing is not nothing.
    nearly = without_token(torch.tensor([[1e-30, 0.0, 1.0]]), 2)
    assert nearly.tolist() == [[1.0, 0.0, 0.0]]
