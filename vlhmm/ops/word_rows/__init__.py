"""Rows of a table with a row for every word, and a gradient that neither waits for atomics nor sorts rows."""

from __future__ import annotations

import math
import mmap
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
    if _kernels_take(per_word, words):
        return word_rows_by_kernels(per_word, words)
    if per_word.device.type == "cpu":
        result: Tensor = _WordRowsOnCpu.apply(per_word, words)
        return result
    return reference.word_rows(per_word, words)


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
        few = 2 * words.numel() < ctx.shape[0]
        zeros = _untouched_zeros(ctx.shape, grad.dtype) if few else grad.new_zeros(ctx.shape)
        return zeros.index_add_(0, words.flatten(), grad.flatten(0, 1)), None


def _untouched_zeros(shape: tuple[int, int], dtype: torch.dtype) -> Tensor:
    """Memory that the system clears when it is first touched, in small pages: most rows of a large table are never written.

    Of 20 MB, with 1,000 rows written, it took 1.3 ms, and 5 to 15 as PyTorch or NumPy ask for memory.
    """
    memory = mmap.mmap(-1, max(1, math.prod(shape) * dtype.itemsize))
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)


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
