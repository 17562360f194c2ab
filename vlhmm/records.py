"""Frozen records of tensors: moved, converted and asked about as a whole."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

Record = TypeVar("Record")


def mapped(record: Record, change: Callable[[Tensor], Tensor]) -> Record:
    """The same record with each of its tensors changed."""

    def of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        return mapped(value, change) if is_dataclass(value) else value

    return replace(record, **{field.name: of(getattr(record, field.name)) for field in fields(record)})  # type: ignore[arg-type, type-var]


def convert(record: Record, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Record:
    """The same record with its tensors on `device`, the floating ones in `dtype`."""
    return mapped(record, lambda tensor: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None))


def requires_grad(record: Any) -> bool:
    """Whether autograd would follow any tensor of the record."""
    values = [getattr(record, field.name) for field in fields(record)]
    return torch.is_grad_enabled() and any(
        value.requires_grad if isinstance(value, Tensor) else is_dataclass(value) and requires_grad(value)
        for value in values
    )


def named_values(record: Any) -> dict[str, Any]:
    """What the fields of a record hold, by their names."""
    return {field.name: getattr(record, field.name) for field in fields(record)}


def named_tensors(record: Any) -> dict[str, Tensor]:
    """The tensors among them."""
    return {name: value for name, value in named_values(record).items() if isinstance(value, Tensor)}


SHOWN_ELEMENTS = 16
"""Of a tensor whose numbers are shown."""


def shown(record: Any) -> str:
    """The `__repr__` of a record of tensors, on one line: small ones by their numbers, others by type and shape."""
    parts = ", ".join(f"{name}={_shown(value)}" for name, value in named_values(record).items())
    return f"{type(record).__name__}({parts})"


def _shown(value: Any) -> str:
    if not isinstance(value, Tensor):
        return repr(value)
    dtype = str(value.dtype).removeprefix("torch.")
    where = "" if value.device.type == "cpu" else f" on {value.device}"
    if 0 < value.numel() <= SHOWN_ELEMENTS and value.device.type != "meta":
        return f"{_numbers(value.detach().tolist())}{where}"
    return f"<{dtype} {tuple(value.shape)}{where}>"


def _numbers(values: Any) -> str:
    if isinstance(values, list):
        return f"[{', '.join(map(_numbers, values))}]"
    return f"{values:.4g}" if isinstance(values, float) else str(values)
