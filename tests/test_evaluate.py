"""Perplexity: one exact stream is the definition, several streams come near it, baselines share the function."""

import math
from collections.abc import Callable

import numpy as np
import pytest
import tokenizers
import torch
from tiny import tiny_corpus, tiny_model
from tokenizers import decoders, models, normalizers
from tokenizers.normalizers import Normalizer
from tokenizers.pre_tokenizers import ByteLevel

import vlhmm
from vlhmm.baselines import Uniform, Unigram
from vlhmm.data import Tokens, word_tokenizer
from vlhmm.evaluate import WARM_TOKENS, HMMScorer, evaluate, scored_windows


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return tiny_corpus(400)


@pytest.mark.parametrize("reset", ["eos", "carry"])
def test_one_stream_is_the_likelihood_of_the_whole_text(corpus: vlhmm.Corpus, reset: str) -> None:
    tables = tiny_model(corpus, reset=reset).tables().detach().to(dtype=torch.float64)
    whole = vlhmm.HMM(tables).log_prob(corpus.test.ids[None].astype(np.int64))
    for window in (7, 512):
        ours = evaluate(HMMScorer(tables), corpus.test, window=window)
        assert ours.log_prob == pytest.approx(float(whole), rel=1e-10)
        assert ours.num_tokens == len(corpus.test)
        assert ours.perplexity == pytest.approx(math.exp(-float(whole) / len(corpus.test)))


@pytest.mark.parametrize("streams", [2, 5, 100])
def test_several_streams_score_every_token_once(corpus: vlhmm.Corpus, streams: int) -> None:
    scored = sum(count for count, _ in scored_windows(Uniform(50), corpus.train, streams=streams, window=100))
    assert scored == len(corpus.train)
    unigram = Unigram.of(corpus.train, corpus.tokenizer.vocab_size)
    one, many = (evaluate(unigram, corpus.train, streams=number).log_prob for number in (1, streams))
    assert many == pytest.approx(one, rel=1e-10)


def test_warm_streams_come_near_the_exact_one(corpus: vlhmm.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_model(corpus)
    vlhmm.train(model, corpus, epochs=1, batch_size=4, window=16, checks_per_epoch=1)
    scorer = HMMScorer(model.tables().detach())
    exact, parallel = (evaluate(scorer, corpus.train, streams=number).log_prob for number in (1, 5))
    assert len(corpus.train) > 5 * 2 * WARM_TOKENS
    assert parallel == pytest.approx(exact, rel=1e-4)
    # So small a model forgets all in that time; less of it tells the streams from the exact one.
    monkeypatch.setattr("vlhmm.evaluate.WARM_TOKENS", 4)
    cold = evaluate(scorer, corpus.train, streams=5).log_prob
    assert abs(cold - exact) > 10 * abs(parallel - exact)
    assert cold == pytest.approx(exact, rel=1e-3)


def test_uniform_perplexity_is_the_vocabulary(corpus: vlhmm.Corpus) -> None:
    assert evaluate(Uniform(123), corpus.test).perplexity == pytest.approx(123)


def test_the_unigram_is_a_distribution(corpus: vlhmm.Corpus) -> None:
    unigram = Unigram.of(corpus.train, corpus.tokenizer.vocab_size)
    assert float(unigram.log_prob.exp().sum()) == pytest.approx(1)


def test_perplexity_per_word_and_byte_use_the_source_text() -> None:
    tokens = Tokens(np.zeros(10, np.int64), np.array([0, 10], np.int64), words=5, bytes=40)
    evaluation = evaluate(Uniform(4), tokens, bytewise())
    assert evaluation.word_perplexity == pytest.approx(16)
    assert evaluation.bits_per_byte == pytest.approx(0.5)
    assert evaluation.no_bits_per_byte is None


def bytewise(normalizer: Normalizer | None = None) -> vlhmm.Tokenizer:
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(sorted(ByteLevel.alphabet()))}, []))
    backend.pre_tokenizer, backend.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    if normalizer is not None:
        backend.normalizer = normalizer
    return vlhmm.Tokenizer.from_backend(backend)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: None, "no tokenizer"),
        (lambda: word_tokenizer(["a", "b"]), "whole words"),
        (lambda: bytewise(normalizers.NFC()), "unchanged"),
        (lambda: bytewise(normalizers.Lowercase()), "unchanged"),
    ],
)
def test_bits_per_byte_are_not_given_where_tokens_do_not_spell_the_text(
    make: Callable[[], vlhmm.Tokenizer | None], reason: str
) -> None:
    tokens = Tokens(np.zeros(10, np.int64), np.array([0, 10], np.int64), words=5, bytes=40)
    evaluation = evaluate(Uniform(4), tokens, make())
    assert evaluation.bits_per_byte is None
    assert reason in str(evaluation.no_bits_per_byte)
    assert {"bits_per_byte", "no_bits_per_byte"} <= evaluation.to_dict().keys()
    unknown = Tokens(tokens.ids, tokens.offsets)
    assert "not known" in str(evaluate(Uniform(4), unknown, bytewise()).no_bits_per_byte)


def test_the_protocol_says_what_was_counted(corpus: vlhmm.Corpus) -> None:
    tables = tiny_model(corpus, reset="eos").tables().detach()
    protocol = evaluate(HMMScorer(tables), corpus.test, corpus.tokenizer).protocol
    assert "EOS" in protocol
    assert "start distribution after" in protocol
    assert "one exact stream" in protocol
    assert "parallel streams" in evaluate(HMMScorer(tables), corpus.train, streams=4).protocol


def test_a_text_of_another_vocabulary_is_refused() -> None:
    tokens = Tokens(np.array([1, 7], np.int64), np.array([0, 2], np.int64))
    with pytest.raises(ValueError, match=r"token 7.*ends at 3"):
        evaluate(Uniform(4), tokens)


@pytest.mark.parametrize("length", [1, 7, 64, 10_000])
def test_independent_windows_are_texts_of_their_own(
    corpus: vlhmm.Corpus, length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several batches, the last of them short.
    monkeypatch.setattr("vlhmm.evaluate.TOKENS_AT_ONCE", 100)
    tables = tiny_model(corpus).tables().detach().to(dtype=torch.float64)
    hmm, ids = vlhmm.HMM(tables), corpus.test.ids.astype(np.int64)
    alone = sum(float(hmm.log_prob(ids[None, first : first + length])) for first in range(0, len(ids), length))
    ours = evaluate(HMMScorer(tables), corpus.test, independent=length)
    assert ours.log_prob == pytest.approx(alone, rel=1e-10)
    assert ours.num_tokens == len(corpus.test)
    assert f"independent windows of {length} tokens" in ours.protocol
    # Padding of the last window is not scored.
    unigram = Unigram.of(corpus.train, corpus.tokenizer.vocab_size)
    stream = evaluate(unigram, corpus.test).log_prob
    assert evaluate(unigram, corpus.test, independent=length).log_prob == pytest.approx(stream, rel=1e-10)


def test_independent_windows_have_no_streams(corpus: vlhmm.Corpus) -> None:
    for options in ({"independent": -1}, {"independent": 8, "streams": 2}):
        with pytest.raises(ValueError, match="independent windows of"):
            evaluate(Uniform(50), corpus.test, **options)  # type: ignore[arg-type]
