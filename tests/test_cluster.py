"""Blocks of words: what they must keep, whatever the corpus."""

import math
import os
from collections import Counter
from itertools import combinations, pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlhmm.cluster import (
    Blocks,
    brown_clusters,
    check_settings,
    count_bigrams,
    exchange,
    mutual_information,
    one_block,
    one_word_per_block,
    random_blocks,
    word_counts,
)
from vlhmm.cluster.brown import Window, agglomerate
from vlhmm.cluster.exchange import Exchange
from vlhmm.cluster.refine import Clock, anneal, climb, refining

EOS = 0


def corpus_of_classes(seed: int, num_lines: int = 400) -> np.ndarray:
    """Lines in which one of four classes of ten words always follows another in a ring; EOS is 0, words are 1..40."""
    generator = np.random.default_rng(seed)
    tokens = []
    for _ in range(num_lines):
        phase = generator.integers(4)
        for i in range(int(generator.integers(3, 9))):
            tokens.append(1 + 10 * ((phase + i) % 4) + min(int(generator.geometric(0.3)) - 1, 9))
        tokens.append(EOS)
    return np.array(tokens, np.uint16)


def brute_force_information(pairs: list[tuple[int, int]]) -> float:
    joint, left, right = Counter(pairs), Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    total = len(pairs)
    return sum(n / total * math.log(n * total / (left[a] * right[b])) for (a, b), n in joint.items())


def exchange_of(ids: np.ndarray, open_blocks: int, num_fixed: int = 0) -> Exchange:
    bigrams = count_bigrams(ids, eos="word")
    counts = bigrams.count_as_left + bigrams.count_as_right
    order = np.argsort(-counts, kind="stable")
    return Exchange(bigrams.select(order), num_movable=len(order) - num_fixed, open_blocks=open_blocks)


small_corpora = st.lists(st.integers(0, 9), min_size=12, max_size=80).map(
    lambda extra: np.array([*range(10), *extra], np.int64)
)


@given(small_corpora, st.integers(1, 10), st.integers(0, 99))
def test_information_equals_the_sum_over_pairs(ids: np.ndarray, num_blocks: int, seed: int) -> None:
    block_of_word = random_blocks(10, num_blocks, np.random.default_rng(seed)).block_of_word
    pairs = [(int(block_of_word[a]), int(block_of_word[b])) for a, b in pairwise(ids)]
    assert mutual_information(ids, block_of_word, eos="word") == pytest.approx(
        brute_force_information(pairs), abs=1e-12
    )


def test_bigrams_end_with_the_line_unless_eos_is_a_word() -> None:
    ids = np.array([1, 2, EOS, EOS, 2, 1, EOS])
    block_of_word = np.arange(3)
    within = [(1, 2), (2, 1)]
    text = [(1, 2), (2, 0), (0, 0), (0, 2), (2, 1), (1, 0)]
    for eos, pairs in (("none", within), ("last", within), ("word", text), ("own", text)):
        expected = brute_force_information(pairs)
        assert mutual_information(ids, block_of_word, eos=eos, eos_id=EOS) == pytest.approx(expected, abs=1e-12)


def test_bigrams_do_not_depend_on_the_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    ids = corpus_of_classes(0)
    whole = count_bigrams(ids, eos="none", eos_id=EOS)
    monkeypatch.setattr("vlhmm.cluster.bigrams.CHUNK", 7)
    parts = count_bigrams(ids, eos="none", eos_id=EOS)
    for name in ("left", "right", "count"):
        np.testing.assert_array_equal(getattr(whole, name), getattr(parts, name))
    np.testing.assert_array_equal(word_counts(ids, 41), np.bincount(ids, minlength=41))


@given(small_corpora, st.integers(2, 5), st.integers(0, 1), st.integers(0, 99))
def test_gains_equal_recomputation(ids: np.ndarray, open_blocks: int, num_fixed: int, seed: int) -> None:
    state = exchange_of(ids, open_blocks, num_fixed)
    generator = np.random.default_rng(seed)
    blocks = generator.integers(open_blocks, size=10)
    blocks[10 - num_fixed :] = open_blocks
    state.set_blocks(blocks)
    gains = state.gains(0, state.num_movable)
    before = state.objective()
    for word in range(state.num_movable):
        for block in range(open_blocks):
            other = blocks.copy()
            other[word] = block
            state.set_blocks(other)
            assert gains[word, block] == pytest.approx(state.objective() - before, abs=1e-4)


