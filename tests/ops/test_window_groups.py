"""The groups of a window by their kernel, interpreted here or on a GPU, against their specification."""

import pytest
import torch
from kernels import DEVICES

from vlhmm.ops.groups.of_window import reference, window_groups_by_kernel

NUM_WORDS, NUM_GROUPS = 11, 4


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reset_token", [None, 0, 3])
@pytest.mark.parametrize(("with_past", "first_entered"), [(False, None), (True, None), (True, NUM_GROUPS)])
@pytest.mark.parametrize(("size", "length"), [(1, 1), (3, 5), (2, 300)])
def test_groups_and_beginnings_equal_the_specification(
    size: int, length: int, with_past: bool, first_entered: int | None, reset_token: int | None, device: str
) -> None:
    generator = torch.Generator().manual_seed(length)
    group_of_word = torch.randint(NUM_GROUPS, (NUM_WORDS,), generator=generator).to(device)
    # A view, as a window of a longer text is.
    text = torch.randint(NUM_WORDS, (size, length + 1), generator=generator).to(device)
    past = text[:, 0] if with_past else None
    asked = (text[:, 1:], group_of_word, reset_token, past, first_entered)
    found, expected = window_groups_by_kernel(*asked), reference.window_groups(*asked)
    assert torch.equal(found.target, expected.target)
    assert torch.equal(found.source, expected.source)
    assert torch.equal(found.init_of, expected.init_of)


@pytest.mark.parametrize("device", DEVICES)
def test_a_sequence_that_goes_on_begins_anew_after_the_reset_token_alone(device: str) -> None:
    tokens, group_of_word = torch.tensor([[2, 0, 1], [0, 2, 2]], device=device), torch.tensor([5, 6, 7], device=device)
    past = torch.tensor([0, 2], device=device)
    found = window_groups_by_kernel(tokens, group_of_word, 0, past, None)
    assert found.target.tolist() == [[7, 5, 6], [5, 7, 7]]
    assert found.source.tolist() == [[5, 7, 5], [7, 5, 7]]
    assert found.init_of.tolist() == [[7, -1, 6], [-1, 7, -1]]


@pytest.mark.parametrize("device", DEVICES)
def test_words_out_of_range_are_not_looked_up(device: str) -> None:
    found = window_groups_by_kernel(
        torch.tensor([[-1, 2, 1]], device=device), torch.tensor([3, 3], device=device), None, None, None
    )
    assert found.target.tolist() == [[0, 0, 3]]
