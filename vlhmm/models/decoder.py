"""A decoder as Llama's, which reads a sequence of embeddings. Its parameters are named as there, so that a pretrained body
fits (`transfer.load_body`)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention, silu

from vlhmm.models.unfilled import unfilled
from vlhmm.precision import Precision


@dataclass(frozen=True)
class DecoderShape:
    dim: int
    layers: int
    heads: int
    key_heads: int
    """Of keys and values, each shared by equally many heads."""
    gated_dim: int
    """Width of the gated layers."""
    causal: bool
    """A position sees those before it alone."""
    rope_theta: float
    norm_eps: float

    @property
    def head_dim(self) -> int:
        return self.dim // self.heads


class Decoder(nn.Module):
    """Layers of attention and gated networks with rotary positions, then a norm. The caller fills in the weights."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.layers = nn.ModuleList([DecoderLayer(shape) for _ in range(shape.layers)])
        self.norm = nn.RMSNorm(shape.dim, shape.norm_eps)

    def forward(self, embedding: Float[Tensor, "*B n H"], precision: Precision = "highest") -> Float[Tensor, "*B n H"]:
        rotation = rotary(embedding, self.shape.head_dim, self.shape.rope_theta)
        hidden = embedding
        with _products_in(precision, embedding):
            for layer in self.layers:
                hidden = layer(hidden, rotation)
        normed: Tensor = self.norm(hidden)
        return normed


class DecoderLayer(nn.Module):
    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.input_layernorm = nn.RMSNorm(shape.dim, shape.norm_eps)
        self.self_attn = Attention(shape)
        self.post_attention_layernorm = nn.RMSNorm(shape.dim, shape.norm_eps)
        self.mlp = GatedNetwork(shape)

    def forward(self, hidden: Float[Tensor, "*B n H"], rotation: tuple[Tensor, Tensor]) -> Float[Tensor, "*B n H"]:
        # The residual stream keeps the embeddings' dtype, also under autocast.
        attended: Tensor = hidden + self.self_attn(self.input_layernorm(hidden), rotation)
        changed: Tensor = attended + self.mlp(self.post_attention_layernorm(attended))
        return changed


class Attention(nn.Module):
    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.head_dim, self.causal = shape.head_dim, shape.causal
        key_dim = shape.head_dim * shape.key_heads
        self.q_proj = unfilled(nn.Linear, shape.dim, shape.dim, bias=False)
        self.k_proj = unfilled(nn.Linear, shape.dim, key_dim, bias=False)
        self.v_proj = unfilled(nn.Linear, shape.dim, key_dim, bias=False)
        self.o_proj = unfilled(nn.Linear, shape.dim, shape.dim, bias=False)

    def forward(self, hidden: Float[Tensor, "*B n H"], rotation: tuple[Tensor, Tensor]) -> Float[Tensor, "*B n H"]:
        every_head = self._heads(_in_one(hidden, self.q_proj, self.k_proj, self.v_proj))
        heads, key_heads = (layer.out_features // self.head_dim for layer in (self.q_proj, self.k_proj))
        turning, value = every_head.split([heads + key_heads, key_heads], dim=1)
        query, key = rotated(turning, rotation).split([heads, key_heads], dim=1)
        mixed = scaled_dot_product_attention(query, key, value, is_causal=self.causal, enable_gqa=True)
        attended: Tensor = self.o_proj(mixed.transpose(1, 2).reshape(hidden.shape))
        return attended

    def _heads(self, projected: Float[Tensor, "*B n P"]) -> Float[Tensor, "b heads n D"]:
        # The fused attention kernels take four axes only.
        return projected.reshape(
            -1, projected.shape[-2], projected.shape[-1] // self.head_dim, self.head_dim
        ).transpose(1, 2)


class GatedNetwork(nn.Module):
    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.gate_proj = unfilled(nn.Linear, shape.dim, shape.gated_dim, bias=False)
        self.up_proj = unfilled(nn.Linear, shape.dim, shape.gated_dim, bias=False)
        self.down_proj = unfilled(nn.Linear, shape.gated_dim, shape.dim, bias=False)

    def forward(self, hidden: Float[Tensor, "*B n H"]) -> Float[Tensor, "*B n H"]:
        gate, up = _in_one(hidden, self.gate_proj, self.up_proj).chunk(2, dim=-1)
        made: Tensor = self.down_proj(silu(gate) * up)
        return made


def _in_one(hidden: Float[Tensor, "*B n H"], *layers: nn.Linear) -> Float[Tensor, "*B n P"]:
    """The outputs of all layers, concatenated, by one fused product: on a GPU one product takes no longer than each of several small ones."""
    return linear(hidden, torch.cat([layer.weight for layer in layers]))


def rotary(embedding: Float[Tensor, "*B n H"], head_dim: int, theta: float) -> tuple[Tensor, Tensor]:
    """Rotary position embedding: the factors of a component and of its partner half a head away, cos and ±sin, each (n, head_dim)."""
    exponents = torch.arange(0, head_dim, 2, device=embedding.device, dtype=embedding.dtype) / head_dim
    positions = torch.arange(embedding.shape[-2], device=embedding.device, dtype=embedding.dtype)
    angles = positions[:, None] / theta**exponents
    cosine, sine = angles.cos(), angles.sin()
    return torch.cat([cosine, cosine], dim=1), torch.cat([-sine, sine], dim=1)


def rotated(heads: Float[Tensor, "b heads n D"], rotation: tuple[Tensor, Tensor]) -> Float[Tensor, "b heads n D"]:
    """Rotary position embedding applied: every pair (d, d + D / 2) is rotated by its angle."""
    of_itself, of_partner = rotation
    partner = heads.roll(heads.shape[3] // 2, dims=3)
    # Rotated in the dtype of the angles, then rounded back to that of the products, for which there are fast attention kernels.
    return (heads * of_itself + partner * of_partner).to(heads.dtype)


def _products_in(precision: Precision, embedding: Tensor) -> AbstractContextManager[object]:
    """Autocast: on a GPU float32 products have bf16 operands if that is the precision."""
    if precision != "bf16" or not _rounds(embedding):
        return nullcontext()
    # No cache of cast weights: a captured graph would read the stale weights of its first step at every replay.
    return torch.autocast(embedding.device.type, torch.bfloat16, cache_enabled=False)


def _rounds(embedding: Tensor) -> bool:
    return embedding.is_cuda and embedding.dtype == torch.float32
