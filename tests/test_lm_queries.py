"""Streams, explanations, k-best paths and gaps of a language model, against the enumeration of the HMM it stands on."""

import dataclasses
import itertools
import math

import numpy as np
import pytest
import tokenizers
import torch
from oracle import Oracle, dense_oracle
from tiny import tiny_corpus, tiny_model
from tokenizers import decoders, models, pre_tokenizers, trainers

import vlhmm
from vlhmm.data import Tokenizer
from vlhmm.lm import UNKNOWN_TOKENS
from vlhmm.text.pieces import Gap, encode_after, encode_pieces, split_at_gaps

TEXT = "the cat sees the dog"


@pytest.fixture(scope="module", params=["eos", "carry"])
def lm(request: pytest.FixtureRequest) -> vlhmm.LanguageModel:
    """Untrained: every law holds for any numbers."""
    corpus = tiny_corpus(100)
    torch.manual_seed(1)
    return vlhmm.LanguageModel(tiny_model(corpus, states_per_block=2, reset=request.param), corpus.tokenizer)


@pytest.fixture(scope="module")
def oracle(lm: vlhmm.LanguageModel) -> Oracle:
    return dense_oracle(lm.hmm.tables.to(dtype=torch.float64))


def path_joint(lm: vlhmm.LanguageModel, oracle: Oracle, text: str) -> np.ndarray:
    """p(states, text) for every path; a text opens after an EOS where the states are carried over it."""
    if lm.opening is not None:
        unknown = oracle.start @ np.linalg.matrix_power(oracle.transition, UNKNOWN_TOKENS)
        end = unknown * oracle.emission[:, lm.tokenizer.eos_id]
        oracle = dataclasses.replace(oracle, start=end / end.sum() @ oracle.transition)
    return oracle.joint(np.array(lm.tokenizer.encode(text)))


@pytest.mark.parametrize(
    "cuts", [("the cat sees ", "the dog"), ("the cat", " sees the", " dog"), ("the", "cat", "sees the dog")]
)
def test_a_stream_of_pieces_is_the_whole_text(lm: vlhmm.LanguageModel, cuts: tuple[str, ...]) -> None:
    stream = lm.stream()
    fed = [token for piece in cuts for token in stream.feed(piece)]
    whole = lm.score(TEXT).tokens
    assert [token.token for token in fed] == [token.token for token in whole]
    assert [token.log_prob for token in fed] == pytest.approx([token.log_prob for token in whole], abs=1e-5)
    assert stream.log_prob == pytest.approx(lm.score(TEXT).log_prob, abs=1e-4)
    assert stream.num_tokens == 5
    expected = dict(lm.next_tokens(TEXT, top=4))
    assert dict(stream.next_tokens(4)) == pytest.approx(expected, abs=1e-6)


def test_a_stream_takes_ids_and_forks(lm: vlhmm.LanguageModel) -> None:
    stream = lm.stream()
    assert stream.feed("") == []
    assert stream.feed([]) == []
    ids = lm.tokenizer.encode(TEXT)
    for token in ids[:2]:
        stream.feed([token])
    fork = stream.fork()
    fork.feed("sees the dog")
    stream.feed("likes")
    assert fork.log_prob == pytest.approx(lm.score(TEXT).log_prob, abs=1e-4)
    assert stream.log_prob == pytest.approx(lm.score("the cat likes").log_prob, abs=1e-4)


def test_many_streams_begin_as_texts_begin(lm: vlhmm.LanguageModel) -> None:
    stream = lm.hmm.stream(num=2, belief=lm.opening)
    ids = lm.tokenizer.encode("the cat"), lm.tokenizer.encode("dog sees")
    stream.feed(ids)
    expected = [lm.score(text).log_prob for text in ("the cat", "dog sees")]
    assert stream.log_prob.tolist() == pytest.approx(expected, abs=1e-4)


