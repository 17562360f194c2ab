"""How the steps of the dense recursion are launched on a GPU: all at once, or one by one."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from vlhmm.ops import waiting
from vlhmm.ops.recursion.tilings import Method, Tiling
from vlhmm.ops.sizes import cdiv, multiprocessors, power_of_2
from vlhmm.precision import Precision


def awaited(steps: int, size: int, states: int, parts: int, tile: Tensor) -> tuple[Tensor, Tensor]:
    """Buffers of messages in the tile's dtype and of their parts' sums, filled with NaN: programs poll them until a number is there.
    All bits set is a NaN of either dtype, so one launch fills both."""
    # Kernels are specialised for addresses aligned to 16 bytes.
    message_bytes = 16 * cdiv(steps * size * states * tile.element_size(), 16)
    sum_bytes = 8 * cdiv(steps * size * parts * 4, 8)
    filled = torch.full(((message_bytes + sum_bytes) // 8,), -1, dtype=torch.int64, device=tile.device).view(torch.int8)
    messages = filled[:message_bytes].view(tile.dtype)[: steps * size * states].view(steps, size, states)
    return messages, filled[message_bytes:].view(torch.float32)[: steps * size * parts].view(steps, size, parts)


def _programs_run_at_once(device: torch.device) -> bool:
    """True for a cooperative launch on a GPU; Triton's interpreter runs programs sequentially."""
    return device.type == "cuda"


def launch_resident(
    steps_kernel: Any,
    arguments: tuple[Tensor, ...],
    sizes: tuple[int, ...],
    steps: int,
    launches: int,
    tiling: Tiling,
    operation: int,
    **options: Any,
) -> None:
    """All steps in one launch. Under the interpreter, whose programs cannot wait for each other, one launch for each step and the end."""
    size, _, states = sizes[:3]
    device = arguments[0].device
    waits = _programs_run_at_once(device)
    parts = cdiv(states, tiling.columns)
    options |= waiting.cooperative_options(device)
    for first, end in [(0, steps)] if waits else [(t, min(t + 1, steps)) for t in range(launches)]:
        steps_kernel[(cdiv(size, tiling.rows) * parts,)](
            *arguments,
            *(waiting.reports(device), waiting.MAX_POLLS),
            *sizes,
            first,
            end,
            OPERATION=operation,
            PARTS=power_of_2(parts),
            ROWS=tiling.rows,
            COLUMNS=tiling.columns,
            SOURCES=max(16, power_of_2(states)),
            PERSISTENT=waits,
            num_warps=tiling.num_warps,
            **options,
        )


def launch(
    steps_kernel: Any,
    arguments: tuple[Tensor, ...],
    sizes: tuple[int, ...],
    steps: range,
    tiling: Tiling,
    precision: Precision,
    method: Method,
    operation: int,
    **options: Any,
) -> None:
    """All steps in one launch, or each in its own."""
    size, _, states = sizes[:3]
    device = arguments[0].device
    parts = cdiv(states, tiling.columns)
    programs = cdiv(size, tiling.rows) * parts
    options |= {"num_warps": tiling.num_warps, "num_stages": tiling.num_stages}
    arrived = arguments[-1]
    if method == "persistent":
        arrived = torch.zeros(1, dtype=torch.int32, device=device)
        # A grid barrier needs all programs resident at the same time (cooperative launch).
        programs = min(programs, multiprocessors(device))
        options |= waiting.cooperative_options(device)
    for first in [steps.start] if method == "persistent" else steps:
        steps_kernel[(programs,)](
            *arguments,
            *(arrived, waiting.reports(device), waiting.MAX_POLLS),
            *sizes,
            first,
            steps.stop if method == "persistent" else first + 1,
            PARTS=power_of_2(parts),
            ROWS=tiling.rows,
            COLUMNS=tiling.columns,
            INNER=tiling.inner,
            INPUT_PRECISION="ieee" if precision == "highest" else "tf32",
            PERSISTENT=method == "persistent",
            FUSED=method != "cublas",
            OPERATION=operation,
            **options,
        )
