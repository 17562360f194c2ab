"""The specification of the residual network: plain torch."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import layer_norm, linear


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
) -> Float[Tensor, "n H"]:
    """LayerNorm(ReLU(D W_2 + b_2) + D), where D = ReLU(E W_1 + b_1)."""
    hidden = linear(embedding, first_weight, first_bias).relu()
    summed = linear(hidden, second_weight, second_bias).relu() + hidden
    return layer_norm(summed, norm_weight.shape, norm_weight, norm_bias, eps)
