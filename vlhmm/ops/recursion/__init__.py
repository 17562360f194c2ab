"""The forward recursion: exact log p(x_t | x_<t) from the factors of every position, and its gradient by a backward pass written by hand.

`scaled` computes it, on a GPU `dense` if all positions share one tile. A sequence with underflow, or in the backward pass of
`scaled` with overflow, is recomputed: from float32 by `scaled` in float64, whose exponent range is eight times as wide, else
in log space by `reference`, which is the specification. During CUDA graph capture the underflow check cannot be read on the host:
see `_DenseRecursion`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.ops import dispatch, waiting
from vlhmm.ops.recursion import reference, scaled
from vlhmm.ops.recursion.factors import Factors
from vlhmm.precision import Precision
from vlhmm.records import convert

__all__ = ["Factors", "filtered", "kernels_run", "recursion", "watched_recursion"]

Watched = tuple[Float[Tensor, "B T"], Float[Tensor, "B K"], Bool[Tensor, " B"]]


def recursion(factors: Factors, precision: Precision = "highest") -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"]]:
    """log p(x_t | x_<t), 0 past the length, and log p(z | x) of the last state; differentiable in every log factor.

    `precision` is for kernels on a GPU; elsewhere, and in float64, the factors' own type is used.
    """
    return watched_recursion(factors, precision)[:2]


def watched_recursion(factors: Factors, precision: Precision = "highest") -> Watched:
    """`recursion`, and which sequences were recomputed in a wider range; during graph capture, which of them need it.

    With rounded operands only underflow of a step's sum counts: underflow of single message entries is far below the rounding error.
    """
    return _watched_by_kernels(factors, precision) if _kernels_take(factors) else _watched_by_torch(factors)


def _by_torch(factors: Factors) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"]]:
    return _watched_by_torch(factors)[:2]


def _watched_by_torch(factors: Factors) -> Watched:
    token_log_probs, log_last, underflow = _Recursion.apply(
        factors.log_previous,
        factors.log_inits,
        factors.log_tiles,
        factors.log_emission,
        factors.init_of,
        factors.tile_of,
        factors.lengths,
        factors.same_ahead,
    )
    return token_log_probs, log_last, underflow


def recursion_by_kernels(factors: Factors, precision: Precision) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"]]:
    """`recursion` for one tile in float32."""
    return _watched_by_kernels(factors, precision)[:2]


def _watched_by_kernels(factors: Factors, precision: Precision) -> Watched:
    leaves = (factors.log_previous, factors.log_inits, factors.log_tiles, factors.log_emission)
    # Autograd is off inside `Function.forward`, so whether a gradient is required is read here.
    keep = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
    token_log_probs, log_last, underflow = _DenseRecursion.apply(
        *leaves, factors.init_of, factors.tile_of, factors.lengths, precision, keep
    )
    return token_log_probs, log_last, underflow


def _kernels_take(factors: Factors) -> bool:
    emission = factors.log_emission
    return factors.log_tiles.shape[0] == 1 and emission.numel() > 0 and kernels_run(emission.dtype, emission.device)


def kernels_run(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether one tile for all positions goes to kernels, which a CUDA graph can hold."""
    return dispatch.DENSE_RECURSION.run(dtype, device)


