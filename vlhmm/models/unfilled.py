"""Layers without values."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import nn
from torch.nn.utils import skip_init

Layer = TypeVar("Layer", bound=nn.Module)


def unfilled(layer: type[Layer], *sizes: int, **options: Any) -> Layer:
    """`layer(*sizes)` on the default device; whoever makes it fills it from a generator: nothing is drawn from the global one."""
    made = skip_init(layer, *sizes, device=torch.get_default_device(), **options)
    assert isinstance(made, layer)
    return made
