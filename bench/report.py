"""What was measured, as one table and as JSON."""

from __future__ import annotations

import platform
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from bench.floor import Rates
from bench.measure import Result
from bench.workloads import TITLES
from vlhmm.provenance import commit_of_source

PACKAGES = ("vlhmm", "torch", "triton", "numpy", "jax", "jaxlib", "dynamax", "hmmlearn", "pomegranate", "pyjuice")


@dataclass(frozen=True)
class Row:
    """One work at one size."""

    work: str
    sizes: dict[str, Any]
    tolerance: float
    floor_ms: float | None
    ours: Result
    peers: list[Result]
    precision: str
    """What our matrix products read."""

    def best_peer(self) -> Result | None:
        timed = [peer for peer in self.peers if peer.median is not None]
        return min(timed, key=lambda peer: peer.median or 0.0, default=None)

    def ratio_to_best_peer(self, result: Result) -> float | None:
        best = self.best_peer()
        return _ratio(result.median, None if best is None else best.median)

    def to_json(self) -> dict[str, Any]:
        best = self.best_peer()
        return {
            "work": self.work,
            "title": TITLES[self.work],
            "sizes": self.sizes,
            "precision": self.precision,
            "tolerance": self.tolerance,
            "floor_ms": self.floor_ms,
            "best_peer": None if best is None else best.engine,
            "results": [self._result_json(result) for result in (self.ours, *self.peers)],
        }

    def _result_json(self, result: Result) -> dict[str, Any]:
        times = result.milliseconds
        return {
            "engine": result.engine,
            "precision": result.precision,
            "median_ms": result.median,
            "min_ms": min(times, default=None),
            "max_ms": max(times, default=None),
            "repeats": len(times),
            "error": result.error,
            "ratio_to_best_peer": self.ratio_to_best_peer(result),
            "ratio_to_floor": _ratio(result.median, self.floor_ms),
            "message": result.message,
        }


@dataclass(frozen=True)
class Epoch:
    """One epoch of training on real text."""

    work: str
    seconds: float | None
    tokens: int
    precision: str
    """What matrix products read."""
    first_loss: float | None = None
    last_loss: float | None = None
    message: str = ""

    PAPER_SECONDS = 433.0
    """The epoch of Chiu & Rush at their setting."""

    def to_json(self) -> dict[str, Any]:
        return {
            **asdict(self),
            "title": TITLES[self.work],
            "tokens_per_second": None if self.seconds is None else self.tokens / self.seconds,
            "times_faster_than_the_paper": None if self.seconds is None else self.PAPER_SECONDS / self.seconds,
        }


def about(device: torch.device, command: str, seconds: float, rates: Rates) -> dict[str, Any]:
    """Where and how it was measured."""
    return {
        "command": command,
        "commit": commit_of_source(),
        "device": device.type,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "versions": {name: found for name in PACKAGES if (found := _version(name)) is not None},
        "seconds": round(seconds, 1),
        "rates": asdict(rates),
    }


def table(rows: list[Row], epochs: list[Epoch], rates: Rates) -> Table:
    shown = Table(
        title="milliseconds, median (fastest to slowest)",
        caption=f"floor: {rates.bytes_per_second / 1e9:,.0f} GB/s and {rates.matmul_flops / 1e12:,.2f} TFLOP/s "
        f"(float32 {rates.float32_flops / 1e12:,.2f}), measured in this run",
    )
    shown.add_column("work")
    for heading in ("states", "engine", "time", "of best peer", "of floor", "error"):
        shown.add_column(heading, justify="left" if heading == "engine" else "right")
    for row in rows:
        floor = "-" if row.floor_ms is None else f"{row.floor_ms:.3g}"
        for number, result in enumerate((row.ours, *row.peers)):
            shown.add_row(
                f"{row.work} {TITLES[row.work]}" if number == 0 else "",
                f"{row.sizes['states']:,}" if number == 0 else "",
                ", ".join(part for part in (result.engine, result.precision) if part),
                result.message if result.median is None else _times(result),
                _number(row.ratio_to_best_peer(result)),
                _number(_ratio(result.median, row.floor_ms)),
                "" if result.error is None else f"{result.error:.0e}",
            )
        shown.add_row("", "", "floor", floor, "", "", "", end_section=True, style="dim")
    for epoch in epochs:
        seconds = epoch.message
        if epoch.seconds is not None:
            rate, factor = epoch.tokens / epoch.seconds, epoch.PAPER_SECONDS / epoch.seconds
            seconds = f"{epoch.seconds:.1f} s, {rate:,.0f} tokens/s, {factor:.0f}x the paper's speed"
        shown.add_row(
            f"{epoch.work} {TITLES[epoch.work]}", "", f"vlhmm, {epoch.precision}", seconds, "", "", "", end_section=True
        )
    return shown


def _times(result: Result) -> str:
    return f"{result.median:.3g} ({min(result.milliseconds):.3g} to {max(result.milliseconds):.3g})"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _ratio(value: float | None, unit: float | None) -> float | None:
    return None if value is None or not unit else value / unit


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
