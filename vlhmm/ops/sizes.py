"""Sizes of what programs take, by which launches cut their work."""

from __future__ import annotations


def cdiv(whole: int, piece: int) -> int:
    """How many it takes to cover the whole."""
    return -(-whole // piece)


def power_of_2(at_least: int) -> int:
    return 1 << (at_least - 1).bit_length()