def test_k_best_paths_are_the_enumerated_ones(lm: vlhmm.LanguageModel, oracle: Oracle) -> None:
    joint = path_joint(lm, oracle, "the cat sees")
    paths = lm.viterbi("the cat sees", k=100)
    expected = np.sort(np.log(joint[joint > 0]).ravel())[::-1]
    # Two states of a word, three words: there are no more paths.
    assert len(paths) == len(expected) == 8
    assert [path.log_prob for path in paths] == pytest.approx(expected.tolist(), abs=1e-5)
    assert lm.viterbi("the cat sees") == paths[0]
    assert [path.log_prob for path in lm.viterbi("the cat sees", k=3)] == [path.log_prob for path in paths[:3]]


def test_neighbours_are_those_of_the_enumerated_posterior(lm: vlhmm.LanguageModel, oracle: Oracle) -> None:
    text = "the cat sees"
    explained = lm.explain(text, top=100, neighbours=100)
    paths = path_joint(lm, oracle, text)
    paths = paths / paths.sum()
    marginals = [paths.sum(tuple(other for other in range(3) if other != t)) for t in range(3)]
    for t, token in enumerate(explained.tokens):
        for one in token.states:
            state = one.state.state
            assert one.prob == pytest.approx(marginals[t][state], abs=1e-5)
            if t > 0:
                pair = paths.sum(2 if t == 1 else 0)[:, state] / marginals[t][state]
                assert {other.state: prob for other, prob in one.previous} == pytest.approx(
                    {int(other): pair[other] for other in pair.nonzero()[0]}, abs=1e-5
                )
            if t < 2:
                pair = paths.sum(2 if t == 0 else 0)[state] / marginals[t][state]
                assert {other.state: prob for other, prob in one.next} == pytest.approx(
                    {int(other): pair[other] for other in pair.nonzero()[0]}, abs=1e-5
                )
            else:
                # After the text: what the model expects.
                assert sum(prob for _, prob in one.next) == pytest.approx(1, abs=1e-5)
                for other, prob in one.next:
                    assert prob == pytest.approx(oracle.transition[state, other.state], abs=1e-5)
    assert explained.path_entropy == pytest.approx(-(paths[paths > 0] * np.log(paths[paths > 0])).sum(), abs=1e-4)


def test_an_explanation_agrees_with_score_and_posterior(lm: vlhmm.LanguageModel) -> None:
    explained = lm.explain(TEXT, top=2)
    assert explained.score.log_prob == pytest.approx(lm.score(TEXT).log_prob, abs=1e-4)
    for token, posterior in zip(explained.tokens, lm.posterior(TEXT, top=2), strict=True):
        assert [one.state for one in token.states] == [state for state, _ in posterior.states]
        assert token.entropy == pytest.approx(posterior.entropy, abs=1e-5)
        assert token.surprisal == -token.log_prob
        assert all(len(one.next) == 1 for one in token.states)
    first = explained.tokens[0].states[0]
    assert bool(first.previous) == (lm.opening is not None)


def every_filling(
    lm: vlhmm.LanguageModel, pieces: list[str], counts: list[tuple[int, ...]], end: bool = False
) -> dict[str, float]:
    """p(text) of every text that fills the gaps with words, so many in each."""
    words = [word for word in lm.tokenizer.tokens() if word != "<eos>"]
    joint = {}
    for numbers in counts:
        for filling in itertools.product(words, repeat=sum(numbers)):
            left, parts = list(filling), []
            for piece, number in zip(pieces, (*numbers, 0), strict=True):
                parts += [piece, *left[:number]]
                left = left[number:]
            text = " ".join(part for part in parts if part)
            ids = lm.tokenizer.encode(text) + ([lm.tokenizer.eos_id or 0] if end else [])
            joint[text] = ids
    lengths = {len(ids) for ids in joint.values()}
    probs: dict[str, float] = {}
    for length in lengths:
        rows = {text: ids for text, ids in joint.items() if len(ids) == length}
        belief = lm.opening
        if belief is not None:
            belief = type(belief)(belief.token.expand(len(rows)), belief.log_probs.expand(len(rows), -1))
        log_probs = lm.hmm.log_prob(list(rows.values()), belief=belief)
        probs |= dict(zip(rows, log_probs.double().exp().tolist(), strict=True))
    return probs


