"""Pictures; they need the extra `plot`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from vlhmm.text.answers import Explanation

MIN_EDGE = 0.02
"""Moves between states that are less likely than this are not drawn."""


def learning_curve(log: Sequence[Mapping[str, Any]], path: Path, title: str) -> None:
    """Training and validation perplexity against tokens seen, as PNG."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.ticker import EngFormatter, NullFormatter, ScalarFormatter
    except ImportError:
        raise ValueError('a picture needs matplotlib: pip install "vlhmm[plot]"') from None

    # Where states are given, the likelihood is that of text and states, and of another size.
    steps = [record for record in log if record["kind"] == "step" and "objective" not in record]
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


def trellis(explanation: Explanation, path: Path, name: Callable[[str], str] = str) -> None:
    """States against words as PNG: how likely each state is, and the moves between them; `name` shows a token."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import Rectangle
    except ImportError:
        raise ValueError('a picture needs matplotlib: pip install "vlhmm[plot]"') from None

    tokens = explanation.tokens
    # Rows by block, in the order of the words: the states that can emit one word stand together.
    named = {one.state.state: one.state for token in tokens for one in token.states}
    blocks = list(dict.fromkeys(state.block for state in named.values()))
    order = sorted(named.values(), key=lambda state: (blocks.index(state.block), state.state))
    row_of = {state.state: row for row, state in enumerate(order)}
    heat = [[0.0] * len(tokens) for _ in order]
    edges = []
    for column, token in enumerate(tokens):
        for one in token.states:
            row = row_of[one.state.state]
            heat[row][column] = one.prob
            if column + 1 < len(tokens):
                edges += [
                    (column, row, row_of[after.state], one.prob * prob)
                    for after, prob in one.next
                    if after.state in row_of
                ]
    figure = Figure(figsize=(3.6 + 0.85 * len(tokens), 1.4 + 0.24 * len(order)), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    image = axes.imshow(heat, cmap="Blues", vmin=0, aspect="auto")
    for column, before, after, prob in edges:
        if prob >= MIN_EDGE:
            strength = min(1.0, 0.2 + 2 * prob)
            axes.plot([column, column + 1], [before, after], color="#c8442b", alpha=strength, linewidth=0.6 + 4 * prob)
    for column, token in enumerate(tokens):
        possible = {one.state.block for one in token.states}
        if len(possible) > 1:
            # Not a partition: the states of a word are no block.
            continue
        block = possible.pop()
        rows = [row for row, state in enumerate(order) if state.block == block]
        corner, height = (column - 0.48, rows[0] - 0.46), len(rows) - 0.08
        axes.add_patch(Rectangle(corner, 0.96, height, fill=False, edgecolor="#606060", linewidth=0.8))
        axes.text(column + 0.45, rows[0] - 0.4, f"block {block}", fontsize=5, ha="right", va="top", color="#606060")
    axes.set_yticks(
        range(len(order)),
        [_plain(f"{' '.join(name(word) for word, _ in state.words[:3])}  {state.state}") for state in order],
        fontsize=7,
    )
    axes.set_xticks(
        range(len(tokens)), [_plain(f"{name(token.token)}\n{token.surprisal:.1f}") for token in tokens], fontsize=8
    )
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    axes.set_xlabel("the words, with their surprisal in nats; the states, with the words they emit most", fontsize=8)
    figure.colorbar(image, ax=axes, label="p(state | text)", shrink=min(1.0, 8 / len(order) + 0.2))
    figure.savefig(path, dpi=140)


def _plain(label: str) -> str:
    """A dollar is a dollar, not the beginning of a formula."""
    return label.replace("$", r"\$")
