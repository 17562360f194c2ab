"""Messages times tiles: the product that every position takes.

One tile for all positions is packed once for all of them, where oneDNN can: on two cores a product of
16 messages and 1,024 states then takes 0.17 ms instead of 0.22. These are internal functions of PyTorch, used by its compiler,
so they are tested once before use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.ops.recursion.factors import Factors
from vlhmm.ops.recursion.kept import kept

Move = Callable[[Tensor, int], Tensor]
"""From the messages (B, K) to their products (B, J) with the tile of each sequence at a position."""

MIN_STATES, MIN_POSITIONS = 256, 8
"""From which on packing pays."""
PACKED_FOR = 16
"""Messages at a time; what is packed for these was as fast as any for 5 to 256."""


def moves(factors: Factors, tiles: Float[Tensor, "U K K"], common_tile: list[int], *, back: bool = False) -> Move:
    """By the scaled tiles of the factors, or `back` by their transposes.

    `common_tile`: the tile that every sequence takes at a position, or -1.
    """
    towards = tiles.mT if back else tiles
    if packs(factors):

        def packed() -> Tensor:
            weight: Tensor = torch.ops.mkldnn._reorder_linear_weight(towards[0].T.contiguous(), PACKED_FOR)
            return weight

        weight = kept(factors.log_tiles, "packed back" if back else "packed", packed)
        return lambda messages, _: _packed_product(messages, weight)
    if tiles.shape[0] == 1:
        # Messages are stored column-major: so are the products.
        tile_into = towards[0].T.contiguous()
        return lambda messages, _: torch.mm(tile_into, messages.T).T

    def move(messages: Tensor, t: int) -> Tensor:
        common = common_tile[t]
        if common >= 0:
            return messages @ towards[common]
        # Whole tiles are copied several times as fast by `index_select` as by indexing, and as they lie in memory.
        own = tiles.index_select(0, factors.tile_of[:, t])
        return torch.bmm(messages[:, None], own.mT if back else own)[:, 0]

    return move


def packs(factors: Factors) -> bool:
    """Whether there is one tile, and it is packed."""
    tiles = factors.log_tiles
    return (
        tiles.shape[0] == 1
        and factors.num_positions >= MIN_POSITIONS
        and tiles.device.type == "cpu"
        and tiles.dtype == torch.float32
        and min(tiles.shape[1:]) >= MIN_STATES
        and _library_packs()
    )


def _packed_product(messages: Float[Tensor, "B K"], weight: Tensor) -> Float[Tensor, "B J"]:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(messages, weight, None, "none", [], "")
    return product


@cache
def _library_packs() -> bool:
    tile = torch.arange(MIN_STATES**2, dtype=torch.float32).view(MIN_STATES, MIN_STATES)
    messages = tile[:3].contiguous()
    try:
        weight = torch.ops.mkldnn._reorder_linear_weight(tile.T.contiguous(), PACKED_FOR)
        return torch.allclose(_packed_product(messages, weight), messages @ tile)
    except (AttributeError, RuntimeError):
        return False
