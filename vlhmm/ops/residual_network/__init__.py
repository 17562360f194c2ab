"""The residual networks that make features of state embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.ops import dispatch
from vlhmm.ops.residual_network import reference
from vlhmm.precision import Precision

__all__ = ["Parameters", "residual_networks"]

Parameters = tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]
"""Of one network: W_1 (H, H), b_1 (H), W_2 (H, H), b_2 (H), then weight and bias (H) of its LayerNorm."""

# One program holds a whole row: the normalisation reduces over it.


def residual_networks(
    embedding: Float[Tensor, "n H"],
    chains: Sequence[Sequence[Parameters]],
    num_rows: Sequence[int],
    *,
    eps: float,
    precision: Precision = "highest",
) -> list[Float[Tensor, "_ H"]]:
    """What each chain of networks, one after the other, makes of the first so many rows E.

    A network makes LayerNorm(ReLU(D W_2 + b_2) + D), where D = ReLU(E W_1 + b_1).

    On a GPU the products read and write bf16 if that is the precision, with float32 sums. For tf32 the kernels compute in
    float32. Elsewhere all is made in the tensors' own type, by plain torch.
    """
    if precision != "highest" and _kernels_take(embedding):
        # Imported here, so that the CPU path does not need Triton.
        from vlhmm.ops.residual_network.launch import residual_networks_by_kernels

        operand_type = torch.bfloat16 if precision == "bf16" else torch.float32
        return residual_networks_by_kernels(embedding, chains, num_rows, eps=eps, operand_type=operand_type)
    # Each is sliced once: the gradient of a slice is as large as the whole tensor.
    parts = {count: embedding if count == embedding.shape[0] else embedding[:count] for count in num_rows}
    outputs = [parts[count] for count in num_rows]
    for index, chain in enumerate(chains):
        for network in chain:
            outputs[index] = reference.residual_network(outputs[index], *network, eps=eps)
    return outputs


def _kernels_take(embedding: Tensor) -> bool:
    return dispatch.RESIDUAL_NETWORK.serve(embedding, size=embedding.shape[1])
