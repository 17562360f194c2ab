"""log p(x_t | z) for each token of a text over the K states of its word: rows of the emission table, without the table.

A dense HMM of 512 states and 32,000 words has 66 MB of it. A training step reads the rows of its tokens; of all other
rows it needs only the normaliser, a sum over all words.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops import dispatch
from vlhmm.ops.emission import WordLayout
from vlhmm.ops.emission.by_token import on_cpu, reference
from vlhmm.ops.row_logsumexp import tiled_factors_and_row_logsumexp
from vlhmm.precision import Precision
from vlhmm.support import Support

__all__ = ["token_log_emission", "token_log_emission_by_kernels", "token_log_softmax", "token_log_softmax_by_kernels"]


def token_log_emission(
    emit: Float[Tensor, "Z H"],
    words: Float[Tensor, "X H"],
    bias: Float[Tensor, " X"] | None,
    tokens: Int[Tensor, "B T"],
    support: Support,
    layout: WordLayout | None = None,
    *,
    precision: Precision = "highest",
) -> Float[Tensor, "N K"]:
    """`log_emission(emit, words, bias, support)`, its rows of the N = B T tokens."""
    if bias is None and _kernels_take_factors(support, emit, words, precision):
        return token_log_emission_by_kernels(emit, words, tokens, precision)
    if _cpu_takes(support, emit):
        return on_cpu.token_log_emission(emit, words, bias, tokens)
    return reference.token_log_emission(emit, words, bias, tokens, support, layout, precision)


def token_log_softmax(
    logits: Float[Tensor, "X K"], tokens: Int[Tensor, "B T"], support: Support, layout: WordLayout | None = None
) -> Float[Tensor, "N K"]:
    """`normalize_over_words(logits, support)`, its rows of the N = B T tokens."""
    if _kernels_take(support, logits):
        return token_log_softmax_by_kernels(logits, tokens)
    if _cpu_takes(support, logits):
        return on_cpu.token_log_softmax(logits, tokens)
    return reference.token_log_softmax(logits, tokens, support, layout)


def token_log_emission_by_kernels(
    emit: Float[Tensor, "K H"], words: Float[Tensor, "X H"], tokens: Int[Tensor, "B T"], precision: Precision
) -> Float[Tensor, "N K"]:
    """For one group of states in float32; a word out of range, which is not checked, has a row of NaN."""
    # The normaliser's kernels add the gradients of the rows to their own.
    emit, words, log_normalizer = tiled_factors_and_row_logsumexp(emit, words, precision=precision)
    result: Tensor = _RowsOfFactors.apply(emit, words, log_normalizer, tokens, precision)
    return result


def token_log_softmax_by_kernels(logits: Float[Tensor, "X K"], tokens: Int[Tensor, "B T"]) -> Float[Tensor, "N K"]:
    """For one group of states in float32; a word out of range, which is not checked, has a row of NaN."""
    result: Tensor = _RowsOfTable.apply(logits, tokens)
    return result


def _cpu_takes(support: Support, operand: Tensor) -> bool:
    return support.dense and not operand.is_cuda


def _kernels_take_factors(support: Support, emit: Tensor, words: Tensor, precision: Precision) -> bool:
    # Logits are computed twice: on bf16 tensor cores that costs less than reading a stored table from memory.
    return precision == "bf16" and dispatch.ROW_LOGSUMEXP.fits(emit.shape[1]) and _kernels_take(support, emit, words)


def _kernels_take(support: Support, *operands: Tensor) -> bool:
    return support.dense and dispatch.TOKEN_EMISSION.serve(*operands)


class _RowsOfFactors(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, emit: Tensor, words: Tensor, log_normalizer: Tensor, tokens: Tensor, precision: Precision
    ) -> Tensor:
        # Imported here, so that the CPU path does not need Triton.
        from vlhmm.ops.emission.by_token import launch

        factors = launch.Factors(launch.operand(emit, precision), words.contiguous(), precision)
        tokens = tokens.flatten().contiguous()
        ctx.save_for_backward(factors.emit, factors.words, tokens)
        ctx.precision = precision
        return launch.rows_of_factors(factors, log_normalizer.contiguous(), tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        from vlhmm.ops.emission.by_token import launch

        emit, words, tokens = ctx.saved_tensors
        factors = launch.Factors(emit, words, ctx.precision)
        grad = grad.contiguous()
        d_words, d_log_normalizer = launch.word_gradients(grad, factors, tokens)
        return launch.emit_gradients(grad, factors, tokens), d_words, d_log_normalizer, None, None


class _RowsOfTable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, tokens: Tensor) -> Tensor:
        from vlhmm.ops.emission.by_token import launch

        logits, tokens = logits.contiguous(), tokens.flatten().contiguous()
        log_normalizer = launch.column_log_sums(logits)
        ctx.save_for_backward(logits, log_normalizer, tokens)
        return launch.rows_of_table(logits, log_normalizer, tokens)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        from vlhmm.ops.emission.by_token import launch

        logits, log_normalizer, tokens = ctx.saved_tensors
        return launch.table_gradient(grad.contiguous(), logits, log_normalizer, tokens), None
