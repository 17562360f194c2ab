"""A reading is what enumeration of all paths says, however the text is cut."""

from typing import Any

import numpy as np
import pytest
import torch
from kinds import SEEDS, close, every_kind
from oracle import Kind, random_hmm
from texts import as_text, result

import vlhmm
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inspection.reading import Reading, read_text
from vlhmm.tables import Tables

DENSE = Kind("dense", "table", reset=False)


def read(tables: Tables, ids: Any, **options: Any) -> Reading:
    made: Reading = result(read_text(tables, as_text(ids), **options))
    return made


def entropies(probs: np.ndarray) -> np.ndarray:
    return -(probs * np.log(np.where(probs > 0, probs, 1.0))).sum(1)


@every_kind
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("window", [None, 2])
def test_a_reading_is_what_all_paths_say(kind: Kind, seed: int, window: int | None) -> None:
    oracle, tables = random_hmm(kind, seed)
    ids = oracle.sentence(6, np.random.default_rng(seed))
    reading = read(tables, ids, window=window)
    close(reading.token_log_probs, oracle.token_log_probs(ids))
    close(reading.filtered_entropy, entropies(oracle.filter(ids)))
    close(reading.smoothed_entropy, entropies(oracle.posterior(ids)))
    close(reading.occupancy, oracle.posterior(ids).sum(0))


def test_progress_counts_every_token_there_and_back() -> None:
    oracle, tables = random_hmm(DENSE, 1)
    ids = oracle.sentence(10, np.random.default_rng(0))
    done = list(read_text(tables, as_text(ids), window=4))
    assert done == [4, 8, 10, 12, 16, 20]


def test_streams_are_near_the_exact_reading() -> None:
    oracle, tables = random_hmm(DENSE, 3)
    ids = oracle.sentence(900, np.random.default_rng(0))
    exact, streams = read(tables, ids), read(tables, ids, streams=3)
    for name in ("token_log_probs", "filtered_entropy", "smoothed_entropy", "occupancy"):
        torch.testing.assert_close(getattr(streams, name), getattr(exact, name), rtol=1e-6, atol=1e-6)


def test_long_texts_are_read_as_by_messages() -> None:
    oracle, tables = random_hmm(Kind("blocked", "softmax", reset=True), 2)
    ids = oracle.sentence(200, np.random.default_rng(4))
    messages, reading = oracle.by_messages(ids), read(tables, ids, window=17)
    close(reading.token_log_probs, messages.token_log_probs)
    close(reading.smoothed_entropy, entropies(messages.posterior))
    assert float(reading.occupancy.sum()) == pytest.approx(200)


def test_an_impossible_text_is_refused() -> None:
    hmm = vlhmm.HMM.from_probabilities([1.0, 0.0], np.eye(2), np.eye(2))
    with pytest.raises(ImpossibleTextError, match="inspect: sequence 0 has probability zero from position 2"):
        read(hmm.tables, [0, 0, 1])
