"""What the experiment found: one record, one table, one picture."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.table import Table

from experiments.control.methods import Output
from vlhmm.provenance import commit_of_source, device_name


@dataclass(frozen=True)
class Method:
    """A way to get texts, summed up."""

    outputs: int
    satisfied: float
    """The part of the outputs that satisfy the constraint."""
    sets_solved: float
    """The part of the keyword sets with at least one such output."""
    log_likelihood: float | None
    """Per token by the language model alone: the mean over the outputs counted, each as much as any other."""
    standard_error: float | None
    log_likelihood_shared: float | None
    """The same on the keyword sets alone for which rejection found a text."""
    tokens: float | None
    """Of an output, on average."""
    seconds: float


def summed_up(
    outputs: Sequence[Output], num_sets: int, seconds: float, shared: set[int], *, only_satisfied: bool = False
) -> Method:
    """`only_satisfied`: likelihood and length are those of the outputs that a user would keep."""
    counted = [output for output in outputs if output.satisfied or not only_satisfied]
    likelihoods = [output.log_likelihood for output in counted]
    on_shared = [output.log_likelihood for output in counted if output.number in shared]
    return Method(
        len(outputs),
        sum(output.satisfied for output in outputs) / len(outputs),
        len({output.number for output in outputs if output.satisfied}) / num_sets,
        statistics.fmean(likelihoods) if likelihoods else None,
        statistics.stdev(likelihoods) / math.sqrt(len(likelihoods)) if len(likelihoods) > 1 else None,
        statistics.fmean(on_shared) if on_shared else None,
        statistics.fmean(len(output.tokens) for output in counted) if counted else None,
        seconds,
    )


def method_table(methods: Mapping[str, Method]) -> Table:
    table = Table(box=None, pad_edge=False)
    for column in (
        "method",
        "outputs",
        "satisfied",
        "sets solved",
        "log-lik./token",
        "on shared sets",
        "tokens",
        "seconds",
    ):
        table.add_column(column, justify="left" if column == "method" else "right")
    for name, method in methods.items():
        table.add_row(
            name,
            f"{method.outputs:,}",
            f"{100 * method.satisfied:.1f} %",
            f"{100 * method.sets_solved:.1f} %",
            "-" if method.log_likelihood is None else f"{method.log_likelihood:.3f} ± {method.standard_error or 0:.3f}",
            "-" if method.log_likelihood_shared is None else f"{method.log_likelihood_shared:.3f}",
            "-" if method.tokens is None else f"{method.tokens:.1f}",
            f"{method.seconds:.1f}",
        )
    return table


def calibration_plot(calibration: Mapping[str, Any], path: Path, num_states: int) -> None:
    """Observed against predicted, with the number of cases below; `calibration` as it stands in results.json."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise ValueError('a picture needs matplotlib: pip install "vlhmm[plot]"') from None

    figure = Figure(figsize=(4.6, 5.4), layout="constrained")
    FigureCanvasAgg(figure)
    above, below = figure.subplots(2, 1, height_ratios=(3, 1), sharex=True)
    bins = calibration["bins"]
    predicted, observed = [each["predicted"] for each in bins], [each["observed"] for each in bins]
    # Twice the standard error of a frequency.
    spread = [
        2 * math.sqrt(max(each["observed"] * (1 - each["observed"]), 1 / each["num"]) / each["num"]) for each in bins
    ]
    above.plot([0, 1], [0, 1], color="#999999", linewidth=1, linestyle="--")
    above.errorbar(predicted, observed, yerr=spread, color="#c8442b", marker="o", markersize=4)
    above.set_ylabel("frequency in the language model's texts")
    above.set_title(
        f"{num_states:,} states, {len(calibration['words'])} words, {calibration['num']:,} cases", fontsize=10
    )
    above.set_xlim(0, 1)
    above.set_ylim(0, 1)
    above.grid(alpha=0.25)
    below.bar(predicted, [each["num"] for each in bins], width=0.06, color="#9db8d2")
    below.set_yscale("log")
    below.set_ylabel("cases")
    below.set_xlabel("p(constraint | prefix) by the HMM")
    figure.savefig(path, dpi=140)


def about(device: torch.device, command: str, seconds: float, seed: int) -> dict[str, Any]:
    return {
        "command": command,
        "commit": commit_of_source(),
        "device": device_name(device),
        "seconds": round(seconds, 1),
        "seed": seed,
        "torch": torch.__version__,
    }
