"""Rows of a table by word: the specification."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor


def word_rows(per_word: Float[Tensor, "X K"], words: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
    # The backward pass of `index_select` does not sort its indices, unlike that of advanced indexing.
    return per_word.index_select(0, words.flatten()).view(*words.shape, -1)
