"""Rows of a table with a row for every word (an embedding lookup), with a gradient that uses neither atomics nor a sort of rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops import dispatch
from vlhmm.ops.emission.word_rows import reference

__all__ = ["word_rows", "word_rows_by_kernels"]

_NUMPY_TYPES = {torch.float32: np.float32, torch.float64: np.float64}


def word_rows(per_word: Float[Tensor, "X K"], words: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
    """per_word[words]."""
    if _kernels_take(per_word, words):
        return word_rows_by_kernels(per_word, words)
    if per_word.device.type == "cpu":
        result: Tensor = _WordRowsOnCpu.apply(per_word, words)
        return result
    return reference.word_rows(per_word, words)


def word_rows_by_kernels(per_word: Float[Tensor, "X K"], words: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
    """`word_rows` in float32; a word out of range, which is not checked, has a row of NaN."""
    result: Tensor = _WordRows.apply(per_word, words)
    return result


def _kernels_take(per_word: Tensor, words: Tensor) -> bool:
    return dispatch.WORD_ROWS.serve(per_word, words)


class _WordRowsOnCpu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, per_word: Tensor, words: Tensor) -> Tensor:
        ctx.save_for_backward(words)
        ctx.shape = per_word.shape
        return reference.word_rows(per_word, words)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (words,) = ctx.saved_tensors
        # Most rows of a large table stay zero. NumPy allocates zeroed memory in huge pages: 41 MB took 4 ms, and 21 ms with
        # PyTorch's allocation.
        zeros = torch.from_numpy(np.zeros(ctx.shape, dtype=_NUMPY_TYPES[grad.dtype]))
        return zeros.index_add_(0, words.flatten(), grad.flatten(0, 1)), None


class _WordRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, per_word: Tensor, words: Tensor) -> Tensor:
        from vlhmm.ops.emission.word_rows import launch

        ctx.save_for_backward(words)
        ctx.num_words = per_word.shape[0]
        return launch.gather(per_word.contiguous(), words.flatten().contiguous()).view(*words.shape, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        from vlhmm.ops.emission.word_rows import launch

        (words,) = ctx.saved_tensors
        return launch.sum_by_word(grad.contiguous().flatten(0, 1), words.flatten(), ctx.num_words), None
