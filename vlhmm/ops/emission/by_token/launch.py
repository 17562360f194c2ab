"""How the kernels of the tokens' emission are called: what is allocated, how the work is tiled. Nothing here synchronises host and
device, so a CUDA graph can hold it all."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.emission.by_token import kernel
from vlhmm.ops.emission.word_rows.launch import positions_by_word, sum_by_word
from vlhmm.ops.rounding import logit_product
from vlhmm.ops.sizes import block_size, cdiv
from vlhmm.precision import Precision

MULTIPROCESSORS = 132
"""Of an H200."""

# Kernels without products are bound by memory latency: many small programs (high occupancy) hide it.
ROWS, COLUMNS = 16, 128
"""Of a table, that a program takes at once."""
PARTS_PER_COLUMNS = 8 * MULTIPROCESSORS
MIN_ROWS = 32
"""Of a part: fewer would cost more to add up."""
MAX_COLUMNS = 512
"""Columns of a program that takes one row."""

TOKENS, STATES, FEATURES = 64, 128, 128
"""Of a program that multiplies: its rows, and its columns of either kind."""
INNER_STATES, INNER_TOKENS = 64, 32
"""What a product takes at once."""
MIN_TOKENS = 128
"""Of a part."""


@dataclass(frozen=True)
class Factors:
    """A word's logits are word . emit."""

    emit: Float[Tensor, "K H"]
    """As `operand` gives it: every program reads it."""
    words: Float[Tensor, "X H"]
    precision: Precision

    @property
    def product(self) -> str:
        return logit_product(self.precision)

    @property
    def gradient_product(self) -> str:
        return "ieee" if self.precision == "highest" else "tf32"


def operand(values: Float[Tensor, "N H"], precision: Precision) -> Float[Tensor, "N H"]:
    """In the type that a product reads."""
    # The interpreter takes bfloat16 for integers in a matrix product.
    rounds = precision == "bf16" and values.is_cuda
    return values.to(torch.bfloat16).contiguous() if rounds else values.contiguous()


