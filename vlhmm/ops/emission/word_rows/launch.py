"""How the kernels of rows by word are called. Nothing here synchronises host and device, so a CUDA graph can hold it all."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.emission.word_rows import kernel
from vlhmm.ops.sizes import block_size, cdiv

NUMBERS_AT_ONCE = 8192
"""Of a program: as many rows as have so many, up to 128."""
MAX_COLUMNS = 512
"""Columns of a program."""
COUNTED, ADDED, ORDERED, COMPARED = 128, 2048, 32, 128
"""Positions of a program, words of one, places of one, and with how many each is compared at once."""


def gather(per_word: Float[Tensor, "X K"], words: Int[Tensor, " N"]) -> Float[Tensor, "N K"]:
    num_words, width = per_word.shape
    rows = torch.empty(words.shape[0], width, dtype=per_word.dtype, device=per_word.device)
    kernel.copy_rows[(words.shape[0],)](
        per_word, words, rows, num_words, width, BLOCK_K=block_size(width, MAX_COLUMNS), num_warps=2
    )
    return rows


def sum_by_word(rows: Float[Tensor, "N K"], words: Int[Tensor, " N"], num_words: int) -> Float[Tensor, "X K"]:
    """For each word the sum of its rows, always in the same order."""
    width = rows.shape[1]
    order, bounds = positions_by_word(words, num_words)
    per_word = torch.empty(num_words, width, dtype=rows.dtype, device=rows.device)
    columns = block_size(width, MAX_COLUMNS)
    kernel.sum_rows[num_words, cdiv(width, columns)](
        *(rows, order, bounds, per_word, width), ROWS=min(128, NUMBERS_AT_ONCE // columns), BLOCK_K=columns, num_warps=4
    )
    return per_word


def positions_by_word(words: Int[Tensor, " N"], num_words: int) -> tuple[Int[Tensor, " N"], Int[Tensor, " W"]]:
    """The positions in the order of their words, those of a word ascending; and where each word's begin, then their end."""
    # torch.sort would take a dozen kernel launches.
    num_positions, device, words = words.shape[0], words.device, words.contiguous()
    counts = torch.zeros(num_words, dtype=torch.int32, device=device)
    arrival, positions, order = (torch.empty(num_positions, dtype=torch.int32, device=device) for _ in range(3))
    bounds = torch.empty(num_words + 1, dtype=torch.int32, device=device)
    some = (cdiv(num_positions, COUNTED),)
    kernel.count_words[some](words, counts, arrival, num_positions, num_words, BLOCK=COUNTED, num_warps=4)
    kernel.add_up[(num_words // ADDED + 1,)](counts, bounds, num_words, BLOCK=ADDED, num_warps=8)
    kernel.put_by_word[some](words, arrival, bounds, positions, num_positions, num_words, BLOCK=COUNTED, num_warps=4)
    kernel.order_within_words[(cdiv(num_positions, ORDERED),)](
        *(words, bounds, positions, order, num_words), PLACES=ORDERED, CHUNK=COMPARED, num_warps=4
    )
    return order, bounds
