"""Matrix products on a GPU whose precision does not depend on the process-wide setting of cuBLAS."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.precision import Precision

PRODUCT_WIDENS = hasattr(torch.ops.aten.mm, "dtype")
"""Whether this torch can give a bfloat16 product in float32; else float32, as the process reads it, stands in for it."""

COPIED_AT_ONCE = 1 << 25
"""Entries of which a copy is made in the backward pass, in another type or without what does not count."""


def product(left: Float[Tensor, "K N"], right: Float[Tensor, "N J"], precision: Precision) -> Float[Tensor, "K J"]:
    """left @ right in float32, from operands of at least this precision, whatever the process-wide cuBLAS setting allows.

    That setting is shared by all threads; dtypes of operands are not. In place of tf32 (11 bits) an operand is split into an upper
    and a lower half in bfloat16 (16 bits), and in place of float32 the product is in float64.
    """
    if not left.is_cuda or not (precision == "highest" or PRODUCT_WIDENS):
        return left @ right.float()
    if precision == "bf16":
        return _widened(left.to(torch.bfloat16), right.to(torch.bfloat16))
    of = _in_double if precision == "highest" else _in_halves
    piece = max(1, COPIED_AT_ONCE // (left.shape[0] + right.shape[1]))
    products = (
        of(some_left, some_right)
        for some_left, some_right in zip(left.split(piece, dim=1), right.split(piece, dim=0), strict=True)
    )
    total = next(products)
    for another in products:
        total += another
    return total.float()


def _in_double(left: Float[Tensor, "K N"], right: Float[Tensor, "N J"]) -> Float[Tensor, "K J"]:
    return left.double() @ right.double()


def _in_halves(left: Float[Tensor, "K N"], right: Float[Tensor, "N J"]) -> Float[Tensor, "K J"]:
    (left_upper, left_lower), (right_upper, right_lower) = _halves(left), _halves(right)
    product = _widened(left_upper, right_upper)
    product += _widened(left_upper, right_lower)
    product += _widened(left_lower, right_upper)
    return product


def _halves(values: Float[Tensor, "N M"]) -> tuple[Tensor, Tensor]:
    """Both in bfloat16; their sum are the values but for 2^-16 of each."""
    upper = values.to(torch.bfloat16)
    return upper, (values - upper).to(torch.bfloat16)


def _widened(left: Float[Tensor, "K N"], right: Float[Tensor, "N J"]) -> Float[Tensor, "K J"]:
    return torch.mm(left, right, out_dtype=torch.float32)
