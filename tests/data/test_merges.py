"""Merges of BPE that are undone at random: the same text in more tokens."""

import numpy as np
import pytest
import torch

import vlhmm
from vlhmm.data import Tokenizer, Tokens, word_tokenizer
from vlhmm.data.merges import Merges
from vlhmm.data.splits import SplitBatch
from vlhmm.data.vocabulary import BPELearner
from vlhmm.data.windows import Epoch

TEXT = "the lowest of the low is lower than the newest \u20ac in M\u00e1laga"


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    learner = BPELearner(2, 300)
    learner.add(SplitBatch("train", 20 * [TEXT]))
    return learner.tokenizer()


def test_undone_merges_spell_the_same_text_down_to_single_bytes(tokenizer: Tokenizer) -> None:
    ids = np.array(tokenizer.encode(TEXT), np.uint16)
    bits = Merges.of(tokenizer, 1 - 1e-12)
    assert bits is not None
    assert len(bits.undo(ids, np.random.default_rng(0))) == len(TEXT.encode())
    some = Merges.of(tokenizer, 0.3)
    assert some is not None
    undone = some.undo(ids, np.random.default_rng(0))
    assert len(ids) < len(undone) < len(TEXT.encode())
    assert tokenizer.decode(undone.tolist()) == TEXT


def test_each_merge_is_undone_with_its_probability(tokenizer: Tokenizer) -> None:
    merges = Merges.of(tokenizer, 0.25)
    assert merges is not None
    (token,) = tokenizer.encode(" the")
    undone = merges.undo(np.full(10_000, token), np.random.default_rng(0))
    # The last merge is undone by itself; those of its parts only where it was.
    assert (undone == token).mean() == pytest.approx(10_000 * 0.75 / len(undone), rel=0.03)
    first = merges.left[token] if merges.left[merges.left[token]] >= 0 else merges.right[token]
    assert (undone == first).sum() == pytest.approx(10_000 * 0.25 * 0.75, rel=0.05)


def test_words_are_no_merges_and_a_rate_of_0_undoes_none(tokenizer: Tokenizer) -> None:
    assert Merges.of(word_tokenizer(["low", "lower"]), 0.5) is None
    assert Merges.of(tokenizer, 0.0) is None


def test_an_epoch_has_as_many_windows_and_can_be_taken_up_in_the_middle(tokenizer: Tokenizer) -> None:
    text = Tokens.from_documents([tokenizer.encode(TEXT) for _ in range(30)], tokenizer.vocab_size)
    merges = Merges.of(tokenizer, 0.2)
    plain, epoch, next_one = (
        Epoch(text, "carried", 2, 5, 0, number, chosen) for number, chosen in ((0, None), (0, merges), (1, merges))
    )
    windows = torch.stack(list(epoch.windows()))
    assert len(windows) == plain.num_windows
    assert torch.equal(torch.stack(list(epoch.windows(7))), windows[7:])
    assert not torch.equal(torch.stack(list(next_one.windows())), windows)
    streams = windows.transpose(0, 1).reshape(2, -1)
    assert tokenizer.decode(streams[0].tolist()).startswith(2 * TEXT)


def test_where_it_cannot_be_done_is_refused() -> None:
    with pytest.raises(ValueError, match=r"subword_dropout is 0.1, which needs windows = 'carried'"):
        vlhmm.TrainSettings(subword_dropout=0.1, windows="independent")
    with pytest.raises(ValueError, match=r"subword_dropout is 1.0, but must be at least 0 and below 1"):
        vlhmm.TrainSettings(subword_dropout=1.0)