def column_log_sums(table: Float[Tensor, "X K"]) -> Float[Tensor, " K"]:
    """log sum exp over the rows."""
    num_rows, width = table.shape
    part_rows = _part(num_rows, PARTS_PER_COLUMNS // cdiv(width, COLUMNS), MIN_ROWS)
    num_parts = cdiv(num_rows, part_rows)
    of_parts = torch.empty(num_parts, width, device=table.device)
    kernel.log_sums[num_parts, cdiv(width, COLUMNS)](
        *(table, of_parts, num_rows, width, part_rows), ROWS=ROWS, BLOCK_K=COLUMNS, num_warps=4
    )
    whole = torch.empty(width, device=table.device)
    # The same again, of the parts.
    kernel.log_sums[1, cdiv(width, 16)](
        *(of_parts, whole, num_parts, width, num_parts), ROWS=64, BLOCK_K=16, num_warps=4
    )
    return whole


def rows_of_table(
    logits: Float[Tensor, "X K"], log_normalizer: Float[Tensor, " K"], tokens: Int[Tensor, " N"]
) -> Float[Tensor, "N K"]:
    num_words, width = logits.shape
    rows = torch.empty(tokens.shape[0], width, device=logits.device)
    kernel.rows_of_table[(tokens.shape[0],)](
        *(logits, tokens, log_normalizer, rows, num_words, width),
        BLOCK_K=block_size(width, MAX_COLUMNS, least=16),
        num_warps=2,
    )
    return rows


def rows_of_factors(
    factors: Factors, log_normalizer: Float[Tensor, " K"], tokens: Int[Tensor, " N"]
) -> Float[Tensor, "N K"]:
    (num_states, width), num_words = factors.emit.shape, factors.words.shape[0]
    num_tokens = tokens.shape[0]
    rows = torch.empty(num_tokens, num_states, device=tokens.device)
    # All features at once: at large widths a program takes fewer states.
    states = STATES if width <= 256 else STATES // 2
    kernel.rows_of_factors[cdiv(num_tokens, TOKENS), cdiv(num_states, states)](
        *(factors.emit, factors.words, tokens, log_normalizer, rows, num_tokens, num_words, num_states, width),
        PRECISION=factors.precision,
        PRODUCT=factors.product,
        TOKENS=TOKENS,
        STATES=states,
        WIDTH=block_size(width, least=16),
        num_warps=4,
        num_stages=1,
    )
    return rows


def table_gradient(
    grad: Float[Tensor, "N K"],
    logits: Float[Tensor, "X K"],
    log_normalizer: Float[Tensor, " K"],
    tokens: Int[Tensor, " N"],
) -> Float[Tensor, "X K"]:
    (num_tokens, width), num_words = grad.shape, logits.shape[0]
    part_rows = _part(num_tokens, PARTS_PER_COLUMNS // cdiv(width, COLUMNS), MIN_ROWS)
    num_parts = cdiv(num_tokens, part_rows)
    of_parts = torch.empty(num_parts, width, device=grad.device)
    kernel.sums[num_parts, cdiv(width, COLUMNS)](
        *(grad, of_parts, num_tokens, width, part_rows), NEGATE=False, ROWS=ROWS, BLOCK_K=COLUMNS, num_warps=4
    )
    order, bounds = positions_by_word(tokens, num_words)
    d_logits = torch.empty(num_words, width, device=grad.device)
    columns = block_size(width, MAX_COLUMNS, least=16)
    kernel.table_gradient[num_words, cdiv(width, columns)](
        *(grad, order, bounds, logits, log_normalizer, _minus_sum(of_parts), d_logits, width),
        ROWS=ROWS,
        BLOCK_K=columns,
        num_warps=4,
    )
    return d_logits


def word_gradients(
    grad: Float[Tensor, "N K"], factors: Factors, tokens: Int[Tensor, " N"]
) -> tuple[Float[Tensor, "X H"], Float[Tensor, " K"]]:
    """That of the words, and that of the normalizer."""
    num_tokens, num_states = grad.shape
    num_words, width = factors.words.shape
    block_features, num_parts = block_size(width, FEATURES, least=16), cdiv(num_tokens, TOKENS)
    d_rows = torch.empty(num_tokens, width, device=grad.device)
    part_sums = torch.empty(num_parts, num_states, device=grad.device)
    kernel.d_token_rows[num_parts, cdiv(width, block_features)](
        *(grad, factors.emit, d_rows, part_sums, num_tokens, num_states, width),
        PRECISION=factors.precision,
        PRODUCT=factors.gradient_product,
        TOKENS=TOKENS,
        STATES=block_size(num_states, INNER_STATES, least=16),
        BLOCK_H=block_features,
        num_warps=4,
        num_stages=3,
    )
    return sum_by_word(d_rows, tokens, num_words), _minus_sum(part_sums)


def emit_gradients(grad: Float[Tensor, "N K"], factors: Factors, tokens: Int[Tensor, " N"]) -> Float[Tensor, "K H"]:
    num_tokens, num_states = grad.shape
    num_words, width = factors.words.shape
    states, block_features = block_size(num_states, STATES, least=16), block_size(width, FEATURES, least=16)
    grid = cdiv(num_states, states), cdiv(width, block_features)
    part_tokens = _part(num_tokens, MULTIPROCESSORS // (grid[0] * grid[1]), MIN_TOKENS)
    num_parts = cdiv(num_tokens, part_tokens)
    d_emit = torch.empty(num_parts, num_states, width, device=grad.device)
    kernel.d_emit_parts[num_parts, *grid](
        *(grad, factors.words, tokens, d_emit, num_tokens, num_words, num_states, width, part_tokens),
        PRECISION=factors.precision,
        PRODUCT=factors.gradient_product,
        TOKENS=INNER_TOKENS,
        STATES=states,
        BLOCK_H=block_features,
        num_warps=8,
        num_stages=3,
    )
    return d_emit[0] if num_parts == 1 else d_emit.sum(0)


def _minus_sum(of_parts: Float[Tensor, "P K"]) -> Float[Tensor, " K"]:
    num_parts, width = of_parts.shape
    result = torch.empty(width, device=of_parts.device)
    kernel.sums[1, cdiv(width, 16)](
        *(of_parts, result, num_parts, width, num_parts), NEGATE=True, ROWS=64, BLOCK_K=16, num_warps=4
    )
    return result


def _part(whole: int, most_parts: int, fewest: int) -> int:
    """The size of a part."""
    return max(fewest, cdiv(whole, max(1, most_parts)))
