"""An epoch's windows: every token once, reproducibly, documents whole."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from vlhmm.data import Tokens
from vlhmm.data.windows import Epoch


def numbered(num_tokens: int, cuts: list[int]) -> Tokens:
    """Token i has id i, so that every position can be recognised."""
    offsets = np.array(sorted({0, num_tokens, *(cut for cut in cuts if cut < num_tokens)}), dtype=np.int64)
    return Tokens(np.arange(num_tokens, dtype=np.int64), offsets)


@given(
    num_tokens=st.integers(30, 200),
    cuts=st.lists(st.integers(1, 199), max_size=20),
    kind=st.sampled_from(["carried", "independent"]),
    batch_size=st.integers(1, 4),
    length=st.integers(1, 7),
    seed=st.integers(0, 5),
)
def test_no_token_comes_twice_and_few_are_left_out(
    num_tokens: int, cuts: list[int], kind: str, batch_size: int, length: int, seed: int
) -> None:
    epoch = Epoch(numbered(num_tokens, cuts), kind, batch_size, length, seed, 0)  # type: ignore[arg-type]
    windows = list(epoch.windows())
    assert len(windows) == epoch.num_windows
    assert all(window.shape == (batch_size, length) for window in windows)
    seen = torch.stack(windows).flatten()
    assert len(seen.unique()) == len(seen)
    assert num_tokens - len(seen) < batch_size * length


@given(cuts=st.lists(st.integers(1, 99), max_size=12), seed=st.integers(0, 5))
def test_carried_windows_follow_one_another_and_keep_documents_whole(cuts: list[int], seed: int) -> None:
    tokens = numbered(100, cuts)
    (stream,) = torch.cat(list(Epoch(tokens, "carried", 1, 5, seed, 0).windows()), dim=1)
    starts, ends = set(tokens.offsets[:-1].tolist()), set((tokens.offsets[1:] - 1).tolist())
    for left, right in zip(stream[:-1].tolist(), stream[1:].tolist(), strict=True):
        assert right == left + 1 or (left in ends and right in starts)


def test_the_same_epoch_gives_the_same_windows_and_another_gives_others() -> None:
    tokens = numbered(300, list(range(0, 300, 7)))
    for kind in ("carried", "independent"):
        first = torch.stack(list(Epoch(tokens, kind, 2, 5, 0, 0).windows()))  # type: ignore[arg-type]
        again = torch.stack(list(Epoch(tokens, kind, 2, 5, 0, 0).windows()))  # type: ignore[arg-type]
        other = torch.stack(list(Epoch(tokens, kind, 2, 5, 0, 1).windows()))  # type: ignore[arg-type]
        assert torch.equal(first, again)
        assert not torch.equal(first, other)


def test_windows_can_be_taken_up_in_the_middle() -> None:
    epoch = Epoch(numbered(300, [50, 120]), "carried", 2, 5, 3, 4)
    assert torch.equal(torch.stack(list(epoch.windows(7))), torch.stack(list(epoch.windows())[7:]))


def test_too_little_text_is_refused_with_the_number() -> None:
    with pytest.raises(ValueError, match=r"10 tokens.*needs 20"):
        Epoch(numbered(10, []), "carried", 4, 5, 0, 0).check()
