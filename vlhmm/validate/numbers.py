"""Log-probabilities, and rows that sum to 1."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor


def check_dtype(dtype: torch.dtype | None) -> None:
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}, but tables are float32 or float64")


def check_totals(
    name: str,
    totals: Float[Tensor, " N"],
    dtype: torch.dtype,
    numbers: Int[Tensor, " N"] | None = None,
    float64_tolerance: float = 1e-4,
) -> None:
    tolerance = tolerance_of(dtype, float64_tolerance)
    bad = ~((totals - 1).abs() <= tolerance)
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        number = row if numbers is None else int(numbers[row])
        raise ValueError(
            f"{name}: row {number} sums to {float(totals[row]):.6g}, but a distribution sums to 1 (within {tolerance:g}): divide each row by its sum"
        )


def tolerance_of(dtype: torch.dtype, of_float64: float = 1e-4) -> float:
    """Rounding of a row of many float32 numbers, not modelling errors. Tables in float64 may have been made from such."""
    return of_float64 if dtype == torch.float64 else 1e-3


def check_logs(name: str, log_probs: Tensor) -> None:
    if bool(log_probs.isnan().any()) or bool((log_probs == torch.inf).any()):
        raise ValueError(f"{name} has NaN or +inf: a log-probability is a number at most 0, or -inf")
