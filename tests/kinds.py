"""What the tests of the HMM share: every kind of it, sentences from it, and how close is close."""

import itertools

import numpy as np
import pytest
import torch
from oracle import EVERY_KIND, Oracle

TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
SEEDS = range(2)
every_kind = pytest.mark.parametrize("kind", EVERY_KIND, ids=str)
every_dtype = pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
table_kinds = pytest.mark.parametrize("kind", [kind for kind in EVERY_KIND if kind.transition == "table"], ids=str)


def close(actual, expected, dtype=torch.float64) -> None:
    if isinstance(actual, torch.Tensor):
        assert actual.dtype == dtype
        actual = actual.detach().numpy()
    np.testing.assert_allclose(actual, expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])


def some_sentences(oracle: Oracle, seed: int, lengths=(4, 1, 3, 2)) -> list[np.ndarray]:
    """By turns likely ones and any that are possible."""
    random = np.random.default_rng(1000 + seed)
    draws = itertools.cycle([oracle.sentence, oracle.rare_sentence])
    return [draw(length, random) for draw, length in zip(draws, lengths, strict=False)]