@pytest.mark.parametrize("repeats", [1, 40], ids=["tabulated", "larger"])
def test_compiled_loops_give_the_gains_of_numpy(repeats: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Few counts are beyond the table in a short text, nearly all in many copies of it."""
    tokens = np.tile(corpus_of_classes(3, num_lines=60), repeats)
    state = exchange_of(tokens, 6)
    gains = state.gains(0, state.num_movable)
    monkeypatch.setattr(exchange, "numba_installed", lambda: False)
    plain = exchange_of(tokens, 6)
    # Sums of tabulated increments are in single precision.
    np.testing.assert_allclose(gains, plain.gains(0, plain.num_movable), rtol=0, atol=1e-4)


def test_counts_beyond_the_table_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = np.tile(corpus_of_classes(3, num_lines=60), 40)
    expected = exchange_of(tokens, 6).gains(0, 12)
    monkeypatch.setattr(exchange, "MAX_TABLE", 100)
    state = exchange_of(tokens, 6)
    assert state.joint.max() > 100
    np.testing.assert_allclose(state.gains(0, 12), expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("compiled", [True, False])
def test_threads_change_nothing(compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exchange, "numba_installed", lambda: compiled)
    state = exchange_of(corpus_of_classes(3, num_lines=60), 6)
    expected = state.gains(0, state.num_movable)
    monkeypatch.setattr(exchange, "THREAD_CELLS", 1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 5)
    np.testing.assert_array_equal(state.gains(0, state.num_movable), expected)


def test_gains_equal_recomputation_beyond_the_table() -> None:
    state = exchange_of(np.repeat(corpus_of_classes(1), 2), open_blocks=5)
    agglomerate(state)
    blocks, before = state.block_of_word.copy(), state.objective()
    gains = state.gains(3, 20)
    for word in range(3, 20):
        for block in range(5):
            state.set_blocks(blocks)
            state.move(np.array([word]), np.array([block]))
            assert gains[word - 3, block] == pytest.approx(state.objective() - before, abs=1e-3)


@given(small_corpora, st.integers(0, 99))
def test_moves_keep_the_counts_in_step(ids: np.ndarray, seed: int) -> None:
    state = exchange_of(ids, open_blocks=3)
    generator = np.random.default_rng(seed)
    for _ in range(3):
        words = generator.permutation(10)[: generator.integers(1, 10)]
        state.move(words, generator.integers(3, size=len(words)))
    state.move(np.arange(3), np.arange(3))
    moved = {name: getattr(state, name).copy() for name in ("joint", "row_total", "column_total", "sizes")}
    increments = state._increments.copy()
    state.set_blocks(state.block_of_word)
    for name, value in moved.items():
        np.testing.assert_array_equal(value, getattr(state, name))
    np.testing.assert_allclose(increments, state._increments, atol=1e-6)


@given(small_corpora)
def test_merge_costs_equal_recomputation(ids: np.ndarray) -> None:
    state = exchange_of(ids, open_blocks=10)
    window = Window(state, np.arange(10), 10)
    # Costs must stay right after the tables were changed in every way they can be.
    window.merge(2, 5)
    window.swap(5, 9)
    slots = np.array([0, 1, 2, 3, 4, 2, 6, 7, 8, 5])
    state.set_blocks(slots)
    following = state.following.by_block(9, 10, slots, 10)[0]
    preceding = state.preceding.by_block(9, 10, slots, 10)[0]
    window.extract(5, 9, following, preceding, float(state.with_itself[9]))
    slots[9] = 9
    state.set_blocks(slots)
    before, costs = state.objective(), window.merge_costs()
    np.testing.assert_array_equal(window.joint, state.joint)
    # Slot 5 is the one words are taken from, which is never merged.
    slots_left = [0, 1, 2, 3, 4, 6, 7, 8, 9]
    for a, b in combinations(slots_left, 2):
        state.set_blocks(np.where(slots == b, a, slots))
        assert costs[a, b] == pytest.approx(before - state.objective(), abs=1e-9)


def test_refinement_never_lowers_information() -> None:
    for seed in range(3):
        ids = corpus_of_classes(seed, num_lines=60)
        for num_blocks in (2, 12):
            plain = brown_clusters(ids, num_blocks, eos_id=EOS, refine=False)
            refined = brown_clusters(ids, num_blocks, eos_id=EOS, seed=seed)
            assert plain.information is not None
            assert refined.information is not None
            assert refined.information >= plain.information


def test_climbing_rises_and_annealing_leaves_no_block_empty() -> None:
    state = exchange_of(corpus_of_classes(3), open_blocks=30)
    batches, clock = state.batches(0.3), Clock.start(None)
    for seed in range(10):
        anneal(state, 5.0, batches, np.random.default_rng(seed), clock)
        assert state.sizes.all()
        heated = state.information
        climb(state, batches, clock)
        assert state.sizes.all()
        assert state.information > heated


@given(small_corpora, st.integers(0, 99))
def test_climbing_never_falls_when_moves_spoil_each_other(ids: np.ndarray, seed: int) -> None:
    state = exchange_of(ids, open_blocks=2)
    state.set_blocks(random_blocks(10, 2, np.random.default_rng(seed)).block_of_word)
    for _ in range(4):
        before = state.objective()
        climb(state, [(0, state.num_movable)], Clock.start(None))
        assert state.objective() >= before


def test_an_expired_clock_keeps_the_start() -> None:
    state = exchange_of(corpus_of_classes(4), open_blocks=6)
    agglomerate(state)
    start = state.block_of_word.copy()
    list(refining(state, np.random.default_rng(0), Clock(started=-1e9, max_seconds=1.0)))
    np.testing.assert_array_equal(state.block_of_word, start)


def test_refinement_finds_planted_classes() -> None:
    blocks = brown_clusters(corpus_of_classes(5), 5, eos_id=EOS)
    classes = [set(blocks.block_of_word[1 + 10 * c : 11 + 10 * c].tolist()) for c in range(4)]
    assert all(len(found) == 1 for found in classes)
    assert set.union(*classes) == {0, 1, 2, 3}


@pytest.mark.parametrize("eos", ["own", "word", "last", "none"])
def test_reported_information_is_that_of_the_blocks(eos: str) -> None:
    ids = corpus_of_classes(6)
    blocks = brown_clusters(ids, 6, eos=eos, eos_id=EOS)
    assert blocks.information == mutual_information(ids, blocks.block_of_word, eos=eos, eos_id=EOS)
    assert blocks.num_blocks == 6
    assert blocks.seconds is not None
    counts = word_counts(ids, 41)
    totals = [counts[blocks.words(b)].sum() for b in range(6)]
    if eos == "word":
        assert sorted(totals, reverse=True) == pytest.approx(totals, abs=2)


def test_own_puts_eos_alone_into_the_last_block() -> None:
    blocks = brown_clusters(corpus_of_classes(7), 6, eos="own", eos_id=EOS)
    assert blocks.words(5).tolist() == [EOS]


def test_last_and_none_differ_in_eos_alone() -> None:
    ids = corpus_of_classes(8)
    last = brown_clusters(ids, 6, eos="last", eos_id=EOS).block_of_word
    none = brown_clusters(ids, 6, eos="none", eos_id=EOS).block_of_word
    np.testing.assert_array_equal(last[1:], none[1:])
    assert last[EOS] == 5
    sizes = np.bincount(none[1:], minlength=6)
    assert sizes[none[EOS]] == sizes.max()


def test_the_same_seed_gives_the_same_blocks() -> None:
    ids = corpus_of_classes(9, num_lines=80)
    first = brown_clusters(ids, 9, eos_id=EOS, seed=3)
    again = brown_clusters(ids, 9, eos_id=EOS, seed=3)
    np.testing.assert_array_equal(first.block_of_word, again.block_of_word)


def test_names_of_words_do_not_matter() -> None:
    ids = corpus_of_classes(5)
    renamed = np.random.default_rng(1).permutation(41)
    plain = brown_clusters(ids, 5, eos_id=EOS)
    other = brown_clusters(renamed[ids], 5, eos_id=int(renamed[EOS]))
    assert other.information == pytest.approx(plain.information, abs=1e-12)


@given(small_corpora, st.integers(1, 10), st.sampled_from(["own", "word", "last", "none"]))
def test_every_block_of_a_tiny_corpus_has_words(ids: np.ndarray, num_blocks: int, eos: str) -> None:
    # EOS apart leaves nine words; three more never occur.
    if eos == "own":
        num_blocks += 1
    blocks = brown_clusters(ids, num_blocks, eos=eos, eos_id=EOS, vocab_size=13)
    assert blocks.vocab_size == 13
    assert np.bincount(blocks.block_of_word, minlength=num_blocks).all()


def test_one_block_has_no_information_and_single_words_all_of_it() -> None:
    ids = corpus_of_classes(10)
    assert brown_clusters(ids, 1, eos="word").information == pytest.approx(0, abs=1e-12)
    every = brown_clusters(ids, 41, eos="word")
    assert len(set(every.block_of_word.tolist())) == 41
    pairs = [(int(a), int(b)) for a, b in pairwise(ids)]
    assert every.information == pytest.approx(brute_force_information(pairs), abs=1e-9)


def test_words_that_never_occur_join_the_block_of_most_words() -> None:
    blocks = brown_clusters(corpus_of_classes(11), 5, eos_id=EOS, vocab_size=50)
    unseen = blocks.block_of_word[41:]
    assert len(set(unseen.tolist())) == 1
    seen_sizes = np.bincount(blocks.block_of_word[1:41], minlength=5)
    assert seen_sizes[unseen[0]] == seen_sizes.max()


def test_a_corpus_of_no_bigrams_still_gets_blocks() -> None:
    blocks = brown_clusters(np.array([EOS, EOS]), 3, eos="last", eos_id=EOS, vocab_size=6)
    assert blocks.information == 0
    assert np.bincount(blocks.block_of_word, minlength=3).all()


def test_progress_ends_at_its_total() -> None:
    calls: list[tuple[int, int, str]] = []
    brown_clusters(corpus_of_classes(12), 4, eos_id=EOS, progress=lambda *call: calls.append(call))
    assert calls[-1][0] == calls[-1][1]
    assert [done for done, _, _ in calls] == sorted(done for done, _, _ in calls)


def test_anything_with_ids_is_a_corpus() -> None:
    class Split:
        ids = corpus_of_classes(13)

    plain = brown_clusters(Split.ids, 4, eos_id=EOS)
    # Its last token is EOS, and need not be named.
    np.testing.assert_array_equal(brown_clusters(Split(), 4).block_of_word, plain.block_of_word)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_blocks": 42}, "41 blocks for 40 words.*at most 41 blocks"),
        ({"num_blocks": 1}, "needs at least 2"),
        ({"num_blocks": 0, "eos": "word"}, "needs at least 1"),
        ({"num_blocks": 41, "eos": "none"}, "41 blocks for 40 words.*at most 40 blocks"),
        ({"eos_id": None}, "needs eos_id"),
        ({"eos_id": 99, "vocab_size": 50}, "eos_id 99 is outside the vocabulary 0..49"),
        ({"vocab_size": 12}, "ids from 0 to 40; the vocabulary is 0..11"),
        ({"seed": -1}, "seed -1"),
        ({"max_seconds": 0.0}, "max_seconds is 0.0"),
        ({"tokens": np.array([0.5, 1.0])}, "one row of integers"),
        ({"tokens": np.zeros((2, 2), int)}, "one row of integers"),
        ({"tokens": np.array([-1, 2])}, "ids from -1 to 2"),
    ],
)
def test_bad_input_is_refused_with_the_limit(change: dict[str, object], message: str) -> None:
    arguments: dict[str, object] = {"tokens": corpus_of_classes(0), "num_blocks": 5, "eos_id": EOS} | change
    with pytest.raises(ValueError, match=message):
        brown_clusters(**arguments)  # type: ignore[arg-type]


def test_an_unknown_eos_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'first'; it must be one of own, word, last, none"):
        check_settings(5, "first", EOS, 0)


def test_too_many_blocks_for_the_memory_are_refused() -> None:
    ids = np.arange(4000)
    with pytest.raises(ValueError, match=r"3000 blocks.*at most 2048"):
        brown_clusters(ids, 3000, eos="word")


def test_simple_partitions() -> None:
    assert one_block(7).num_blocks == 1
    assert one_word_per_block(7).block_of_word.tolist() == list(range(7))
    dealt = random_blocks(10, 3, np.random.default_rng(0))
    assert sorted(np.bincount(dealt.block_of_word).tolist()) == [3, 3, 4]
    with pytest.raises(ValueError, match="11 blocks for 10 words"):
        random_blocks(10, 11, np.random.default_rng(0))


@pytest.mark.parametrize(
    ("ids", "num_blocks", "message"),
    [
        ([0, 2], 3, "block 1 of 3 has no word"),
        ([0, 3], 3, "blocks from 0 to 3; 3 blocks are 0..2"),
        ([-1, 0], 1, "blocks from -1 to 0"),
        ([], 1, "at least 1 word"),
    ],
)
def test_a_record_of_blocks_is_checked(ids: list[int], num_blocks: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Blocks(np.array(ids, np.int64), num_blocks)


words = st.lists(st.text(st.characters(codec="utf-8"), max_size=4), min_size=1, max_size=12, unique=True)


@given(words, st.integers(0, 99))
def test_a_saved_file_reads_back(tmp_path_factory: pytest.TempPathFactory, tokens: list[str], seed: int) -> None:
    generator = np.random.default_rng(seed)
    blocks = random_blocks(len(tokens), int(generator.integers(1, len(tokens) + 1)), generator)
    path = tmp_path_factory.mktemp("blocks") / "blocks.tsv"
    blocks.save(path, tokens, generator.integers(100, size=len(tokens)))
    read = Blocks.load(path, tokens)
    np.testing.assert_array_equal(read.block_of_word, blocks.block_of_word)
    assert read.num_blocks == blocks.num_blocks


def test_a_saved_file_is_a_line_a_word_frequent_first(tmp_path: Path) -> None:
    path = tmp_path / "blocks.tsv"
    Blocks(np.array([1, 0, 1]), 2).save(path, ["a\tb", "c\\", "d\n"], [3, 5, 9])
    assert path.read_bytes() == b"0\tc\\\\\t5\n1\td\\n\t9\n1\ta\\tb\t3\n"
    assert [p.name for p in tmp_path.iterdir()] == ["blocks.tsv"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("0\ta\t1\n0 b 1\n", "line 2: 1 fields"),
        ("0\ta\t1\n-1\tb\t1\n", "line 2: block '-1'"),
        ("0\ta\t1\n0\tb\tmany\n", "line 2:.*count 'many'"),
        ("0\ta\t1\n0\tc\t1\n", "line 2: 'c' is not in the vocabulary"),
        ("0\ta\t1\n0\ta\t1\n", "line 2: 'a' has a block already"),
        ("0\ta\t1\n", "1 of 2 words have no line, 'b'"),
        ("", "2 of 2 words have no line, 'a'"),
        ("1\ta\t1\n1\tb\t1\n", "block 0 of 2 has no word"),
        ("0\ta\t1\n7\tb\t1\n", "line 2: block 7; 2 words fill blocks 0..1"),
        ("0\ta\\x\t1\n", "line 1: unknown escape"),
    ],
)
def test_a_bad_file_is_refused_by_line(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "blocks.tsv"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        Blocks.load(path, ["a", "b"])


def test_a_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "blocks.tsv"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="not UTF-8"):
        Blocks.load(path, ["a"])


def test_names_must_be_distinct_and_as_many_as_words(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'a' twice"):
        one_block(2).save(tmp_path / "blocks.tsv", ["a", "a"], [1, 1])
    with pytest.raises(ValueError, match="2 words have a block, but 3 names"):
        one_block(2).save(tmp_path / "blocks.tsv", ["a", "b", "c"], [1, 1])


@pytest.mark.data
@pytest.mark.slow
def test_blocks_of_the_penn_treebank_keep_enough_information() -> None:
    text = (Path(os.environ["VLHMM_DATA"]) / "ptb" / "train.txt").read_text(encoding="utf-8")
    lines = [line.split() for line in text.splitlines()]
    id_of = {word: i for i, word in enumerate(["<eos>", *sorted({w for line in lines for w in line})])}
    ids = np.array([id_of[word] for line in lines for word in [*line, "<eos>"]])
    blocks = brown_clusters(ids, 128, eos="none", eos_id=0)
    assert blocks.information is not None
    assert blocks.information >= 1.006
