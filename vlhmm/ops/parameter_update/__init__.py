"""The update of parameters from their gradients: fused clipping, AdamW and running average (EMA), every number read and written once."""

from __future__ import annotations

from collections.abc import Sequence

from jaxtyping import Float
from torch import Tensor

from vlhmm.ops import dispatch
from vlhmm.ops.parameter_update.reference import AdamW, Group, Moved

__all__ = ["AdamW", "Group", "Moved", "kernels_take", "update_by_kernels"]


def kernels_take(parameters: Sequence[Tensor]) -> bool:
    """Whether these can be updated by the kernels; gradients and states are as their parameters."""
    return all(one.is_contiguous() and dispatch.PARAMETER_UPDATE.serve(one) for one in parameters)


def update_by_kernels(
    groups: Sequence[Group], adam: AdamW, largest_norm: float, average_weight: Float[Tensor, ""]
) -> Float[Tensor, ""]:
    """`reference.update` in float32, in place; gradients stay as they are. Returns the norm of all gradients."""
    # Imported here, so that the CPU path does not need Triton.
    from vlhmm.ops.parameter_update import launch

    return launch.update(groups, adam, largest_norm, average_weight)
