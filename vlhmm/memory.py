"""Memory is counted before it is taken: what cannot fit is refused with a number."""

from __future__ import annotations

import os
from pathlib import Path

import torch

CGROUP = Path("/sys/fs/cgroup")
"""Where Linux tells the limits of a container."""


def available_bytes(device: torch.device) -> int:
    """What a new allocation on `device` can hope for."""
    if device.type == "cuda":
        free: int = torch.cuda.mem_get_info(device)[0]
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    limits = [_system_available()]
    # A container's limit is often below the machine's memory.
    limit, used = CGROUP / "memory.max", CGROUP / "memory.current"
    if limit.exists() and used.exists() and (text := limit.read_text().strip()).isdigit():
        limits.append(int(text) - int(used.read_text()) + _reclaimable())
    return max(0, min(limits))


def _reclaimable() -> int:
    """Cached files count as used, but give way: a model that was just written must not be refused on account of itself."""
    stat = CGROUP / "memory.stat"
    if stat.exists():
        for line in stat.read_text().splitlines():
            if line.startswith("inactive_file "):
                return int(line.split()[1])
    return 0


def _system_available() -> int:
    meminfo = Path("/proc/meminfo")
    if meminfo.exists():
        for line in meminfo.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    # Nothing is known about this system's memory, so nothing is refused.
    return 1 << 62


def require_memory(needed: int, what: str, remedy: str, device: torch.device) -> None:
    """Raise ValueError if `needed` bytes for `what` cannot fit on `device`."""
    available = available_bytes(device)
    if needed > available:
        raise ValueError(
            f"{what} would take {needed / 2**30:,.1f} GiB, but {available / 2**30:,.1f} GiB are available on {device}: {remedy}"
        )
