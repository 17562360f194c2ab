"""Cooperative kernels wait for a bounded number of polls; past it they report in a word of page-locked memory, and end.

A program whose polling reached the bound writes NaN, or an infinite score, for missing inputs, and polls no more, so every launch ends. The
word is host memory, so reading it needs no host-device synchronisation: after the result of a kernel has arrived, call `check` before the
result is used. Its address is fixed, so kernels in CUDA graphs write to it too.
"""

from __future__ import annotations

import threading

import torch
from jaxtyping import Int
from torch import Tensor

MAX_POLLS = 1 << 22
"""Of one wait: seconds, where a step takes microseconds. Polls, not time: a process that the device has set aside does not poll."""

OPERATIONS = (
    "forward recursion, resident tile",
    "backward recursion, resident tile",
    "forward recursion",
    "backward recursion",
    "max-product",
)
"""By the number with which their kernels report."""
FORWARD_RESIDENT, BACKWARD_RESIDENT, FORWARD, BACKWARD, MAX_PRODUCT = range(len(OPERATIONS))

_reports: dict[torch.device, Tensor] = {}
_lock = threading.Lock()


class DeviceWaitError(RuntimeError):
    """A grid barrier of a cooperative kernel timed out: its results are not usable."""


def reports(device: torch.device) -> Int[Tensor, " operations"]:
    """For each operation 0, or what a program has reported: its number + 1 in the upper 32 bits, the step in the lower ones.

    One buffer a device, never freed. Kernels run eagerly before they are captured, so it exists by then.
    """
    device = _with_index(device)
    with _lock:
        if device not in _reports:
            # Page-locked (pinned) host memory, to which kernels can write.
            _reports[device] = torch.zeros(len(OPERATIONS), dtype=torch.int64, pin_memory=device.type == "cuda")
        return _reports[device]


def cooperative_options(device: torch.device) -> dict[str, bool]:
    """Launch options of a cooperative kernel: the device makes all programs resident at once, or refuses the launch."""
    return {"launch_cooperative_grid": True} if device.type == "cuda" else {}


def check(device: torch.device) -> None:
    """Raises if a wait of a kernel on this device has reached its bound since the last call. Call it when the results have arrived.

    Raises:
        DeviceWaitError: Names the operation, the program that waited, the step and the bound.
    """
    device = _with_index(device)
    found = _reports.get(device)
    if found is None or not found.numpy().any():
        return
    with _lock:
        values = found.tolist()
        found.zero_()
    told = [
        f"{operation}: program {(value >> 32) - 1} at step {value & 0xFFFFFFFF}"
        for operation, value in zip(OPERATIONS, values, strict=True)
        if value
    ]
    raise DeviceWaitError(
        f"programs of a cooperative kernel on {device} reached the bound of a wait for one another ({'; '.join(told)}; bound {MAX_POLLS:,} polls). "
        "Its output is not valid. Most likely not all of its programs were on the device at once. Run the same within "
        "vlhmm.ops.recursion.tilings.no_cooperative_kernels(), which launches a kernel for each position; "
        "continue a training with --resume"
    )


def _with_index(device: torch.device) -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if device == torch.device("cuda") else device
