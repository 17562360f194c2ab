"""Tiles of a transition that is given by factors: the states of one block against those of another, for many pairs of blocks.

On a CPU they are computed a few at a time, so that gathered operands stay in cache and in memory that is already allocated:
three to six times as fast as all at once, where most of the time goes to page faults of new memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

BYTES_AT_ONCE = 1 << 20
"""Of the features gathered for one side of some tiles."""


def factored_tiles(
    out: Float[Tensor, "M K H"],
    into: Float[Tensor, "N J H"],
    row_term: Float[Tensor, "U K"],
    source: Int[Tensor, " U"],
    target: Int[Tensor, " U"],
    *,
    normalised: bool,
) -> Float[Tensor, "U K J"]:
    """row_term + out_z . in_z' for the states z of each source block and z' of each target block; if `normalised`, log_softmax
    over z' in place of the product, which has no gradient where the row's term is -inf."""
    if out.is_cuda:
        return reference(out, into, row_term, source, target, normalised=normalised)
    tiles: Tensor = _FactoredTiles.apply(out, into, row_term, source, target, normalised)
    return tiles


def reference(
    out: Float[Tensor, "M K H"],
    into: Float[Tensor, "N J H"],
    row_term: Float[Tensor, "U K"],
    source: Int[Tensor, " U"],
    target: Int[Tensor, " U"],
    *,
    normalised: bool,
) -> Float[Tensor, "U K J"]:
    """The specification."""
    # The backward pass of `index_select` does not sort its indices, unlike that of advanced indexing.
    logits = out.index_select(0, source) @ into.index_select(0, target).mT
    return row_term[:, :, None] + (logits.log_softmax(dim=2) if normalised else logits)


class _FactoredTiles(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, out: Tensor, into: Tensor, row_term: Tensor, source: Tensor, target: Tensor, normalised: bool
    ) -> Tensor:
        # Transposed once to contiguous memory, which small products read faster; not worth a copy if few tiles use each block.
        columns = into.mT.contiguous() if source.shape[0] >= into.shape[0] else into.mT
        tiles = out.new_empty(source.shape[0], out.shape[1], into.shape[1])
        for part in _parts(out, source):
            tile = tiles[part]
            torch.bmm(out.index_select(0, source[part]), columns.index_select(0, target[part]), out=tile)
            term = row_term[part]
            tile += (term - tile.logsumexp(2) if normalised else term)[:, :, None]
        ctx.normalised = normalised
        ctx.save_for_backward(out, into, source, target, *((tiles, row_term) if normalised else ()))
        return tiles

    @staticmethod
    def backward(ctx: Any, *cotangents: Tensor) -> tuple[Tensor | None, ...]:
        (cotangent,), (out, into, source, target, *made) = cotangents, ctx.saved_tensors
        from_out = torch.zeros_like(out)
        # Stored transposed, the layout in which the products are computed.
        from_into = into.new_zeros(into.shape[0], into.shape[2], into.shape[1])
        from_rows = cotangent.sum(2)
        never_entered = ctx.normalised and bool((made[1] == -torch.inf).any())
        for part in _parts(out, source):
            of_logits = cotangent[part]
            if ctx.normalised:
                tiles, row_term = made
                probs = (tiles[part] - row_term[part, :, None]).exp()
                of_logits = of_logits - probs * from_rows[part, :, None]
                if never_entered:
                    # There probs are NaN, from -inf - -inf.
                    of_logits.masked_fill_(row_term[part, :, None] == -torch.inf, 0.0)
            from_out.index_add_(0, source[part], of_logits @ into.index_select(0, target[part]))
            from_into.index_add_(0, target[part], out.index_select(0, source[part]).mT @ of_logits)
        return from_out, from_into.mT, from_rows, None, None, None


def _parts(out: Float[Tensor, "M K H"], source: Int[Tensor, " U"]) -> Iterator[slice]:
    at_once = max(1, BYTES_AT_ONCE // max(1, out[0].numel() * out.element_size()))
    for first in range(0, source.shape[0], at_once):
        yield slice(first, first + at_once)
