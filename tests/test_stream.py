"""Streams: whatever way a text is cut, it is the same text, and nothing of it is kept but the last belief."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import close, every_kind, some_sentences
from oracle import EVERY_KIND, Kind, ragged, random_hmm

import vlhmm
from vlhmm.inference.errors import ImpossibleTextError

some_kinds = pytest.mark.parametrize("kind", EVERY_KIND[::3], ids=str)


@settings(max_examples=20)
@given(st.sampled_from(EVERY_KIND), st.integers(0, 2**31), st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_a_text_cut_anywhere_is_the_same_text(kind, seed, cuts):
    oracle, tables = random_hmm(kind, seed)
    hmm = vlhmm.HMM(tables)
    sentence = oracle.sentence(sum(cuts), np.random.default_rng(seed))
    stream = hmm.stream()
    pieces = [stream.feed(piece) for piece in np.split(sentence, np.cumsum(cuts)[:-1])]
    close(torch.cat(pieces, dim=1), hmm.token_log_probs(sentence[None]).numpy())
    close(stream.log_prob, [oracle.by_messages(sentence).token_log_probs.sum()])
    assert stream.num_tokens.tolist() == [len(sentence)]


@every_kind
def test_ragged_feeds_of_many_streams(kind):
    oracle, tables = random_hmm(kind, seed=31)
    hmm = vlhmm.HMM(tables)
    sentences = some_sentences(oracle, 31, lengths=(4, 2, 3))
    tokens, _ = ragged(sentences)
    stream = hmm.stream(num=3)
    # The second stream begins late, the third pauses; ids past a length are never read.
    first = stream.feed([[*tokens[0, :2], 99], [77, 99, 99], tokens[2].tolist()[:3]], lengths=[2, 0, 1])
    assert stream.num_tokens.tolist() == [2, 0, 1]
    close(stream.next_token_probs()[1], oracle.next_token_probs(np.array([], dtype=int)))
    second = stream.feed(torch.stack([tokens[0, 2:], tokens[1, :2], tokens[2, 1:3]]), lengths=[2, 2, 2])
    close(first[0, :2], oracle.token_log_probs(sentences[0])[:2])
    assert (first[1] == 0).all()
    for row, sentence in enumerate(sentences):
        close(stream.log_prob[row], oracle.log_prob(sentence))
        close(stream.next_token_probs()[row], oracle.next_token_probs(sentence))
    close(second[1], oracle.token_log_probs(sentences[1]))


@some_kinds
def test_next_tokens_are_those_of_enumeration(kind):
    oracle, tables = random_hmm(kind, seed=32)
    sentence = oracle.sentence(3, np.random.default_rng(32))
    stream = vlhmm.HMM(tables).stream()
    for end in range(4):
        expected = oracle.next_token_probs(sentence[:end])
        best = stream.next_tokens(top=oracle.num_words)
        close(best.probs[0], np.sort(expected)[::-1])
        close(expected[best.tokens[0]], np.sort(expected)[::-1])
        assert stream.next_tokens(top=1).tokens.shape == (1, 1)
        if end < 3:
            stream.feed(sentence[end : end + 1])


def test_a_fork_goes_its_own_way():
    oracle, tables = random_hmm(Kind("blocked", "softmax", reset=True), seed=33)
    hmm = vlhmm.HMM(tables)
    stream = hmm.stream()
    stream.feed([0, 1])
    fork = stream.fork()
    fork.feed([2, 0])
    close(stream.log_prob, [oracle.log_prob(np.array([0, 1]))])
    close(fork.log_prob, [oracle.log_prob(np.array([0, 1, 2, 0]))])
    stream.feed([1])
    close(stream.log_prob, [oracle.log_prob(np.array([0, 1, 1]))])
    assert (stream.num_tokens.item(), fork.num_tokens.item()) == (3, 4)


def test_a_belief_is_what_streams_begin_from():
    oracle, tables = random_hmm(Kind("dense", "table", reset=False), seed=34)
    hmm = vlhmm.HMM(tables)
    belief = hmm.filter([[0, 1]]).belief
    stream = hmm.stream(num=2, belief=belief)
    stream.feed([[1], [0]])
    for row, token in enumerate((1, 0)):
        whole = oracle.log_prob(np.array([0, 1, token]))
        close(stream.log_prob[row], whole - oracle.log_prob(np.array([0, 1])))


def held_bytes(stream) -> int:
    """All tensors that a stream holds, its tables aside."""
    found, seen = [stream], 0
    while found:
        one = found.pop()
        if isinstance(one, torch.Tensor):
            seen += one.untyped_storage().nbytes()
        elif hasattr(one, "__dict__"):
            found += [value for name, value in vars(one).items() if name != "_tables"]
        elif isinstance(one, list | tuple | dict):
            found += list(one.values() if isinstance(one, dict) else one)
    return seen


def test_a_long_stream_holds_no_more_than_a_short_one():
    oracle, tables = random_hmm(Kind("blocked", "table", reset=True), seed=35)
    hmm = vlhmm.HMM(tables)
    text = oracle.sentence(5000, np.random.default_rng(35))
    stream = hmm.stream()
    stream.feed(text[:2])
    few = held_bytes(stream)
    for piece in np.split(text[2:], np.arange(500, 4998, 500)):
        stream.feed(piece)
        assert held_bytes(stream) == few
    assert 0 < few < 1000
    close(stream.log_prob, [hmm.log_prob(text[None]).item()])


def test_an_impossible_text_stays_impossible():
    hmm = vlhmm.HMM.from_probabilities([1, 0], [[1, 0], [0, 1]], [[1, 0], [0, 1]])
    stream = hmm.stream(num=2)
    assert stream.feed([[0, 1], [0, 0]]).isneginf().tolist() == [[False, True], [False, False]]
    assert stream.feed([[0], [0]]).isneginf().tolist() == [[True], [False]]
    assert stream.log_prob.tolist() == [-np.inf, 0.0]
    assert (stream.next_token_probs()[0] == 0).all()
    with pytest.raises(ImpossibleTextError, match="stream 0 was fed a text of probability zero"):
        stream.next_tokens()


def test_bad_requests_are_refused():
    _, tables = random_hmm(Kind("dense", "table", reset=False), seed=36)
    hmm = vlhmm.HMM(tables)
    with pytest.raises(ValueError, match="num is 0"):
        hmm.stream(num=0)
    with pytest.raises(ValueError, match="2 sequences, but 3 streams"):
        hmm.stream(num=3, belief=hmm.filter([[0], [1]]).belief)
    stream = hmm.stream(num=2)
    with pytest.raises(ValueError, match="3 rows, but there are 2 streams"):
        stream.feed([[0], [1], [0]])
    with pytest.raises(ValueError, match=r"lengths\[1\] is 2"):
        stream.feed([[0], [1]], lengths=[0, 2])
    with pytest.raises(ValueError, match="lengths has shape"):
        stream.feed([[0], [1]], lengths=[0])
    with pytest.raises(ValueError, match="is 93"):
        stream.feed([[0], [93]])
    with pytest.raises(ValueError, match="top is 0"):
        stream.next_tokens(0)
    # A refused feed leaves no trace.
    assert stream.num_tokens.tolist() == [0, 0]
