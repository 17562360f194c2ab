"""What the device allows: the bytes that must move and the operations that must be done, over rates measured here."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch

from bench.measure import seconds_of
from bench.workloads import DenseSizes, StepSizes, Work
from vlhmm.precision import float32_products


@dataclass(frozen=True)
class Rates:
    bytes_per_second: float
    """Copying a tensor far larger than any cache: bytes read and written."""
    float32_flops: float
    matmul_flops: float
    """A large matrix product with the operands that the package uses on this device: bfloat16 on CUDA, else float32."""
    operand_bytes: int


@dataclass(frozen=True)
class Needs:
    """A lower bound for any method (roofline): bytes and operations, without latency of dependent steps and of launches."""

    matmul_flops: float = 0.0
    max_plus_pairs: float = 0.0
    bytes: float = 0.0

    def seconds(self, rates: Rates) -> float:
        # An addition and a maximum are two instructions where a multiply-add, counted as two operations, is one.
        computing = self.matmul_flops / rates.matmul_flops + 4 * self.max_plus_pairs / rates.float32_flops
        return max(computing, self.bytes / rates.bytes_per_second)


def measure_rates(device: torch.device, quick: bool = False) -> Rates:
    cuda = device.type == "cuda"
    width = 512 if quick else 8192 if cuda else 2048
    numel = 1 << (20 if quick else 30 if cuda else 26)
    source = torch.ones(numel, device=device)
    target = torch.empty_like(source)

    def rate(amount: float, call: Callable[[], object]) -> float:
        call()
        return amount / median(seconds_of(call, device) for _ in range(5))

    copied = rate(2.0 * source.nbytes, lambda: target.copy_(source))
    left = torch.randn(width, width, device=device)
    # Without TF32: tensor cores would hide the rate of the ordinary cores, which compute the maxima.
    with float32_products("highest", device):
        float32 = rate(2.0 * width**3, lambda: left @ left)
    if not cuda:
        return Rates(copied, float32, float32, 4)
    half = left.bfloat16()
    return Rates(copied, float32, rate(2.0 * width**3, lambda: half @ half), 2)


def dense_needs(work: Work, sizes: DenseSizes, rates: Rates) -> Needs:
    """Memory traffic: the table, the emission rows of the tokens and the results, each moved once."""
    pairs = float(sizes.batch * (sizes.length - 1) * sizes.states**2)
    table = sizes.states**2 * rates.operand_bytes
    per_position = sizes.batch * sizes.length * sizes.states * 4
    match work:
        case "W1":
            return Needs(matmul_flops=2 * pairs, bytes=table + per_position)
        case "W2":
            # Forward, backward, and the product that sums the counts; those of the words touched are written.
            return Needs(matmul_flops=6 * pairs, bytes=table + 4 * sizes.states**2 + 2 * per_position)
        case "W4":
            return Needs(max_plus_pairs=pairs, bytes=4 * sizes.states**2 + per_position)
        case "W5":
            # Forward messages are stored until the backward pass reads them.
            return Needs(matmul_flops=4 * pairs, bytes=table + 4 * per_position)


def step_needs(sizes: StepSizes, rates: Rates) -> Needs:
    """Logits and their two gradients; five passes over the tiles."""
    kept_states = sizes.num_blocks * sizes.kept
    tokens = sizes.batch * sizes.window
    tile_cells = float(tokens * sizes.kept**2)
    tile_logits = 2 * tile_cells * sizes.dim
    if sizes.transition == "softmax":
        normaliser = 2.0 * kept_states**2 * sizes.dim
    else:
        normaliser = 2.0 * kept_states * sizes.num_blocks * sizes.dim
    return Needs(matmul_flops=3 * (tile_logits + normaliser), bytes=5 * tile_cells * rates.operand_bytes)
