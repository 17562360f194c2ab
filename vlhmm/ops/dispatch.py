"""Which backend serves an operation: Triton kernels where they apply, plain torch elsewhere. Decided here, and nowhere else.

An operation calls `serve` of its `Kernels` with its operands, and adds only the conditions of its own (a width, whether a gradient
is required). `vlhmm backends` prints the table.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor

from vlhmm.compiled import numba_installed

MIN_CAPABILITY = (8, 0)
"""Ampere: bfloat16 products, and acquire-release memory operations between the programs of a cooperative kernel."""


@cache
def unavailable(device: torch.device) -> str | None:
    """Why no Triton kernel can run on a device; None: they can."""
    if device.type != "cuda":
        return f"the device is {device.type}, not cuda"
    if find_spec("triton") is None:
        return "triton is not installed"
    capability = torch.cuda.get_device_capability(device)
    if capability < MIN_CAPABILITY:
        return f"compute capability {capability[0]}.{capability[1]} is below {MIN_CAPABILITY[0]}.{MIN_CAPABILITY[1]}"
    return None


SMALL_DENSE_STATES = 128
"""Up to here loops over time are faster on a CPU than a matrix product a position, for one sequence."""
MAX_LOOP_STATES = 1024
"""For a batch."""


@cache
def loops_unavailable(device: torch.device) -> str | None:
    """Why no loop that numba compiles can serve a device; None: they can."""
    if device.type != "cpu":
        return f"the device is {device.type}, not cpu"
    if not numba_installed():
        return "numba is not installed"
    return None


@dataclass(frozen=True)
class Kernels:
    """The Triton kernels of one operation, and what they need of its operands."""

    operation: str
    dtypes: tuple[torch.dtype, ...] = (torch.float32,)
    """Of floating operands; integers are int64 everywhere."""
    max_size: int | None = None
    min_size: int = 0
    size: str = ""
    """What `max_size` and `min_size` bound."""
    condition: str = ""
    """What the operation itself asks for beyond that."""

    def serve(self, *operands: Tensor | None, size: int | None = None) -> bool:
        """Whether the kernels serve these operands, which must not be empty; None: an operand that is not given."""
        given = [operand for operand in operands if operand is not None]
        return (
            self.run(given[0].dtype, given[0].device, size=size)
            and all(self._serve_dtype(operand.dtype) for operand in given)
            and all(operand.numel() > 0 for operand in given)
        )

    def run(self, dtype: torch.dtype, device: torch.device, *, size: int | None = None) -> bool:
        """Whether the kernels serve tensors of this type, perhaps still to be made."""
        return (size is None or self.fits(size)) and self._serve_dtype(dtype) and unavailable(device) is None

    def fits(self, size: int) -> bool:
        return size >= self.min_size and (self.max_size is None or size <= self.max_size)

    def _serve_dtype(self, dtype: torch.dtype) -> bool:
        return not dtype.is_floating_point or dtype in self.dtypes

    def limits(self) -> str:
        """All of that in words."""
        dtypes = " or ".join(str(dtype).removeprefix("torch.") for dtype in self.dtypes)
        largest = "" if self.max_size is None else f"{self.size} at most {self.max_size:,}"
        least = f"{self.size} at least {self.min_size:,}" if self.min_size else ""
        return ", ".join(part for part in (dtypes, least, largest, self.condition) if part)


BLOCK_CHOICE = Kernels("choice of a block by features", max_size=512, size="width", condition="bf16, several blocks")
BLOCKED_RECURSION = Kernels(
    "blocked recursion", max_size=1024, size="states of a group", condition="several groups, factors that kernels read"
)
# A multi-tensor (foreach) launch takes a list of gradients in pieces of 65,536 numbers, 15 us even for four: from this size on
# a launch of its own costs less.
CLIPPING = Kernels("gradient clipping", min_size=1 << 18, size="numbers", condition="contiguous")
DENSE_RECURSION = Kernels("dense recursion", condition="one tile for all positions")
# One program holds the keys of all states of a block.
DRAWN_STATES = Kernels("draw of kept states", max_size=1 << 13, size="states of a block")
EMISSION = Kernels("emission softmax")
# All pairs of positions are compared: beyond, sorting is less work.
GROUP_ORDER = Kernels("positions sorted by group", max_size=1 << 13, size="positions")
MAX_PRODUCT = Kernels("max-product (Viterbi)", condition="one tile for all positions")
PARAMETER_UPDATE = Kernels("parameter update (clipping, AdamW, average)", condition="contiguous")
RESIDUAL_NETWORK = Kernels("residual network", max_size=1024, size="width", condition="bf16 or tf32")
ROW_LOGSUMEXP = Kernels(
    "row logsumexp (softmax normaliser)",
    dtypes=(torch.float32, torch.bfloat16, torch.float16),
    max_size=512,
    size="width",
)
STATE_ROWS = Kernels("rows of state embeddings", condition="embeddings that are trained")
TABLE_SOFTMAX = Kernels("log-softmax of a table")
TOKEN_EMISSION = Kernels("emission at the tokens of a window", condition="dense support")
WINDOW_GROUPS = Kernels("groups of a window")
WORD_ROWS = Kernels("emission rows of a text")

OPERATIONS = (
    *(BLOCK_CHOICE, BLOCKED_RECURSION, CLIPPING, DENSE_RECURSION, DRAWN_STATES, EMISSION, GROUP_ORDER, MAX_PRODUCT),
    *(
        PARAMETER_UPDATE,
        RESIDUAL_NETWORK,
        ROW_LOGSUMEXP,
        STATE_ROWS,
        TABLE_SOFTMAX,
        TOKEN_EMISSION,
        WINDOW_GROUPS,
        WORD_ROWS,
    ),
)


@dataclass(frozen=True)
class Backend:
    """What serves an operation on a device, and why."""

    operation: str
    backend: str
    reason: str


def backends(device: torch.device) -> list[Backend]:
    """The backend of every operation on a device, for operands within the limits that are named."""
    why_not, no_loops = unavailable(device), loops_unavailable(device)
    limits = (
        f"dense, float32 or float64, states at most {SMALL_DENSE_STATES}, of batches at most {MAX_LOOP_STATES:,}, "
        "no gradient, belief or window; else torch"
    )
    found = [
        Backend("queries of small HMMs", "torch", no_loops)
        if no_loops
        else Backend("queries of small HMMs", "numba", limits)
    ]
    for kernels in OPERATIONS:
        if why_not is not None:
            found.append(Backend(kernels.operation, "torch", why_not))
            continue
        found.append(Backend(kernels.operation, "triton", f"{kernels.limits()}; else torch"))
    return found