def test_gaps_are_filled_as_enumeration_says(lm: vlhmm.LanguageModel) -> None:
    joint = every_filling(lm, ["the", "sees", "dog"], [(1, 1)])
    total = sum(joint.values())
    filled = lm.infill("the ___ sees ___ dog", num=4, top=1000, unk=True, seed=2)
    assert filled.log_prob == pytest.approx(math.log(total), abs=1e-4)
    for number, gap in enumerate(filled.gaps):
        assert gap.lengths == [(1, 1.0)]
        position = (1, 3)[number]
        expected: dict[str, float] = {}
        for text, prob in joint.items():
            word = text.split()[position]
            expected[word] = expected.get(word, 0.0) + prob / total
        assert dict(gap.tokens[0]) == pytest.approx(expected, abs=1e-5)
    for one in [filled.best, *filled.samples]:
        assert one.log_prob == pytest.approx(math.log(joint[one.text] / total), abs=1e-4)
        assert one.gaps == [one.text.split()[1], one.text.split()[3]]


@pytest.mark.parametrize("end", [False, True])
def test_all_lengths_and_fillings_sum_to_one(lm: vlhmm.LanguageModel, end: bool) -> None:
    joint = every_filling(lm, ["the", "sees"], [(1,), (2,)], end)
    total = sum(joint.values())
    filled = lm.infill("the ___{1,2} sees", num=200, eos=end, unk=True, seed=3)
    # Each number of tokens is equally likely beforehand.
    assert filled.log_prob == pytest.approx(math.log(total / 2), abs=1e-4)
    lengths = dict(filled.gaps[0].lengths)
    for number in (1, 2):
        expected = sum(prob for text, prob in joint.items() if len(text.split()) == number + 2) / total
        assert lengths[number] == pytest.approx(expected, abs=1e-5)
    assert sum(lengths.values()) == pytest.approx(1)
    likeliest = filled.gaps[0].lengths[0][0]
    assert len(filled.gaps[0].tokens) == likeliest
    for one in [filled.best, *filled.samples]:
        assert one.log_prob == pytest.approx(math.log(joint[one.text] / total), abs=1e-4)
    drawn = np.mean([len(one.gaps[0].split()) == 1 for one in filled.samples])
    assert abs(drawn - lengths[1]) <= 5 * math.sqrt(lengths[1] * lengths[2] / 200)
    # The best of the likeliest length's fillings cannot be beaten by a single word.
    singles = {text: prob for text, prob in joint.items() if len(text.split()) == 3}
    assert filled.best.log_prob >= math.log(max(singles.values()) / total) - 1e-4
    again = lm.infill("the ___ sees", gap=(1, 2), num=0, eos=end, unk=True)
    assert again.log_prob == filled.log_prob
    assert again.samples == []


def test_excluded_words_are_given_not_to_stand_there(lm: vlhmm.LanguageModel) -> None:
    joint = every_filling(lm, ["the", "sees"], [(1,)])
    best = lm.infill("the ___ sees", num=0, unk=True).best.text
    rest = {text: prob for text, prob in joint.items() if text != best}
    filled = lm.infill("the ___ sees", num=30, unk=True, exclude=[best.split()[1]])
    assert filled.log_prob == pytest.approx(math.log(sum(rest.values())), abs=1e-4)
    assert best not in [one.text for one in (filled.best, *filled.samples)]
    with pytest.raises(ValueError, match="exclude has 'nonsense'"):
        lm.infill("the ___", exclude=["nonsense"])


