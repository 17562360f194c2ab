"""An inspection as one picture; it needs the extra `plot`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from vlhmm.inspection import Inspection, Memory
from vlhmm.inspection.summary import Range

BLUE, RED, PALE = "#3b6ea5", "#c8442b", "#9db8d2"


def inspection_figure(inspection: Inspection, path: Path, title: str) -> None:
    """States used, entropy of the state, perplexity by memory, place in the line and frequency, as PNG."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    except ImportError:
        raise ValueError('a picture needs matplotlib: pip install "vlhmm[plot]"') from None

    figure = Figure(figsize=(11, 6.6), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, 3).flatten()
    _usage(axes[0], inspection)
    _blocks(axes[1], inspection)
    _entropy(axes[2], inspection)
    if inspection.memory is not None:
        _memory(axes[3], inspection.memory)
    _ranges(axes[4], inspection.by_line_position, "place in the line")
    _ranges(axes[5], inspection.by_frequency, "count of the word in the training text", log=True)
    numbers = FuncFormatter(lambda value, _: f"{value:,.0f}")
    for one in axes:
        if not one.has_data():
            one.set_axis_off()
            continue
        one.grid(alpha=0.25)
        for axis in (one.xaxis, one.yaxis):
            if axis.get_scale() == "log":
                axis.set_minor_formatter(NullFormatter())
    # Few powers of ten lie in a block's tokens.
    axes[1].xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    for axis in (axes[0].xaxis, axes[1].xaxis, axes[1].yaxis, axes[5].yaxis):
        axis.set_major_formatter(numbers)
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=140)


def _usage(axes: Any, inspection: Inspection) -> None:
    shares = inspection.reading.occupancy.sort(descending=True).values.cumsum(0).cpu().numpy()
    axes.plot(np.arange(1, len(shares) + 1), 100 * shares / shares[-1], color=BLUE)
    for share, count in inspection.usage.states_for.items():
        axes.plot([count], [100 * share], "o", color=RED, markersize=4)
        axes.annotate(
            f"{count:,}", (count, 100 * share), textcoords="offset points", xytext=(-6, 0), ha="right", fontsize=8
        )
    axes.set_xscale("log", base=2)
    axes.set_xlabel(f"states, most used first (of {inspection.usage.num_states:,})")
    axes.set_ylabel("% of the tokens")
    axes.set_title(f"states used: as spread out as {inspection.usage.effective:,.0f} equal ones", fontsize=9)


def _blocks(axes: Any, inspection: Inspection) -> None:
    if len(inspection.blocks) < 2:
        return
    used = [block.usage for block in inspection.blocks if block.usage.num_tokens > 0]
    axes.scatter([one.num_tokens for one in used], [one.effective for one in used], s=12, color=BLUE)
    axes.axhline(used[0].num_states, color=RED, linewidth=1, linestyle="--")
    axes.set_xscale("log")
    axes.set_yscale("log", base=2)
    axes.set_xlabel("tokens of a block")
    axes.set_ylabel("states, as if equally used")
    axes.set_title(f"each block of {used[0].num_states:,} states", fontsize=9)


def _entropy(axes: Any, inspection: Inspection) -> None:
    reading = inspection.reading
    parts = (
        ("given what came before", reading.filtered_entropy, PALE),
        ("given the whole text", reading.smoothed_entropy, BLUE),
    )
    highest = max(float(values.max()) for _, values, _ in parts)
    for label, values, colour in parts:
        axes.hist(
            values.cpu().numpy(),
            bins=np.linspace(0, max(highest, 1e-3), 41).tolist(),
            density=True,
            histtype="stepfilled" if colour == PALE else "step",
            color=colour,
            linewidth=1.5,
            label=f"{label}: mean {float(values.mean()):.2f}",
        )
    axes.set_xlabel("entropy of a token's state, nats")
    axes.set_ylabel("density of tokens")
    # Room for the legend above the columns.
    axes.set_ylim(top=1.3 * axes.get_ylim()[1])
    axes.legend(frameon=False, fontsize=8, loc="upper left")
    axes.set_title("how open the state of a token is", fontsize=9)


def _memory(axes: Any, memory: Memory) -> None:
    # Zero has no place on a scale of powers.
    powers = [2**power for power in range(memory.longest.bit_length())]
    axes.plot(range(1, memory.longest + 1), memory.perplexity[1:], color=BLUE)
    axes.plot(powers, [memory.perplexity[power] for power in powers], "o", color=BLUE, markersize=3)
    axes.axhline(memory.unlimited, color=RED, linewidth=1, linestyle="--")
    axes.annotate(
        f"the whole text: {memory.unlimited:,.1f}",
        (memory.longest, memory.unlimited),
        textcoords="offset points",
        xytext=(0, 5),
        ha="right",
        fontsize=8,
        color=RED,
    )
    axes.set_xscale("log", base=2)
    axes.set_xticks(powers, [str(power) for power in powers])
    axes.set_xlabel("tokens before that are known")
    axes.set_ylabel("perplexity")
    axes.set_title(f"memory (nothing known: {memory.perplexity[0]:,.0f})", fontsize=9)


def _ranges(axes: Any, ranges: list[Range], name: str, *, log: bool = False) -> None:
    if not ranges:
        return
    places = range(len(ranges))
    axes.bar(places, [one.perplexity for one in ranges], color=PALE)
    for place, one in zip(places, ranges, strict=True):
        label = f"{one.perplexity:,.0f}\n{one.share_of_nats:.0%}"
        axes.annotate(label, (place, one.perplexity), ha="center", va="bottom", fontsize=7)
    low, high = min(one.perplexity for one in ranges), max(one.perplexity for one in ranges)
    if log:
        axes.set_yscale("log")
        axes.set_ylim(max(1.0, low / 2), high * 3)
    else:
        axes.set_ylim(0, high * 1.15)
    axes.set_xticks(places, [_short(one) for one in ranges], fontsize=8)
    axes.set_xlabel(name)
    axes.set_ylabel("perplexity")
    axes.set_title("perplexity, and the share of all surprise", fontsize=9)


def _short(one: Range) -> str:
    first = f"{one.first // 1000}k" if one.first >= 1000 else str(one.first)
    if one.last is None:
        return f"{first}+"
    last = f"{(one.last + 1) // 1000}k" if one.last >= 1000 else str(one.last)
    return first if one.first == one.last else f"{first}-{last}"
