"""Rounding operands for the matrix units."""

from __future__ import annotations

from vlhmm.precision import Precision


def logit_product(precision: Precision) -> str:
    """What a kernel's products of features read, in Triton's words.

    Logits stand in exponents: what operands of tf32 leave out shows in every probability. So each is split into two numbers of
    tf32, which hold 22 of its 24 bits, and three products are added up. bf16 operands are read as they are.
    """
    return {"bf16": "tf32", "tf32": "tf32x3", "highest": "ieee"}[precision]