def test_a_gap_alone_is_a_text(lm: vlhmm.LanguageModel) -> None:
    filled = lm.infill("___", top=3, num=1)
    best, prob = filled.gaps[0].tokens[0][0]
    assert filled.best.text == best
    assert filled.best.log_prob == pytest.approx(math.log(prob), abs=1e-5)
    assert best != "<eos>"


def test_bad_requests_are_refused(lm: vlhmm.LanguageModel) -> None:
    for text, expected in (
        ("the cat", "0 gaps"),
        ("the ___{2,1}", "between 2 and 1"),
        ("the ___{0,1}", "between 0 and 1"),
        ("the ___{1,90}", "at most 20"),
        ("the ___{a}", "no gap"),
        ("___{1,20} " * 3, "8000 combinations"),
    ):
        with pytest.raises(ValueError, match=expected):
            lm.infill(text)
    with pytest.raises(ValueError, match="between 3 and 2"):
        lm.infill("the ___", gap=(3, 2))
    with pytest.raises(ValueError, match="num is -1"):
        lm.infill("the ___", num=-1)
    with pytest.raises(ValueError, match="top is 0"):
        lm.infill("the ___", top=0)
    with pytest.raises(ValueError, match="top is 0"):
        lm.explain("the", top=0)
    with pytest.raises(ValueError, match="k is 101"):
        lm.viterbi("the", k=101)


def test_gaps_are_read_as_written() -> None:
    pieces, gaps = split_at_gaps("the ___ of ____{2} and ___{ 1 , 4 }", Gap(3, 5))
    assert pieces == ["the ", " of ", " and ", ""]
    assert gaps == [Gap(3, 5), Gap(2, 2), Gap(1, 4)]


def byte_level() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=290, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    backend.train_from_iterator([TEXT, "the horse follows the cat"] * 5, trainer)
    return Tokenizer.from_backend(backend)


def metaspace() -> Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE(unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.BpeTrainer(vocab_size=60, special_tokens=["<unk>", "</s>"], show_progress=False)
    backend.train_from_iterator([TEXT, "the horse follows the cat"] * 5, trainer)
    return Tokenizer.from_backend(backend)


@pytest.mark.parametrize("make", [byte_level, metaspace])
def test_pieces_of_subword_text_are_encoded_as_they_stand(make) -> None:
    tokenizer = make()
    whole = tokenizer.encode(TEXT)
    for cut in range(1, 5):
        head, tail = " ".join(TEXT.split()[:cut]), " " + " ".join(TEXT.split()[cut:])
        assert tokenizer.encode(head) + encode_after(tokenizer, head, tail) == whole
    before, after = encode_pieces(tokenizer, ["the cat ", " the dog"])
    assert [*before, *encode_after(tokenizer, "cat", " sees"), *after] == whole
    # A cut inside a word: the rest is encoded by itself.
    assert encode_after(tokenizer, "the c", "at") in (tokenizer.encode("at"), whole[len(tokenizer.encode("the c")) :])


def test_a_stream_of_subword_text_is_the_whole_text() -> None:
    tokenizer = byte_level()
    support = vlhmm.Blocks(np.arange(tokenizer.vocab_size) % 4, 4)
    torch.manual_seed(3)
    lm = vlhmm.LanguageModel(vlhmm.neural_hmm(support, 3, 8), tokenizer)
    for cuts in (("the cat ", "sees", " the dog"), ("the", " cat sees the ", "dog")):
        stream = lm.stream()
        fed = [token for piece in cuts for token in stream.feed(piece)]
        assert [token.token for token in fed] == [token.token for token in lm.score(TEXT).tokens]
        assert stream.log_prob == pytest.approx(lm.score(TEXT).log_prob, abs=1e-4)
    filled = lm.infill("the ___{1,2} sees the dog", num=2, seed=0)
    assert all(one.text.startswith("the") and one.text.endswith(" sees the dog") for one in filled.samples)
