"""Rounding to tf32, for use inside kernels."""

from typing import no_type_check

import triton
import triton.language as tl


@triton.jit
@no_type_check
def nearest_tf32(values, PRECISION: tl.constexpr):
    """float32 numbers rounded to the nearest that tf32 holds, if that is the precision.

    Tensor cores truncate the 13 last bits instead. Truncation is biased towards zero, so errors accumulate over a sentence.
    """
    if PRECISION == "tf32" and values.dtype == tl.float32:
        bits = values.to(tl.int32, bitcast=True)
        return ((bits + 0x1000) & -0x2000).to(tl.float32, bitcast=True)
    else:
        return values
