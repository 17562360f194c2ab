"""Queries of small HMMs on a CPU over a grid of sizes: our time as a ratio to the best peer, and a picture of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from bench.measure import compare
from bench.ours import Ours
from bench.peers import PEERS, Engine, installed
from bench.workloads import TITLES, DenseInputs, DenseSizes, Truth, Work, dense_inputs, error, tolerance

WORKS: tuple[Work, ...] = ("W1", "W2", "W4", "W5")
STATES, BATCHES, LENGTHS = (2, 8, 32, 64, 128), (1, 16, 256), (10, 100, 1000, 10_000)
QUICK_STATES, QUICK_BATCHES, QUICK_LENGTHS = (2, 8), (1, 3), (10,)
NUM_WORDS = 1000
MAX_PRODUCTS = 1 << 28
"""Tokens x states^2 of a cell: beyond, some peer takes minutes."""
MAX_SECONDS = 1.0
"""An engine's measurements of one cell end when they have taken so long."""
TOO_SLOW, LONG = 8.0, 1000
"""A peer that needed so many times the best one's time for a text of so many tokens is not asked about longer ones."""


@dataclass(frozen=True)
class Cell:
    """One query at one size."""

    work: Work
    states: int
    batch: int
    length: int
    ours_ms: float | None
    peer: str | None
    """The fastest peer; None: no peer has the right answer."""
    peer_ms: float | None
    precision: str
    """What our loops compute in; hmmlearn has float64, the other peers float32."""
    messages: dict[str, str]
    """Why an engine has no time."""

    @property
    def ratio(self) -> float | None:
        return None if self.ours_ms is None or self.peer_ms is None else self.ours_ms / self.peer_ms


def cells(repeat: int, quick: bool) -> Iterator[Cell]:
    """Medians of `repeat` measurements; engines take turns."""
    device = torch.device("cpu")
    peers = [peer for peer in PEERS if "cpu" in peer.devices and installed(peer)]
    engines: list[Engine] = [Ours("highest"), *peers]
    for states in QUICK_STATES if quick else STATES:
        for batch in QUICK_BATCHES if quick else BATCHES:
            too_slow: dict[tuple[Work, str], str] = {}
            for length in QUICK_LENGTHS if quick else LENGTHS:
                if batch * length * states**2 > MAX_PRODUCTS:
                    continue
                inputs = dense_inputs(DenseSizes(states, NUM_WORDS, batch, length), device)
                truth = Truth(inputs)
                for work in WORKS:
                    yield _cell(work, inputs, truth, engines, repeat, too_slow)


def _cell(
    work: Work,
    inputs: DenseInputs,
    truth: Truth,
    engines: list[Engine],
    repeat: int,
    too_slow: dict[tuple[Work, str], str],
) -> Cell:
    sizes, device = inputs.sizes, inputs.device
    asked = {
        engine.name: partial(engine.timed, work, inputs) for engine in engines if (work, engine.name) not in too_slow
    }
    ours, *others = compare(asked, partial(error, work, truth), tolerance(work, device), device, repeat, MAX_SECONDS)
    found = {one.engine: one.median for one in others if one.median is not None}
    best = min(found, key=lambda name: found[name], default=None)
    peer_ms = None if best is None else found[best]
    for name, milliseconds in found.items():
        if sizes.length >= LONG and peer_ms is not None and milliseconds > TOO_SLOW * peer_ms:
            too_slow[work, name] = f"{milliseconds / peer_ms:.0f} times the best peer's time at {sizes.length:,} tokens"
    left_out = {name: why for (of, name), why in too_slow.items() if of == work and name not in asked}
    messages = {one.engine: one.message for one in (ours, *others) if one.message} | left_out
    reads = Ours("highest").reads(work, device)
    return Cell(work, sizes.states, sizes.batch, sizes.length, ours.median, best, peer_ms, reads, messages)


def draw_grid(found: dict[str, Any], folder: Path) -> list[Path]:
    """small-grid.png: a panel a query, a row a number of states, a column a batch and length."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import LogNorm
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError('a picture needs matplotlib: pip install "vlhmm[plot]"') from None

    rows: list[dict[str, Any]] = found["grid"]
    states = sorted({row["states"] for row in rows})
    columns = sorted({(row["batch"], row["length"]) for row in rows})
    works = [work for work in WORKS if any(row["work"] == work for row in rows)]
    figure = Figure(figsize=(12, 1.2 + 1.9 * ((len(works) + 1) // 2)), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(f"vlhmm's time over that of the fastest peer, {found['device_name']}: below 1, vlhmm is faster")
    panels = figure.subplots((len(works) + 1) // 2, 2, squeeze=False).flatten()
    for axes, work in zip(panels, works, strict=False):
        values = [[float("nan")] * len(columns) for _ in states]
        for row in (row for row in rows if row["work"] == work and row["ours_ms"] and row["peer_ms"]):
            at = states.index(row["states"]), columns.index((row["batch"], row["length"]))
            values[at[0]][at[1]] = row["ours_ms"] / row["peer_ms"]
        picture = axes.imshow(values, norm=LogNorm(0.01, 100), cmap="RdYlBu_r", aspect="auto")
        for number, line in enumerate(values):
            for column, value in enumerate(line):
                text = "-" if value != value else f"{value:.2f}"
                axes.text(column, number, text, ha="center", va="center", fontsize=7)
        axes.set_title(TITLES[work], fontsize=10)
        axes.set_xticks(
            range(len(columns)), [f"{batch} x {length:,}" for batch, length in columns], rotation=30, fontsize=7
        )
        axes.set_yticks(range(len(states)), [str(number) for number in states], fontsize=8)
        axes.set_ylabel("states")
    figure.colorbar(picture, ax=list(panels), label="ratio")
    path = folder / "small-grid.png"
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
    return [path]
