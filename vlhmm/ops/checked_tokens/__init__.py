"""Tokens are validated on their own device, without host-device synchronisation."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor


@dataclass(frozen=True)
class Checked:
    tokens: Int[Tensor, "B T"]
    """0 past the length, and in place of what is no word."""
    lengths: Int[Tensor, " B"]
    """Between 1 and T."""
    init_of: Int[Tensor, "B T"]
    """0 at position 0 and after the reset token, else -1."""
    wrong: Int[Tensor, " B"]
    """1 where a token within the length, or the length, had to be replaced."""


def checked_tokens(
    tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], num_words: int, reset_token: int | None
) -> Checked:
    from vlhmm.ops.checked_tokens import kernel

    size, length = tokens.shape
    wrong = torch.empty(size, dtype=torch.int8, device=tokens.device)
    checked = Checked(torch.empty_like(tokens), torch.empty_like(lengths), torch.empty_like(tokens), wrong)
    kernel.check_rows[(size,)](
        *(tokens, lengths, checked.tokens, checked.lengths, checked.init_of, checked.wrong),
        *(num_words, -1 if reset_token is None else reset_token, length),
        BLOCK=128,
        num_warps=1,
    )
    return checked
