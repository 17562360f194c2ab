"""Sizes of what programs take, by which launches tile their work."""

from __future__ import annotations

import torch


def cdiv(whole: int, piece: int) -> int:
    """How many it takes to cover the whole."""
    return -(-whole // piece)


def power_of_2(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()


def block_size(size: int, most: int | None = None, *, least: int = 1) -> int:
    """The power of two that holds the size, between `least` and `most`, powers of two themselves. Products take no less than 16."""
    padded = power_of_2(size)
    return max(least, padded if most is None else min(most, padded))


def multiprocessors(device: torch.device) -> int:
    """The number of multiprocessors of a GPU; elsewhere 1: Triton's interpreter runs programs sequentially, so none may wait for another."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 1
