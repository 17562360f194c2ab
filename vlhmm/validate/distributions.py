"""Probabilities as a user gives them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.arguments import as_device, as_tensor
from vlhmm.validate.numbers import check_dtype, check_totals


@dataclass(frozen=True)
class Distributions:
    start: Float[Tensor, " Z"]
    transition: Float[Tensor, "Z Z"]
    emission: Float[Tensor, "Z X"]
    dtype: torch.dtype


def check_distributions(
    start: Any, transition: Any, emission: Any, dtype: torch.dtype | None, device: torch.device | str | None
) -> Distributions:
    """Array-likes as float64 tensors whose rows are distributions; `dtype` becomes that of the tables."""
    check_dtype(dtype)
    device = as_device(device)
    arrays = {"start": start, "transition": transition, "emission": emission}
    given = {name: as_tensor(name, values, "one array of probabilities") for name, values in arrays.items()}
    for (name, values), rank in zip(given.items(), (1, 2, 2), strict=True):
        if values.is_complex():
            raise ValueError(f"{name} has dtype {values.dtype}, but probabilities are real numbers")
        if values.ndim != rank:
            raise ValueError(f"{name} has {values.ndim} dimension(s) {tuple(values.shape)}, but {rank} are needed")
        if values.numel() == 0:
            raise ValueError(f"{name} has shape {tuple(values.shape)}, but at least one state and one word are needed")
    num_states = given["start"].shape[0]
    if given["transition"].shape != (num_states, num_states):
        raise ValueError(
            f"transition has shape {tuple(given['transition'].shape)}, but start has {num_states} states: ({num_states}, {num_states}) is needed"
        )
    if given["emission"].shape[0] != num_states:
        raise ValueError(
            f"emission has {given['emission'].shape[0]} rows, but start has {num_states} states: a row a state is needed"
        )
    if dtype is None:
        # Lists have no precision of their own.
        typed = [given[name].dtype for name, values in arrays.items() if hasattr(values, "dtype")]
        dtype = torch.float64 if torch.float64 in typed else torch.float32
    # Checked, and later turned to logs, in float64: a probability too small for float32 has a log that is not.
    precise = {name: values.to(dtype=torch.float64, device=device) for name, values in given.items()}
    for name, values in precise.items():
        _check_rows(name, values if values.ndim == 2 else values[None], given[name].dtype)
    return Distributions(**precise, dtype=dtype)


def _check_rows(name: str, rows: Float[Tensor, "N W"], given_as: torch.dtype) -> None:
    if bool(rows.isnan().any()):
        row, column = rows.isnan().nonzero()[0].tolist()
        raise ValueError(f"{name} has NaN at row {row}, column {column}: probabilities must be numbers")
    if bool((rows < 0).any()):
        row, column = (rows < 0).nonzero()[0].tolist()
        raise ValueError(
            f"{name} is {float(rows[row, column])} at row {row}, column {column}, but probabilities are not negative"
        )
    check_totals(name, rows.sum(1), given_as, float64_tolerance=1e-6)