@torch.no_grad()
def filtered(
    factors: Factors, precision: Precision = "highest"
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T K"], Float[Tensor, "B K"]]:
    """log p(x_t | x_<t), 0 past the length; log p(z_t | x_<=t), -inf past the length; the same at the last position."""
    if _kernels_take(factors):
        from vlhmm.ops.recursion import dense

        prepared = dense.prepare(factors.log_tiles[0], factors.log_inits, precision)
        dense_run = dense.forward(prepared, dense.text_of(factors), precision, keep=True)
        token_log_probs, underflow = dense_run.token_log_probs, dense_run.underflow
        alpha = dense_run.messages[1:].transpose(0, 1)
    else:
        run = scaled.forward(factors, scaled.scale(factors))
        token_log_probs, alpha, underflow = run.token_log_probs, run.alpha, run.underflow
    log_last = alpha[:, -1].log()
    log_filtered = torch.where(factors.within()[:, :, None], alpha.log(), -torch.inf)
    rows = underflow.nonzero()[:, 0]
    waiting.check(rows.device)
    if rows.numel():
        _put(rows, (token_log_probs, log_filtered, log_last), _again(factors.sequences(rows)))
    return token_log_probs, log_filtered, log_last


def _again(factors: Factors) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T K"], Float[Tensor, "B K"]]:
    """`filtered` with a wider range."""
    if factors.log_emission.dtype == torch.float64:
        return reference.recursion(factors)
    return filtered(convert(_with_own_tiles(factors)[0], dtype=torch.float64))


def _with_own_tiles(factors: Factors) -> tuple[Factors, Int[Tensor, " V"]]:
    """The same with only the tiles in use, and their indices: few sequences use few tiles, and float64 doubles the memory of each."""
    used, tile_of = factors.tile_of.unique(return_inverse=True)
    return replace(factors, log_tiles=factors.log_tiles[used], tile_of=tile_of), used


def _put(rows: Int[Tensor, " R"], places: tuple[Tensor, ...], values: tuple[Tensor, ...]) -> None:
    for place, value in zip(places, values, strict=True):
        place[rows] = value.to(place.dtype)


class _Recursion(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        log_previous: Tensor,
        log_inits: Tensor,
        log_tiles: Tensor,
        log_emission: Tensor,
        init_of: Tensor,
        tile_of: Tensor,
        lengths: Tensor,
        same_ahead: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        factors = Factors(log_previous, log_inits, init_of, log_tiles, tile_of, log_emission, lengths, same_ahead)
        scaled_factors = scaled.scale(factors)
        run = scaled.forward(factors, scaled_factors)
        token_log_probs, log_last = run.token_log_probs, run.alpha[:, -1].log()
        rows = run.underflow.nonzero()[:, 0]
        if rows.numel():
            again = _again(factors.sequences(rows))
            _put(rows, (token_log_probs, log_last), (again[0], again[2]))
        ctx.save_for_backward(
            *(log_previous, log_inits, log_tiles, log_emission, init_of, tile_of, lengths),
            *(run.alpha, run.scale, run.underflow, token_log_probs, log_last),
            # Several scaled tiles are recomputed in the backward pass: they are the largest tensor here.
            *(scaled_factors.tensors() if log_tiles.shape[0] == 1 else ()),
        )
        ctx.mark_non_differentiable(run.underflow)
        return token_log_probs, log_last, run.underflow

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        # Unpacked once: activation checkpointing refuses a second access to saved tensors.
        saved = ctx.saved_tensors
        log_previous, log_inits, log_tiles, log_emission, init_of, tile_of, lengths = saved[:7]
        alpha, totals, underflow, token_log_probs, log_last = saved[7:12]
        factors = Factors(log_previous, log_inits, init_of, log_tiles, tile_of, log_emission, lengths)
        # An impossible token or state has gradient 0, whatever its cotangent.
        token_cotangent = torch.where(token_log_probs.isinf(), 0.0, cotangents[0])
        last_cotangent = torch.where(log_last.isinf(), 0.0, cotangents[1])
        wanted = ctx.needs_input_grad[:4]
        scaled_factors = scaled.Scaled(*saved[12:]) if len(saved) > 12 else scaled.scale(factors)

        def without(rows: Tensor) -> scaled.Gradient:
            token, last, reached = token_cotangent, last_cotangent, alpha
            if rows.numel():
                token, last, reached = (values.index_fill(0, rows, 0.0) for values in (token, last, reached))
            return scaled.backward(factors, scaled_factors, reached, totals, token, last, tile_gradient=wanted[2])

        rows = underflow.nonzero()[:, 0]
        gradient = without(rows)
        if not _all_finite(gradient):
            rows = (underflow | _overflowing(gradient)).nonzero()[:, 0]
            gradient = without(rows)
        gradients = [gradient.log_previous, gradient.log_inits, gradient.log_tiles, gradient.log_emission]
        if rows.numel():
            gradients = _with_rows(gradients, rows, factors, token_cotangent, last_cotangent)
        needed = (one if needed else None for one, needed in zip(gradients, wanted, strict=True))
        return (*needed, None, None, None, None)


class _DenseRecursion(torch.autograd.Function):
    """During graph capture a sequence with underflow of a step's sum keeps the computed value and gets gradient 0. With underflow
    of single message entries alone it keeps both value and gradient."""

    @staticmethod
    def forward(
        ctx: Any,
        log_previous: Tensor,
        log_inits: Tensor,
        log_tiles: Tensor,
        log_emission: Tensor,
        init_of: Tensor,
        tile_of: Tensor,
        lengths: Tensor,
        precision: Precision,
        keep: bool,
    ) -> tuple[Tensor, Tensor, Tensor]:
        from vlhmm.ops.recursion import dense

        factors = Factors(log_previous, log_inits, init_of, log_tiles, tile_of, log_emission, lengths)
        prepared, text = dense.prepare(log_tiles[0], log_inits, precision), dense.text_of(factors)
        run = dense.forward(prepared, text, precision, keep=keep)
        token_log_probs, log_last = run.token_log_probs, run.last.log()
        may_look = not _in_capture(log_emission.device)
        left_out = run.underflow if may_look else run.total_underflow
        # The only host-device synchronisation: the backward pass reuses its result.
        ctx.rows = left_out.nonzero()[:, 0] if may_look and bool(left_out.any()) else None
        if may_look:
            waiting.check(log_emission.device)
        if ctx.rows is not None:
            again = _again(factors.sequences(ctx.rows))
            _put(ctx.rows, (token_log_probs, log_last), (again[0], again[2]))
        if keep:
            ctx.precision = precision
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(
                *(log_previous, log_inits, log_tiles, log_emission, init_of, tile_of, lengths),
                *(run.messages, run.scale, left_out, prepared.tile, prepared.extent, text.peaks, text.row_of),
                *(token_log_probs, log_last),
            )
        underflow = run.underflow if precision == "highest" else run.total_underflow
        ctx.mark_non_differentiable(underflow)
        return token_log_probs, log_last, underflow

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor | None) -> tuple[Tensor | None, ...]:
        from vlhmm.ops.recursion import dense

        saved = ctx.saved_tensors
        log_previous, log_inits, log_tiles, log_emission, init_of, tile_of, lengths = saved[:7]
        messages, totals, left_out, tile, extent, peaks, row_of, token_log_probs, log_last = saved[7:]
        factors = Factors(log_previous, log_inits, init_of, log_tiles, tile_of, log_emission, lengths)
        token_cotangent, last_cotangent, _ = cotangents
        log_rows = log_emission.contiguous().flatten(0, 1)
        gradient = dense.backward(
            dense.Prepared(log_tiles[0].contiguous(), tile, extent, log_inits.contiguous()),
            dense.Text(log_rows, peaks, row_of, init_of.contiguous(), lengths, log_previous.contiguous()),
            dense.DenseRun(token_log_probs, messages, totals, left_out.to(torch.int8)),
            token_cotangent,
            last_cotangent,
            ctx.precision,
            tile_gradient=ctx.needs_input_grad[2],
        )
        gradients = [gradient.log_previous, gradient.log_inits, gradient.log_tiles, gradient.log_emission]
        if ctx.rows is not None:
            asked = (
                # An impossible token or state has gradient 0, whatever its cotangent.
                torch.zeros_like(value) if cotangent is None else torch.where(value.isinf(), 0.0, cotangent)
                for value, cotangent in zip((token_log_probs, log_last), cotangents[:2], strict=True)
            )
            gradients = _with_rows(gradients, ctx.rows, factors, *asked)
        wanted = (one if needed else None for one, needed in zip(gradients, ctx.needs_input_grad[:4], strict=True))
        return (*wanted, None, None, None, None, None)


def _all_finite(gradient: scaled.Gradient) -> bool:
    """Tested by sums, one pass over each tensor; a sum that overflows only leads to the exact test."""
    parts = (gradient.log_emission, gradient.log_previous, gradient.log_tiles)
    return bool(torch.stack([part.sum() for part in parts]).isfinite().all())


def _overflowing(gradient: scaled.Gradient) -> Bool[Tensor, " B"]:
    """Sequences with overflow: a state has a near-zero filtered probability and a large posterior, whose quotient exceeds the dtype."""
    rows = ~(gradient.log_emission.flatten(1).isfinite().all(1) & gradient.log_previous.isfinite().all(1))
    # If many quotients are near the largest number, their sum may overflow.
    return rows | ~(rows.any() | gradient.log_tiles.isfinite().all())


def _in_capture(device: torch.device) -> bool:
    return device.type == "cuda" and torch.cuda.is_current_stream_capturing()


def _with_rows(
    gradients: list[Tensor], rows: Int[Tensor, " R"], factors: Factors, token_cotangent: Tensor, last_cotangent: Tensor
) -> list[Tensor]:
    """The gradients of all other sequences, and those of `rows` with a wider range."""
    part, used = _with_own_tiles(factors.sequences(rows))
    dtype = factors.log_emission.dtype
    run = _by_reference if dtype == torch.float64 else _by_torch
    with torch.enable_grad():
        leaves = [
            log_factor.detach().double().requires_grad_()
            for log_factor in (part.log_previous, part.log_inits, part.log_tiles, part.log_emission)
        ]
        previous, inits, tiles, emission = leaves
        again = Factors(previous, inits, part.init_of, tiles, part.tile_of, emission, part.lengths)
        token_log_probs, log_last = run(again)
        # Impossible entries are -inf: the product with a cotangent of 0 would be NaN.
        possible = torch.where(token_log_probs.isinf(), 0.0, token_log_probs)
        possible_last = torch.where(log_last.isinf(), 0.0, log_last)
        total = (possible * token_cotangent[rows]).sum() + (possible_last * last_cotangent[rows]).sum()
        found = torch.autograd.grad(total, leaves, allow_unused=True)
    of_rows = [
        torch.zeros_like(leaf, dtype=dtype) if gradient is None else gradient.to(dtype)
        for gradient, leaf in zip(found, leaves, strict=True)
    ]
    log_previous, log_inits, log_tiles, log_emission = gradients
    return [
        log_previous.index_add(0, rows, of_rows[0]),
        log_inits + of_rows[1],
        # Empty if no gradient of the tiles is required.
        log_tiles.index_add(0, used, of_rows[2]) if log_tiles.numel() else log_tiles,
        log_emission.index_add(0, rows, of_rows[3]),
    ]


def _by_reference(factors: Factors) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"]]:
    token_log_probs, _, log_last = reference.recursion(factors)
    return token_log_probs, log_last
