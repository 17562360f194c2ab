"""A gap in a text of subwords is a word: every sequence of tokens that spells it is summed, against enumeration."""

import math
import re
from collections import Counter
from itertools import product

import pytest
import tokenizers
import torch
from tiny import tiny_model
from tokenizers import decoders, models, pre_tokenizers

import vlhmm
from vlhmm.data import Tokens
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.tables import Belief

MOST = 3


def small_bpe() -> vlhmm.Tokenizer:
    """Three characters, and pieces that spell the same words in several ways; é is two tokens of one byte each."""
    names = ["a", "b", "Ġ", "Ã", "©", "<eos>", "ab", "Ġa", "Ġab"]
    backend = tokenizers.Tokenizer(
        models.BPE({name: i for i, name in enumerate(names)}, [("a", "b"), ("Ġ", "a"), ("Ġ", "ab")])
    )
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return vlhmm.Tokenizer.from_backend(backend)


@pytest.fixture(scope="module", params=["eos", "carry"])
def lm(request: pytest.FixtureRequest) -> vlhmm.LanguageModel:
    tokenizer = small_bpe()
    ids = torch.randint(tokenizer.vocab_size, (400,), generator=torch.Generator().manual_seed(0)).tolist()
    tokens = Tokens.from_documents([ids], tokenizer.vocab_size)
    torch.manual_seed(1)
    model = tiny_model(vlhmm.Corpus.from_splits("random", tokenizer, tokens, tokens, tokens), reset=request.param)
    return vlhmm.LanguageModel(model.double(), tokenizer)


def enumerated(
    lm: vlhmm.LanguageModel, pieces: list[str], eos: bool = False, exclude: tuple[str, ...] = ()
) -> dict[tuple[str, ...], float]:
    """p(pieces with these words in the gaps), summed over all token sequences of each word."""
    tokenizer = lm.tokenizer
    known = [
        tokenizer.encode(piece.rstrip() if number + 1 < len(pieces) else piece) for number, piece in enumerate(pieces)
    ]
    end = [tokenizer.eos_id] if eos else []
    allowed = [i for i in range(tokenizer.vocab_size) if i != tokenizer.eos_id and tokenizer.token(i) not in exclude]
    fillings: list[list[tuple[str, tuple[int, ...]]]] = []
    for piece in pieces[:-1]:
        before = piece[len(piece.rstrip()) :]
        here = []
        for length in range(1, MOST + 1):
            for tokens in product(allowed, repeat=length):
                text = tokenizer.decode(tokens)
                if "\N{REPLACEMENT CHARACTER}" not in text and re.fullmatch(re.escape(before) + r"\S+", text):
                    here.append((text[len(before) :], tokens))
        fillings.append(here)
    found: Counter[tuple[str, ...]] = Counter()
    by_length: dict[int, list[tuple[tuple[str, ...], list[int]]]] = {}
    for chosen in product(*fillings):
        ids = [
            *known[0],
            *(token for (_, inside), piece in zip(chosen, known[1:], strict=True) for token in (*inside, *piece)),
            *end,
        ]
        by_length.setdefault(len(ids), []).append((tuple(word for word, _ in chosen), ids))
    for rows in by_length.values():
        belief = lm.opening
        if belief is not None:
            belief = Belief(belief.token.expand(len(rows)), belief.log_probs.expand(len(rows), -1))
        log_probs = lm.hmm.log_prob([ids for _, ids in rows], belief=belief)
        for (words, _), log_prob in zip(rows, log_probs.tolist(), strict=True):
            found[words] += math.exp(log_prob)
    return dict(found)


@pytest.mark.parametrize(
    ("text", "eos", "exclude"),
    [
        ("ab ___ ab", False, ()),
        ("___ ab", True, ()),
        ("ab b___", True, ()),
        ("ab  ___", False, ("ab",)),
        ("___b", False, ("Ġab",)),
    ],
)
def test_words_of_a_gap_have_the_probabilities_of_all_their_spellings(
    lm: vlhmm.LanguageModel, text: str, eos: bool, exclude: tuple[str, ...]
) -> None:
    joint = enumerated(lm, text.split("___"), eos, exclude)
    total = sum(joint.values())
    filled = lm.infill(text, max_gap_tokens=MOST, top=100, num=0, eos=eos, exclude=exclude)
    assert filled.log_prob == pytest.approx(math.log(total), rel=1e-9)
    (words,) = filled.gaps[0].tokens
    assert len(words) >= min(10, len(joint))
    for word, prob in words:
        assert prob == pytest.approx(joint[(word,)] / total, rel=1e-6)
    assert [prob for _, prob in words] == sorted((prob for _, prob in words), reverse=True)
    (best,) = max(joint, key=joint.__getitem__)
    assert filled.best.gaps == [best]
    assert filled.best.text == text.replace("___", best)
    assert filled.best.log_prob == pytest.approx(math.log(joint[(best,)] / total), rel=1e-6)
    assert sum(prob for _, prob in filled.gaps[0].lengths) == pytest.approx(1)


def test_words_of_two_gaps_are_drawn_jointly(lm: vlhmm.LanguageModel, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("test_word_gaps.MOST", 2)
    text = "a ___ b ___"
    joint = enumerated(lm, ["a ", " b ", ""])
    total = sum(joint.values())
    number = 120
    generator = torch.Generator().manual_seed(0)
    filled = lm.infill(text, max_gap_tokens=2, num=number, eos=False, seed=generator)
    assert filled.log_prob == pytest.approx(math.log(total), rel=1e-9)
    drawn = Counter(tuple(sample.gaps) for sample in filled.samples)
    assert drawn.keys() <= joint.keys()
    for words, value in joint.items():
        prob = value / total
        assert abs(drawn[words] - number * prob) <= 5 * math.sqrt(number * prob * (1 - prob)) + 1
    for sample in filled.samples:
        assert sample.log_prob == pytest.approx(math.log(joint[tuple(sample.gaps)] / total), rel=1e-6)
        assert sample.text == f"a {sample.gaps[0]} b {sample.gaps[1]}"


def test_a_gap_of_tokens_stands_beside_a_gap_of_a_word(lm: vlhmm.LanguageModel) -> None:
    filled = lm.infill("a ___ b ___{1,2}", num=20, seed=0)
    assert len(filled.gaps) == 2
    assert {length for length, _ in filled.gaps[1].lengths} == {1, 2}
    assert all(re.fullmatch(r"\S+", sample.gaps[0]) for sample in filled.samples)
    # With all gaps in tokens every number of them has the same prior probability, as ever.
    assert lm.infill("a ___", gap=(1, 1), num=0).gaps[0].lengths == [(1, 1.0)]


def test_a_gap_that_no_word_fits_is_refused(lm: vlhmm.LanguageModel) -> None:
    every = [name for name in lm.tokenizer.tokens() if name != "<eos>"]
    with pytest.raises(ImpossibleTextError, match="zero"):
        lm.infill("a ___ b", exclude=every)
    with pytest.raises(ValueError, match="limit"):
        lm.infill("a ___ b", max_gap_tokens=10_000)
    with pytest.raises(ValueError, match="max_gap_tokens"):
        lm.infill("a ___ b", max_gap_tokens=0)
