"""N-grams counted on disk are those counted in memory, bit for bit, however small the parts are."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from baselines.test_kneser_ney import FALLBACK, random_sentences, text
from hypothesis import given, settings
from hypothesis import strategies as st

from vlhmm.baselines import KneserNey
from vlhmm.baselines.disk_ngrams import count_on_disk, interpolate_on_disk, require_disk, times_counted
from vlhmm.baselines.ngrams import Ngrams
from vlhmm.data import Tokens


def on_disk(tokens: Tokens, num_words: int, model: KneserNey, folder: Path, part: int) -> tuple[Ngrams, ...]:
    """The n-grams of `model`, with `part` of them in memory at a time."""
    assert model.discounts is not None
    counted = count_on_disk(tokens.ids, num_words, model.eos_id, model.order, folder, part)
    amounts = [discount.amounts for discount in model.discounts]
    return interpolate_on_disk(counted, amounts, num_words, folder, part)


def assert_the_same(found: tuple[Ngrams, ...], expected: tuple[Ngrams, ...]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one.keys, other.keys)
        np.testing.assert_array_equal(one.log10_prob, other.log10_prob)
        np.testing.assert_array_equal(one.log10_backoff, other.log10_backoff)


@pytest.mark.parametrize("eos_id", [0, None])
@pytest.mark.parametrize(("order", "part"), [(1, 10), (2, 64), (3, 7), (5, 50), (5, 10_000)])
def test_parts_of_any_size_give_what_memory_gives(tmp_path: Path, order: int, part: int, eos_id: int | None) -> None:
    tokens = text(random_sentences(order, 120, 12), 14)
    model = KneserNey.fit(tokens, num_words=14, eos_id=eos_id, order=order, fallback=FALLBACK)
    assert_the_same(on_disk(tokens, 14, model, tmp_path, part), model.orders)
    assert not list(tmp_path.iterdir())


@settings(max_examples=25)
@given(
    sentences=st.lists(st.lists(st.integers(1, 5), max_size=6), min_size=1, max_size=8),
    order=st.integers(1, 6),
    part=st.integers(1, 9),
    eos_id=st.sampled_from([0, None]),
)
def test_any_text_in_any_parts(
    tmp_path_factory: pytest.TempPathFactory, sentences: list[list[int]], order: int, part: int, eos_id: int | None
) -> None:
    tokens = text(sentences, 7)
    model = KneserNey.fit(tokens, num_words=7, eos_id=eos_id, order=order, fallback=FALLBACK)
    folder = tmp_path_factory.mktemp("counts")
    assert_the_same(on_disk(tokens, 7, model, folder, part), model.orders)


def test_a_text_that_may_not_fit_in_memory_is_counted_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = text(random_sentences(3, 200, 9), 9)
    in_memory = KneserNey.fit(tokens, num_words=9, eos_id=0, order=3, fallback=FALLBACK)
    given_memory = KneserNey.fit(tokens, num_words=9, eos_id=0, order=3, fallback=FALLBACK, max_memory=0, disk=tmp_path)
    monkeypatch.setattr("vlhmm.baselines.kneser_ney.available_bytes", lambda device: 100)
    by_itself = KneserNey.fit(tokens, num_words=9, eos_id=0, order=3, fallback=FALLBACK)
    for model in (given_memory, by_itself):
        assert isinstance(model.orders[2].keys, np.memmap)
        assert model.discounts == in_memory.discounts
        assert_the_same(model.orders, in_memory.orders)
    unseen = torch.tensor([[1, 8, 8, 2, 0, 3, 1, 2]])
    lengths = torch.tensor([8])
    scored = [model.score_window(unseen, lengths, None)[0] for model in (in_memory, given_memory)]
    assert bool((scored[0] == scored[1]).all())


def test_times_counted_are_those_of_one_to_four() -> None:
    counts = np.array([1, 4, 4, 9, 2, 0, 1, 3, 3, 3, 5])
    assert times_counted(counts, part=2) == (2, 1, 3, 2)


def test_a_disk_that_may_be_too_small_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = text(random_sentences(3, 20, 9), 9)
    monkeypatch.setattr("shutil.disk_usage", lambda folder: type("Usage", (), {"free": 1000})())
    with pytest.raises(ValueError, match=rf"3-grams of {len(tokens)} tokens.*are free in {tmp_path}.*disk="):
        KneserNey.fit(tokens, num_words=9, eos_id=0, order=3, max_memory=0, disk=tmp_path)
    with pytest.raises(ValueError, match="lower order"):
        require_disk(math.floor(1000 / 64), 1, tmp_path)


def test_joined_texts_are_counted_as_one(tmp_path: Path) -> None:
    parts = [random_sentences(seed, 100, 9) for seed in (0, 1)]
    joined, whole = Tokens.joined([text(part, 9) for part in parts]), text([*parts[0], *parts[1]], 9)
    on_disk = KneserNey.fit(joined, num_words=9, eos_id=0, order=3, fallback=FALLBACK, max_memory=0, disk=tmp_path)
    in_memory = KneserNey.fit(whole, num_words=9, eos_id=0, order=3, fallback=FALLBACK)
    assert on_disk.discounts == in_memory.discounts
    assert_the_same(on_disk.orders, in_memory.orders)
