"""Tables of steps over several ranks, measured and predicted, from bench/results."""

from __future__ import annotations

import sys
from typing import Any

from tables.common import ROOT, markdown_table, read_json

sys.path.insert(0, str(ROOT))

from bench.scaling_model import CLUSTERS, enough_tokens, predicted

CPU, GPU = "bench/results/distributed-cpu.json", "bench/results/distributed-h200.json"
EFFICIENCIES = (0.5, 0.8, 0.9)
_TITLES = {"W3b": "2^16 states in 128 blocks", "W3e": "best-ptb", "W3c": "2^17 states in 512 blocks"}


def distributed_check() -> str:
    found = read_json(CPU)
    steps = {(step["ranks"], step["tokens"]): step for step in found["steps"]}
    rows = []
    for check in found["checks"]:
        one, two = steps[1, check["tokens"]], steps[2, check["tokens"]]
        rows.append(
            [
                f"{check['tokens']:,}",
                f"{one['alone_ms']:.1f}",
                f"{two['alone_ms']:.1f}",
                f"{check['measured_ms']:.1f}",
                f"{check['predicted_ms']:.1f}",
                f"{100 * check['error']:+.1f} %",
                f"{one['tokens_per_second']:,.0f}",
                f"{two['tokens_per_second']:,.0f}",
            ]
        )
    headings = [
        "tokens of each",
        "1 process, ms",
        "2 alone, ms",
        "2 together, ms",
        "predicted",
        "off by",
        "tokens/s, 1",
        "2",
    ]
    return markdown_table(headings, rows, left=0)


def distributed_predicted() -> str:
    rows = []
    for work, steps, num_bytes, copies in _measured():
        for cluster in CLUSTERS:
            for (tokens, milliseconds), copy_ms in zip(steps, copies, strict=True):
                row = predicted(cluster, tokens, milliseconds, num_bytes, copy_ms)
                rows.append(
                    [
                        _TITLES[work],
                        cluster.name,
                        f"{tokens:,}",
                        f"{row.compute_ms:.2f}",
                        f"{row.reduce_ms:.2f}",
                        f"{100 * row.efficiency:.0f} %",
                    ]
                )
    return markdown_table(["model", "machines", "tokens a GPU", "step, ms", "sum, ms", "efficiency"], rows, left=2)


def distributed_enough() -> str:
    """From how many tokens on a step of a GPU has some efficiency, as far as it was measured."""
    rows = []
    for work, steps, num_bytes, copies in _measured():
        for cluster in CLUSTERS:
            needed = [enough_tokens(cluster, steps, num_bytes, max(copies), one) for one in EFFICIENCIES]
            shown = [_tokens(tokens, steps[0][0], steps[-1][0]) for tokens in needed]
            rows.append([_TITLES[work], cluster.name, *shown])
    headings = [
        "model",
        "machines",
        *(f"tokens a GPU for {efficiency:.0%}".replace("%", " %") for efficiency in EFFICIENCIES),
    ]
    return markdown_table(headings, rows, left=2)


def _tokens(tokens: float, least: int, most: int) -> str:
    if tokens <= least:
        return f"{least:,} or fewer"
    return f"{tokens:,.0f}" + (" (beyond what was measured)" if tokens > most else "")


def _measured() -> list[tuple[str, list[tuple[int, float]], int, list[float]]]:
    """For each work its steps (tokens, milliseconds), the bytes of its gradients, and the copies of each step."""
    if (ROOT / GPU).is_file():
        every = read_json(GPU)["gpu_steps"]
        works = list(dict.fromkeys(step["work"] for step in every))
        found = {work: [step for step in every if step["work"] == work] for work in works}
        return [
            (
                work,
                [(step["tokens"], step["plain_ms"]) for step in steps],
                steps[0]["bytes"],
                [step["copy_ms"] for step in steps],
            )
            for work, steps in found.items()
        ]
    return [_from_scaling()]


def _from_scaling() -> tuple[str, list[tuple[int, float]], int, list[float]]:
    """W3b against the batch: what was measured before there were several ranks."""
    found = read_json("bench/results/scaling.json")
    points = [point for point in found["points"] if (point["work"], point["axis"]) == ("W3b", "batch")]
    steps = [(point["sizes"]["batch"] * point["sizes"]["window"], point["milliseconds"]) for point in points]
    num_bytes = next(int(model["bytes"]) for model in read_json(CPU)["models"] if model["work"] == "W3b")
    # Read once, written once.
    copy_ms = 2e3 * num_bytes / found["rates"]["bytes_per_second"]
    return "W3b", steps[1:], num_bytes, [copy_ms] * len(steps[1:])


def distributed_overhead() -> str:
    steps: list[dict[str, Any]] = read_json(GPU)["gpu_steps"] if (ROOT / GPU).is_file() else []
    rows = [
        [
            _TITLES[step["work"]],
            f"{step['tokens']:,}",
            f"{step['plain_ms']:.3f}",
            f"{step['distributed_ms']:.3f}",
            f"{100 * step['overhead']:+.1f} %",
            f"{step['copy_ms']:.3f}",
            f"{step['bytes'] / 1e6:.1f}",
        ]
        for step in steps
    ]
    headings = ["model", "tokens", "plain step, ms", "in a world of one, ms", "overhead", "copies, ms", "MB summed"]
    return markdown_table(headings, rows or [["not measured yet", *["-"] * 6]])
