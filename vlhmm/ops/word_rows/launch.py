"""How the kernels of rows by word are called. Nothing here asks the device anything, so a CUDA graph can hold it all."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.sizes import pieces, power_of_2
from vlhmm.ops.word_rows import kernel

ROWS_AT_ONCE = 16
WIDEST = 512
"""Columns of a program."""


def gather(per_word: Float[Tensor, "X K"], words: Int[Tensor, " N"]) -> Float[Tensor, "N K"]:
    num_words, width = per_word.shape
    rows = torch.empty(words.shape[0], width, dtype=per_word.dtype, device=per_word.device)
    kernel.copy_rows[(words.shape[0],)](per_word, words, rows, num_words, width, BLOCK_K=_block(width), num_warps=2)
    return rows


def sum_by_word(rows: Float[Tensor, "N K"], words: Int[Tensor, " N"], num_words: int) -> Float[Tensor, "X K"]:
    """For each word the sum of its rows, always in the same order."""
    width = rows.shape[1]
    # A few thousand numbers are sorted, never rows.
    in_order, order = words.sort(stable=True)
    every_word = torch.arange(num_words + 1, device=words.device)
    bounds = torch.searchsorted(in_order, every_word, out_int32=True)
    per_word = torch.empty(num_words, width, dtype=rows.dtype, device=rows.device)
    block = _block(width)
    kernel.sum_rows[num_words, pieces(width, block)](
        rows, order, bounds, per_word, width, ROWS=ROWS_AT_ONCE, BLOCK_K=block, num_warps=4
    )
    return per_word


def _block(width: int) -> int:
    return min(WIDEST, power_of_2(width))
