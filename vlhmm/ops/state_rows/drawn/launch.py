"""How the kernel of the draw is called. Nothing here synchronises host and device, so a CUDA graph can hold it all."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.sizes import power_of_2
from vlhmm.ops.state_rows.drawn import kernel


def draw(keys: Float[Tensor, "M K"], drawn: Int[Tensor, "M count"]) -> None:
    """As many states of each block as `drawn` has room for."""
    num_blocks, num_states = keys.shape
    padded = max(32, power_of_2(num_states))
    # Counts within one warp need no barrier: more warps only where a thread would hold over 32 keys.
    warps = max(1, min(8, padded // 1024))
    kernel.draw[(num_blocks,)](keys, drawn, num_states, drawn.shape[1], K_PAD=padded, num_warps=warps)
