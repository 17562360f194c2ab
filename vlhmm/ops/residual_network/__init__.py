"""The residual network that makes features of state embeddings."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.ops.residual_network import reference
from vlhmm.precision import Precision

__all__ = ["residual_network"]

# A row is held whole by one program.
WIDEST_KERNEL = 1024


def residual_network(
    embedding: Float[Tensor, "n H"],
    first_weight: Float[Tensor, "H H"],
    first_bias: Float[Tensor, " H"],
    second_weight: Float[Tensor, "H H"],
    second_bias: Float[Tensor, " H"],
    norm_weight: Float[Tensor, " H"],
    norm_bias: Float[Tensor, " H"],
    *,
    eps: float,
    precision: Precision = "bf16",
) -> Float[Tensor, "n H"]:
    """LayerNorm(ReLU(D W_2 + b_2) + D), where D = ReLU(E W_1 + b_1).

    In training on a GPU the products read and write bf16 if that is the precision, with float32 sums. Elsewhere all is made
    in the tensors' own type: tables that are made once, to be kept, are worth it.
    """
    parameters = (first_weight, first_bias, second_weight, second_bias, norm_weight, norm_bias)
    if precision != "highest" and _kernels_take(embedding):
        # Triton is needed here alone.
        from vlhmm.ops.residual_network.launch import residual_network_by_kernels

        operand_type = torch.bfloat16 if precision == "bf16" else torch.float32
        return residual_network_by_kernels(embedding, *parameters, eps=eps, operand_type=operand_type)
    return reference.residual_network(embedding, *parameters, eps=eps)


def _kernels_take(embedding: Tensor) -> bool:
    return (
        torch.is_grad_enabled()
        and embedding.is_cuda
        and embedding.dtype == torch.float32
        and embedding.numel() > 0
        and embedding.shape[1] <= WIDEST_KERNEL
        and torch.cuda.get_device_capability(embedding.device) >= (8, 0)
        and find_spec("triton") is not None
    )
