"""Pictures; they need the extra `plot`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def learning_curve(log: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Training and validation perplexity against tokens seen, as PNG."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, NullFormatter, ScalarFormatter
    except ImportError:
        raise ValueError('a picture needs matplotlib: pip install "vlhmm[plot]"') from None

    steps = [record for record in log if record["kind"] == "step"]
    checks = [record for record in log if record["kind"] == "check"]
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.plot(
        [record["tokens"] for record in steps],
        [record["perplexity"] for record in steps],
        color="#9db8d2",
        linewidth=1,
        label="training (states dropped)",
    )
    axes.plot(
        [record["tokens"] for record in checks],
        [record["valid_perplexity"] for record in checks],
        color="#c8442b",
        marker="o",
        markersize=3,
        label="validation",
    )
    if checks:
        best = min(checks, key=lambda record: record["valid_perplexity"])
        axes.annotate(
            f"{best['valid_perplexity']:.1f}",
            (best["tokens"], best["valid_perplexity"]),
            textcoords="offset points",
            xytext=(0, 9),
            ha="center",
            color="#c8442b",
        )
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.yaxis.set_minor_formatter(NullFormatter())
    every = [record["perplexity"] for record in steps] + [record["valid_perplexity"] for record in checks]
    low, high = 0.7 * min(every, default=10), 1.2 * max(every, default=100)
    ticks = [digit * 10**power for power in range(7) for digit in (1, 2, 5)]
    axes.set_yticks([tick for tick in ticks if low <= tick <= high])
    axes.set_ylim(low, high)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))
    axes.set_xlabel("tokens seen")
    axes.set_ylabel("perplexity")
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=140)
