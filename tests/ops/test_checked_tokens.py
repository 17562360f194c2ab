"""Tokens checked by a kernel against what is asked of them: interpreted here, compiled on a GPU (`-m gpu`)."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

from vlhmm.ops.checked_tokens import checked_tokens

NUM_WORDS = 7
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("reset_token", [None, 2])
@pytest.mark.parametrize("length", [1, 5, 300])
def test_what_is_wrong_is_replaced_and_told(length: int, reset_token: int | None, device: str) -> None:
    generator = torch.Generator().manual_seed(length)
    tokens = torch.randint(NUM_WORDS, (5, length), generator=generator).to(device)
    lengths = torch.tensor([length, 1, 0, length + 1, length], device=device)
    tokens[1, 1:] = -3
    tokens[4, -1] = NUM_WORDS
    checked = checked_tokens(tokens, lengths, NUM_WORDS, reset_token)
    within = torch.arange(length, device=device) < lengths[:, None]
    known = (tokens >= 0) & (tokens < NUM_WORDS)
    assert torch.equal(checked.tokens, torch.where(within & known, tokens, 0))
    assert checked.lengths.tolist() == [length, 1, 1, length, length]
    assert checked.wrong.tolist() == [0, 0, 1, 1, 1]
    begins = torch.zeros_like(known)
    begins[:, 0] = True
    if reset_token is not None:
        begins[:, 1:] = tokens[:, :-1] == reset_token
    assert torch.equal(checked.init_of, torch.where(begins, 0, -1))
