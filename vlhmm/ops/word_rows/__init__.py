"""Rows of a table with a row for every word, and a gradient that neither waits for atomics nor sorts rows."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops.word_rows import reference

__all__ = ["word_rows", "word_rows_by_kernels"]


def word_rows(per_word: Float[Tensor, "X K"], words: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
    """per_word[words]."""
    return (
        word_rows_by_kernels(per_word, words)
        if _kernels_take(per_word, words)
        else reference.word_rows(per_word, words)
    )


def word_rows_by_kernels(per_word: Float[Tensor, "X K"], words: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
    """`word_rows` in float32; a word out of range, which nobody looks for, has a row of NaN."""
    result: Tensor = _WordRows.apply(per_word, words)
    return result


def _kernels_take(per_word: Tensor, words: Tensor) -> bool:
    return (
        per_word.is_cuda
        and per_word.dtype == torch.float32
        and min(per_word.numel(), words.numel()) > 0
        and find_spec("triton") is not None
        and torch.cuda.get_device_capability(per_word.device) >= (8, 0)
    )


class _WordRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, per_word: Tensor, words: Tensor) -> Tensor:
        from vlhmm.ops.word_rows import launch

        ctx.save_for_backward(words)
        ctx.num_words = per_word.shape[0]
        return launch.gather(per_word.contiguous(), words.flatten().contiguous()).view(*words.shape, -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        from vlhmm.ops.word_rows import launch

        (words,) = ctx.saved_tensors
        return launch.sum_by_word(grad.contiguous().flatten(0, 1), words.flatten(), ctx.num_words), None
