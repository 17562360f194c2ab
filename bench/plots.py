"""Pictures of cost against size; they need matplotlib."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TITLES = {
    "states": "states",
    "batch": "sequences",
    "length": "tokens of a sequence",
    "states_per_block": "states of a block",
    "num_blocks": "blocks",
}
LINES = {
    "W1": ("log-likelihood", "#2b6cb0"),
    "W2": ("gradient or counts", "#c8442b"),
    "W3": ("step, softmax", "#c8442b"),
    "W3b": ("step, block-factored", "#2b6cb0"),
}


def draw_scaling(found: dict[str, Any], folder: Path) -> list[Path]:
    """scaling-dense.png and scaling-blocked.png: milliseconds measured, and the floor dashed."""
    if not found.get("points"):
        raise ValueError("the file has no points: it must come from `python -m bench scaling --json`")
    written = []
    for name, works in (("dense", ("W1", "W2")), ("blocked", ("W3b", "W3"))):
        points = [point for point in found["points"] if point["work"] in works and point["milliseconds"] is not None]
        if points:
            path = folder / f"scaling-{name}.png"
            _draw(points, works, f"{found['device_name']}: {name}", path)
            written.append(path)
    return written


def _draw(points: list[dict[str, Any]], works: tuple[str, ...], title: str, path: Path) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError('a picture needs matplotlib: pip install "vlhmm[plot]"') from None

    axes_names = list(dict.fromkeys(point["axis"] for point in points))
    figure = Figure(figsize=(3.4 * len(axes_names), 3.4), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    all_axes = figure.subplots(1, len(axes_names), sharey=True, squeeze=False)[0]
    for axes, name in zip(all_axes, axes_names, strict=True):
        for work in works:
            line = [point for point in points if (point["work"], point["axis"]) == (work, name)]
            if not line:
                continue
            label, colour = LINES[work]
            values = [point["value"] for point in line]
            axes.plot(values, [point["milliseconds"] for point in line], "o-", color=colour, markersize=4, label=label)
            axes.plot(values, [point["floor_ms"] for point in line], "--", color=colour, linewidth=1)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel(TITLES[name])
        axes.grid(alpha=0.3)
    all_axes[0].set_ylabel("milliseconds (dashed: floor)")
    all_axes[0].legend(frameon=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130)
