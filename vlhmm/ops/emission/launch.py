"""How the kernels of the emission are called: what is allocated, how the work is tiled. Nothing here synchronises host and
device, so a CUDA graph can hold it all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from vlhmm.ops.emission import kernel
from vlhmm.ops.emission.layout import WordLayout
from vlhmm.ops.rounding import logit_product
from vlhmm.ops.sizes import block_size, cdiv
from vlhmm.precision import Precision

MIN_PROGRAMS = 264
"""Two for each multiprocessor of an H200."""

MIN_WORDS = 256
"""Of a part of a vocabulary: fewer would cost more to add up than to multiply."""


@dataclass(frozen=True)
class Tiling:
    """Sizes of the pieces, fixed by the precision: there is no autotuning at run time."""

    states: int
    """Columns of the result of a product that has states for columns or rows."""
    features: int
    """The same for features."""
    inner: int
    """States or features that a product takes at once."""
    step_words: int
    """Words that a product over words takes at once."""
    num_warps: int
    num_stages: int
    # Kernels without products are bound by memory latency: many small programs (high occupancy) hide it.
    row_words: int = 16
    """Words of a program that finishes rows."""
    row_states: int = 128
    """States that it takes at once."""
    sum_states: int = 32
    """States of a program that sums over the words of a tile."""
    row_warps: int = 4


def tiling_for(precision: Precision) -> Tiling:
    match precision:
        case "bf16":
            return Tiling(states=128, features=128, inner=64, step_words=64, num_warps=8, num_stages=3)
        case "tf32":
            return Tiling(states=128, features=128, inner=32, step_words=32, num_warps=8, num_stages=3)
        case "highest":
            # No tensor cores: float32 products hold their operands in registers, so tiles are small (register pressure).
            return Tiling(states=64, features=64, inner=16, step_words=16, num_warps=8, num_stages=2)


def tiled_log_emission(
    emit: Float[Tensor, "Z H"],
    words: Float[Tensor, "X H"],
    bias: Float[Tensor, " X"] | None,
    layout: WordLayout,
    precision: Precision,
    tiling: Tiling | None = None,
) -> Float[Tensor, "X K"]:
    """`log_emission` of a partition by the kernels, in float32."""
    result: Tensor = _TiledLogEmission.apply(emit, words, bias, layout, precision, tiling or tiling_for(precision))
    return result


class _TiledLogEmission(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        emit: Tensor,
        words: Tensor,
        bias: Tensor | None,
        layout: WordLayout,
        precision: Precision,
        tiling: Tiling,
    ) -> Tensor:
        emit, words = emit.contiguous(), words.contiguous()
        bias = None if bias is None else bias.contiguous()
        log_prob = log_probs(emit, words, bias, layout, precision, tiling)
        ctx.save_for_backward(emit, words, log_prob)
        ctx.layout, ctx.precision, ctx.tiling = layout, precision, tiling
        return log_prob

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        emit, words, log_prob = ctx.saved_tensors
        with_emit, with_words, with_bias = ctx.needs_input_grad[:3]
        d_logits, d_bias = logit_gradients(
            grad.contiguous(), log_prob, ctx.layout, ctx.precision, ctx.tiling, with_bias
        )
        settings = (ctx.layout, ctx.precision, ctx.tiling)
        d_words = word_gradients(d_logits, emit, *settings) if with_words else None
        d_emit = emit_gradients(d_logits, words, *settings) if with_emit else None
        return d_emit, d_words, d_bias, None, None, None


def log_probs(
    emit: Float[Tensor, "Z H"],
    words: Float[Tensor, "X H"],
    bias: Float[Tensor, " X"] | None,
    layout: WordLayout,
    precision: Precision,
    tiling: Tiling,
) -> Float[Tensor, "X K"]:
    num_words, width = words.shape
    num_states, num_tiles = emit.shape[0] // layout.spans.shape[0], layout.tiles.shape[0]
    block_states = block_size(num_states, tiling.states, least=16)
    log_prob = words.new_empty(num_words, num_states)
    tile_log_sum = words.new_empty(num_tiles, num_states)
    kernel.make_logits[num_tiles, cdiv(num_states, block_states)](
        *(emit, words, words if bias is None else bias, layout.words, layout.tiles),
        *(log_prob, tile_log_sum, num_states, width),
        WITH_BIAS=bias is not None,
        PRECISION=precision,
        PRODUCT=logit_product(precision),
        TILE_WORDS=layout.tile_words,
        BLOCK_K=block_states,
        BLOCK_H=block_size(width, tiling.inner, least=16),
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    if _one_group(layout):
        return log_prob.sub_(tile_log_sum.logsumexp(0))
    row_states = block_size(num_states, tiling.row_states, least=16)
    kernel.normalize[num_tiles, cdiv(layout.tile_words, tiling.row_words), cdiv(num_states, row_states)](
        *(log_prob, layout.words, layout.tiles, tile_log_sum, num_states),
        ROWS=tiling.row_words,
        BLOCK_K=row_states,
        num_warps=tiling.row_warps,
    )
    return log_prob


def logit_gradients(
    grad: Float[Tensor, "X K"],
    log_prob: Float[Tensor, "X K"],
    layout: WordLayout,
    precision: Precision,
    tiling: Tiling,
    with_bias: bool,
) -> tuple[Float[Tensor, "X K"], Float[Tensor, " X"] | None]:
    """In the order of the layout; that of the bias in the order of words."""
    num_words, num_states = grad.shape
    num_tiles = layout.tiles.shape[0]
    sum_states = block_size(num_states, tiling.sum_states, least=16)
    tile_sum = grad.new_empty(num_tiles, num_states)
    kernel.sum_tile[num_tiles, cdiv(num_states, sum_states)](
        *(grad, layout.words, layout.tiles, tile_sum, num_states),
        TILE_WORDS=layout.tile_words,
        BLOCK_K=sum_states,
        num_warps=tiling.row_warps,
    )
    if _one_group(layout):
        tile_sum = tile_sum.sum(0, keepdim=True)
    # Matrix products alone read it.
    d_logits = grad.new_empty(num_words, num_states, dtype=torch.bfloat16 if precision == "bf16" else torch.float32)
    d_bias = grad.new_empty(num_words) if with_bias else None
    kernel.make_d_logits[num_tiles, cdiv(layout.tile_words, tiling.row_words)](
        *(grad, log_prob, layout.words, layout.tiles, tile_sum, d_logits),
        *(grad if d_bias is None else d_bias, num_states),
        WITH_BIAS=with_bias,
        SUMMED=_one_group(layout),
        ROWS=tiling.row_words,
        BLOCK_K=block_size(num_states, tiling.row_states, least=16),
        num_warps=tiling.row_warps,
    )
    return d_logits, d_bias


def word_gradients(
    d_logits: Float[Tensor, "X K"], emit: Float[Tensor, "Z H"], layout: WordLayout, precision: Precision, tiling: Tiling
) -> Float[Tensor, "X H"]:
    num_words, num_states = d_logits.shape
    width = emit.shape[1]
    block_features = block_size(width, tiling.features, least=16)
    d_words = emit.new_empty(num_words, width)
    kernel.make_d_words[layout.tiles.shape[0], cdiv(width, block_features)](
        *(d_logits, emit, layout.words, layout.tiles, d_words, num_states, width),
        PRECISION=precision,
        PRODUCT=_product(precision),
        TILE_WORDS=layout.tile_words,
        BLOCK_K=block_size(num_states, tiling.inner, least=16),
        BLOCK_H=block_features,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    return d_words


def emit_gradients(
    d_logits: Float[Tensor, "X K"],
    words: Float[Tensor, "X H"],
    layout: WordLayout,
    precision: Precision,
    tiling: Tiling,
) -> Float[Tensor, "Z H"]:
    num_states, width = d_logits.shape[1], words.shape[1]
    block_states, block_features = (
        block_size(num_states, tiling.states, least=16),
        block_size(width, tiling.features, least=16),
    )
    grid = cdiv(num_states, block_states), cdiv(width, block_features)
    # One group has too few programs for the whole vocabulary: it is split into parts, whose partial sums are added (split-K).
    spans = _parts(words, MIN_PROGRAMS // (grid[0] * grid[1])) if _one_group(layout) else layout.spans
    d_emit = words.new_empty(spans.shape[0] * num_states, width)
    kernel.make_d_emit[spans.shape[0], *grid](
        *(d_logits, words, layout.words, spans, d_emit, num_states, width),
        PRECISION=precision,
        PRODUCT=_product(precision),
        STEP_WORDS=tiling.step_words,
        BLOCK_K=block_states,
        BLOCK_H=block_features,
        num_warps=tiling.num_warps,
        num_stages=tiling.num_stages,
    )
    return d_emit.view(-1, num_states, width).sum(0) if _one_group(layout) else d_emit


def _one_group(layout: WordLayout) -> bool:
    """A dense HMM: every program would reduce over all tiles, so that reduction is made once, beforehand."""
    return layout.spans.shape[0] == 1


def _parts(words: Float[Tensor, "X H"], most: int) -> Int[Tensor, "N 3"]:
    """The words of one group cut into parts, as `spans` has groups."""
    num_words = words.shape[0]
    size = max(MIN_WORDS, cdiv(num_words, max(1, most)))
    part = torch.arange(cdiv(num_words, size), device=words.device, dtype=torch.int32)
    return torch.stack([part, part * size, (num_words - part * size).clamp(max=size)], dim=1)


def _product(precision: Precision) -> str:
    return "ieee" if precision == "highest" else "tf32"
