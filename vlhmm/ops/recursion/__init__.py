"""The forward recursion: exact log p(x_t | x_<t) from the factors of every position, and its gradient without a tape.

`scaled` does the work, on a GPU `dense` where there is but one tile; a sequence in which their numbers come near the
smallest of their type is done again in log space by `reference`, which is the specification.
"""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.ops.recursion import reference, scaled
from vlhmm.ops.recursion.factors import Factors
from vlhmm.precision import Precision

__all__ = ["Factors", "filtered", "recursion"]


def recursion(factors: Factors, precision: Precision = "bf16") -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"]]:
    """log p(x_t | x_<t), 0 past the length, and log p(z | x) of the last state; differentiable in every log factor.

    `precision` is for kernels on a GPU; elsewhere, and in float64, the factors' own type is used.
    """
    return recursion_by_kernels(factors, precision) if _kernels_take(factors, precision) else _by_torch(factors)


def _by_torch(factors: Factors) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"]]:
    token_log_probs, log_last = _Recursion.apply(
        factors.log_previous,
        factors.log_inits,
        factors.log_tiles,
        factors.log_emission,
        factors.init_of,
        factors.tile_of,
        factors.lengths,
    )
    return token_log_probs, log_last


def recursion_by_kernels(factors: Factors, precision: Precision) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"]]:
    """`recursion` for one tile in float32."""
    leaves = (factors.log_previous, factors.log_inits, factors.log_tiles, factors.log_emission)
    # Inside `forward` gradients are off: whether one will be asked for can only be seen here.
    keep = torch.is_grad_enabled() and any(leaf.requires_grad for leaf in leaves)
    token_log_probs, log_last = _DenseRecursion.apply(
        *leaves, factors.init_of, factors.tile_of, factors.lengths, precision, keep
    )
    return token_log_probs, log_last


def _kernels_take(factors: Factors, precision: Precision) -> bool:
    return (
        factors.log_emission.is_cuda
        and factors.log_emission.dtype == torch.float32
        and factors.log_tiles.shape[0] == 1
        and factors.log_emission.numel() > 0
        and find_spec("triton") is not None
        # Bfloat16 products and waiting for memory in order came with this generation.
        and torch.cuda.get_device_capability(factors.log_emission.device) >= (8, 0)
    )


@torch.no_grad()
def filtered(
    factors: Factors, precision: Precision = "bf16"
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B T K"], Float[Tensor, "B K"]]:
    """log p(x_t | x_<t), 0 past the length; log p(z_t | x_<=t), -inf past the length; the same at the last position."""
    if _kernels_take(factors, precision):
        from vlhmm.ops.recursion import dense

        dense_run = dense.forward(factors, precision, keep=True)
        token_log_probs, suspect = dense_run.token_log_probs, dense_run.suspect
        alpha = dense_run.messages[1:].transpose(0, 1)
    else:
        run = scaled.forward(factors, scaled.scale(factors))
        token_log_probs, alpha, suspect = run.token_log_probs, run.alpha, run.suspect
    log_last = alpha[:, -1].log()
    log_filtered = torch.where(factors.within()[:, :, None], alpha.log(), -torch.inf)
    rows = suspect.nonzero()[:, 0]
    if rows.numel():
        token_log_probs[rows], log_filtered[rows], log_last[rows] = reference.recursion(factors.sequences(rows))
    return token_log_probs, log_filtered, log_last


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
    ) -> tuple[Tensor, Tensor]:
        factors = Factors(log_previous, log_inits, init_of, log_tiles, tile_of, log_emission, lengths)
        run = scaled.forward(factors, scaled.scale(factors))
        token_log_probs, log_last = run.token_log_probs, run.alpha[:, -1].log()
        rows = run.suspect.nonzero()[:, 0]
        if rows.numel():
            token_log_probs[rows], _, log_last[rows] = reference.recursion(factors.sequences(rows))
        # The scaled factors are made again on the way back: tiles are the largest thing here.
        ctx.save_for_backward(
            *(log_previous, log_inits, log_tiles, log_emission, init_of, tile_of, lengths),
            *(run.alpha, run.scale, run.suspect, token_log_probs, log_last),
        )
        return token_log_probs, log_last

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        # Asked for once: under checkpointing a second time would be refused.
        saved = ctx.saved_tensors
        log_previous, log_inits, log_tiles, log_emission, init_of, tile_of, lengths = saved[:7]
        alpha, totals, suspect, token_log_probs, log_last = saved[7:]
        factors = Factors(log_previous, log_inits, init_of, log_tiles, tile_of, log_emission, lengths)
        # An impossible token or state has no gradient, whatever was asked of it.
        token_cotangent = torch.where(token_log_probs.isinf(), 0.0, cotangents[0])
        last_cotangent = torch.where(log_last.isinf(), 0.0, cotangents[1])
        rows = suspect.nonzero()[:, 0]
        scaled_cotangents = (token_cotangent, last_cotangent)
        if rows.numel():
            alpha = alpha.index_fill(0, rows, 0.0)
            scaled_cotangents = (token_cotangent.index_fill(0, rows, 0.0), last_cotangent.index_fill(0, rows, 0.0))
        wanted = ctx.needs_input_grad[:4]
        gradient = scaled.backward(
            factors, scaled.scale(factors), alpha, totals, *scaled_cotangents, tile_gradient=wanted[2]
        )
        gradients = [gradient.log_previous, gradient.log_inits, gradient.log_tiles, gradient.log_emission]
        if rows.numel():
            exact = _reference_gradient(factors, rows, token_cotangent, last_cotangent)
            gradients = [ours + theirs if ours.numel() else ours for ours, theirs in zip(gradients, exact, strict=True)]
        return (*(one if needed else None for one, needed in zip(gradients, wanted, strict=True)), None, None, None)


