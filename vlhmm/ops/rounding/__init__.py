"""Rounding of operands for tensor cores (bf16, tf32)."""

from __future__ import annotations

from vlhmm.precision import Precision


def logit_product(precision: Precision) -> str:
    """The `input_precision` of Triton for a kernel's products of features.

    Logits are exponentiated, so the rounding error of tf32 operands shows in every probability. Each operand is therefore split into two
    tf32 numbers, which hold 22 of its 24 bits, and three products are summed. bf16 operands are read as they are.
    """
    return {"bf16": "tf32", "tf32": "tf32x3", "highest": "ieee"}[precision]
