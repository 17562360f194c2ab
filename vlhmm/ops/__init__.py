"""Numerics on plain tensors: each operation in a folder of its own, its specification in `reference.py`."""