class _DenseRecursion(torch.autograd.Function):
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
    ) -> tuple[Tensor, Tensor]:
        from vlhmm.ops.recursion import dense

        factors = Factors(log_previous, log_inits, init_of, log_tiles, tile_of, log_emission, lengths)
        run = dense.forward(factors, precision, keep=keep)
        token_log_probs, log_last = run.token_log_probs, run.last.log()
        rows = run.suspect.nonzero()[:, 0]
        if rows.numel():
            token_log_probs[rows], _, log_last[rows] = reference.recursion(factors.sequences(rows))
        if keep:
            ctx.precision = precision
            ctx.save_for_backward(
                *(log_previous, log_inits, log_tiles, log_emission, init_of, tile_of, lengths),
                *(run.messages, run.scale, run.suspect, run.tile, run.extent, token_log_probs, log_last),
            )
        return token_log_probs, log_last

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        from vlhmm.ops.recursion import dense

        saved = ctx.saved_tensors
        log_previous, log_inits, log_tiles, log_emission, init_of, tile_of, lengths = saved[:7]
        messages, totals, suspect, tile, extent, token_log_probs, log_last = saved[7:]
        factors = Factors(log_previous, log_inits, init_of, log_tiles, tile_of, log_emission, lengths)
        # An impossible token or state has no gradient, whatever was asked of it.
        token_cotangent = torch.where(token_log_probs.isinf(), 0.0, cotangents[0])
        last_cotangent = torch.where(log_last.isinf(), 0.0, cotangents[1])
        trusted = (~suspect)[:, None]
        gradient = dense.backward(
            factors,
            dense.DenseRun(token_log_probs, messages, totals, suspect, tile, extent),
            token_cotangent * trusted,
            last_cotangent * trusted,
            ctx.precision,
            tile_gradient=ctx.needs_input_grad[2],
        )
        gradients = [gradient.log_previous, gradient.log_inits, gradient.log_tiles, gradient.log_emission]
        rows = suspect.nonzero()[:, 0]
        if rows.numel():
            exact = _reference_gradient(factors, rows, token_cotangent, last_cotangent)
            gradients = [ours + theirs if ours.numel() else ours for ours, theirs in zip(gradients, exact, strict=True)]
        wanted = (one if needed else None for one, needed in zip(gradients, ctx.needs_input_grad[:4], strict=True))
        return (*wanted, None, None, None, None, None)


def _reference_gradient(
    factors: Factors, rows: Tensor, token_cotangent: Tensor, last_cotangent: Tensor
) -> tuple[Tensor, ...]:
    """The gradient of the sequences `rows` alone, in log space."""
    with torch.enable_grad():
        leaves = [
            log_factor.detach().requires_grad_()
            for log_factor in (
                factors.log_previous,
                factors.log_inits,
                factors.log_tiles,
                factors.log_emission,
            )
        ]
        previous, inits, tiles, emission = leaves
        again = Factors(previous, inits, factors.init_of, tiles, factors.tile_of, emission, factors.lengths)
        token_log_probs, _, log_last = reference.recursion(again.sequences(rows))
        # Impossible ones are constants of value -inf: their product with a cotangent of 0 would be NaN.
        possible = torch.where(token_log_probs.isinf(), 0.0, token_log_probs)
        possible_last = torch.where(log_last.isinf(), 0.0, log_last)
        total = (possible * token_cotangent[rows]).sum() + (possible_last * last_cotangent[rows]).sum()
        gradients = torch.autograd.grad(total, leaves, allow_unused=True)
    return tuple(
        torch.zeros_like(leaf) if gradient is None else gradient
        for gradient, leaf in zip(gradients, leaves, strict=True)
    )
