"""The one setting of precision: what the matrix products on a GPU read."""

from typing import Literal

Precision = Literal["bf16", "tf32", "highest"]
"""The operands of matrix products on a GPU; highest: float32. Sums and messages are float32 always, and a CPU, or float64 anywhere,
computes in the tensors' own type."""
