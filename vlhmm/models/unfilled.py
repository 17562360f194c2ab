"""Layers without values."""

from __future__ import annotations

from typing import Any, TypeVar

from torch import nn

Layer = TypeVar("Layer", bound=nn.Module)


def unfilled(layer: type[Layer], *sizes: int, **options: Any) -> Layer:
    """`layer(*sizes)` on the default device, uninitialised. The caller initialises it from a generator, so the global generator is not advanced."""

    # `torch.nn.utils.skip_init` initialises on the device "meta", for which torch imports its compiler: one second for every load.
    class Undrawn(layer):  # type: ignore[valid-type, misc]
        def reset_parameters(self) -> None:
            pass

    made: nn.Module = Undrawn(*sizes, **options)
    made.__class__ = layer
    assert isinstance(made, layer)
    return made
