"""Figures of a table: its points beside the paper's, and the learning curves of its rows. They need the extra `plot`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from experiments.quantities import QUANTITIES
from experiments.show import ShownRow, ShownTable

COLOURS = ("#c8442b", "#2b6cb0", "#2f855a", "#b7791f", "#6b46c1", "#4a5568")
ROUNDS = (("o", "-"), ("^", "--"), ("D", "-."))
"""Markers and lines: series that share a colour differ in these."""
NAME_SHIFT = 0.06
"""Between series that stand under the same name."""
FAR_APART = 4.0
"""Numbers of which the largest is so many times the smallest stand on a logarithmic axis, where also the small ones can be read."""


def draw_points(shown: ShownTable, path: Path) -> None:
    """The quantity of the figure for every row that has a place in it; seeds as bars from least to most."""
    spec = shown.table.figure
    if spec is None:
        raise ValueError(f"{shown.table.path} has no [figure]: name its x and y there")
    figure, axes = _axes()
    names = list(dict.fromkeys(row.row.x for row in shown.rows if isinstance(row.row.x, str)))
    placed = [_Placed(place, row) for row in shown.rows if (place := _place(row, spec.measured, names)) is not None]
    if not any(spec.y in one.row.row.paper or one.row.cells[spec.y].ours for one in placed):
        raise ValueError(f"0 points of {shown.table.path} have a number: run a row first")
    has_paper = any(spec.y in one.row.row.paper for one in placed)
    every = list(dict.fromkeys(one.row.row.series for one in placed))
    for number, series in enumerate(every):
        rows = sorted((one for one in placed if one.row.row.series == series), key=lambda one: one.place)
        colour, (marker, line) = COLOURS[number % len(COLOURS)], ROUNDS[number // len(COLOURS) % len(ROUNDS)]
        if names:
            # Names have no order that a line could follow; beside each other, bars can be told apart.
            shift = NAME_SHIFT * (number - (len(every) - 1) / 2)
            rows = [replace(one, place=one.place + shift) for one in rows]
        _draw_paper(axes, rows, spec.y, f"paper, {series}", colour)
        label = f"ours, {series}" if has_paper else series
        _draw_ours(axes, rows, spec.y, label, colour, marker, "none" if names else line)
    if spec.base is not None:
        axes.set_xscale("log", base=spec.base)
    if names:
        axes.set_xticks(range(len(names)), names)
        axes.set_xlim(-0.5, len(names) - 0.5)
    elif spec.measured is None:
        places = sorted({one.place for one in placed})
        axes.set_xticks(places)
        if spec.base != 2 or any(math.frexp(place)[0] != 0.5 for place in places):
            # Only powers of two are written as such.
            axes.set_xticklabels([_short(place) for place in places])
    axes.set_xlabel(spec.x)
    axes.set_ylabel(QUANTITIES[spec.y].heading)
    _stretch(axes, *axes.dataLim.intervaly)
    _finish(figure, axes, shown.table.title, path)


@dataclass(frozen=True)
class _Placed:
    place: float
    row: ShownRow


def _place(row: ShownRow, measured: str | None, names: list[str]) -> float | None:
    """Where a row stands on the axis: by a quantity, by its name's number, or by its own number."""
    if measured is not None:
        ours = row.cells[measured].ours
        return None if ours is None else ours.mean
    return float(names.index(row.row.x)) if isinstance(row.row.x, str) else row.row.x


def _short(place: float) -> str:
    return f"{place / 1e6:.3g}M" if place >= 1e6 else f"{place:g}"


def draw_curves(shown: ShownTable, path: Path) -> None:
    """Validation perplexity against tokens seen, for every row that was trained."""
    figure, axes = _axes()
    trained = [row for row in shown.rows if any(result.curve for result in row.results)]
    if not trained:
        raise ValueError(f"0 rows of {shown.table.path} have a learning curve: run one first")
    styles = ("-", "--", ":")
    for number, row in enumerate(trained):
        for result in row.results:
            axes.plot(
                [point["tokens"] for point in result.curve],
                [point["valid"] for point in result.curve],
                color=COLOURS[number % len(COLOURS)],
                linestyle=styles[number // len(COLOURS) % len(styles)],
                linewidth=1.2,
                label=row.row.name if result is row.results[0] else None,
            )
    _limit(axes, trained)
    axes.xaxis.set_major_formatter(lambda tokens, _: f"{tokens / 1e6:g}M")
    axes.set_xlabel("tokens seen in training")
    axes.set_ylabel(QUANTITIES["valid"].heading)
    _finish(figure, axes, shown.table.title, path)


def _draw_paper(axes: Any, rows: list[_Placed], quantity: str, label: str, colour: str) -> None:
    points = [(one.place, one.row.row.paper[quantity]) for one in rows if quantity in one.row.row.paper]
    if points:
        axes.plot(
            *zip(*points, strict=True),
            color=colour,
            marker="s",
            markerfacecolor="none",
            linestyle=":",
            label=label.removesuffix(", "),
        )


def _draw_ours(axes: Any, rows: list[_Placed], quantity: str, label: str, colour: str, marker: str, line: str) -> None:
    points = [(one.place, ours) for one in rows if (ours := one.row.cells[quantity].ours) is not None]
    if points:
        means = [ours.mean for _, ours in points]
        axes.errorbar(
            [place for place, _ in points],
            means,
            yerr=[[ours.mean - ours.low for _, ours in points], [ours.high - ours.mean for _, ours in points]],
            color=colour,
            linestyle=line,
            marker=marker,
            markersize=5,
            capsize=3,
            label=label.removesuffix(", "),
        )


def _limit(axes: Any, rows: list[ShownRow]) -> None:
    """Leaves the first steps out of sight: they are far above all that one wants to compare."""
    lowest = [min(point["valid"] for point in result.curve) for row in rows for result in row.results if result.curve]
    axes.set_ylim(0.95 * min(lowest), 1.4 * max(lowest))
    _stretch(axes, min(lowest), max(lowest))


def _stretch(axes: Any, lowest: float, highest: float) -> None:
    from matplotlib.ticker import LogLocator

    if not 0 < FAR_APART * lowest < highest:
        return
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:,g}")
    axes.yaxis.set_minor_formatter(lambda *_: "")


def _axes() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError('a picture needs matplotlib: pip install "vlhmm[plot]"') from None
    figure = Figure(figsize=(7, 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    return figure, figure.subplots()


def _finish(figure: Any, axes: Any, title: str, path: Path) -> None:
    axes.set_title(title, fontsize=10)
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(path, dpi=140)
