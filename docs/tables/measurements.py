"""Tables of measurements, from bench/results and experiments/control/results."""

from __future__ import annotations

from typing import Any

from tables.common import ROOT, markdown_table, read_json

_GOALS_MS = {
    ("W1", 512): 0.35,
    ("W1", 1024): 0.6,
    ("W1", 4096): 2.0,
    ("W1", 16384): 13.5,
    ("W2", 512): 1.2,
    ("W2", 1024): 1.7,
    ("W2", 4096): 5.0,
    ("W3", 32768): 2.0,
    ("W3b", 65536): 1.0,
    ("W4", 512): 1.0,
    ("W4", 4096): 40.0,
    ("W5", 512): 0.9,
    ("W5", 1024): 1.4,
}
"""Targets in milliseconds on one H200, set before they were measured."""
_MAX_EDITIONS_RATIO = 1.05
"""The goal: at most 5 % slower than version 0.1."""


def _milliseconds(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def bench_h200() -> str:
    rows = []
    for row in read_json("bench/results/h200.json")["rows"]:
        times = {result["engine"]: result for result in row["results"]}
        ours = times["vlhmm"]
        loop = times.get("plain GEMM loop", {}).get("median_ms")
        others = [
            result["median_ms"]
            for engine, result in times.items()
            if engine not in ("vlhmm", "plain GEMM loop") and result["median_ms"] is not None
        ]
        goal = _GOALS_MS[row["work"], row["sizes"]["states"]]
        rows.append(
            [
                f"{row['work']} {row['title']}",
                f"{row['sizes']['states']:,}",
                f"**{_milliseconds(ours['median_ms'])}**",
                _milliseconds(loop),
                _milliseconds(min(others, default=None)),
                _milliseconds(row["floor_ms"]),
                f"{ours['ratio_to_best_peer']:.2f}",
                f"{ours['ratio_to_floor']:.1f}",
                f"{goal:g}" + ("" if ours["median_ms"] <= goal else " (missed)"),
            ]
        )
    headings = [
        "work",
        "states",
        "vlhmm",
        "plain GEMM loop",
        "dynamax, or the original's method",
        "floor",
        "/ best peer",
        "/ floor",
        "goal",
    ]
    return markdown_table(headings, rows)


def bench_editions() -> str:
    """Version 0.1 and this one in turns on one H200, twice each."""
    runs = [read_json(f"bench/results/restructuring/{name}.json") for name in ("old-1", "old-2", "new-1", "new-2")]
    rows = []
    for versions in zip(*(run["rows"] for run in runs), strict=True):
        row = versions[0]
        medians = [result["median_ms"] for version in versions for result in version["results"]]
        ratio = sum(medians[2:]) / sum(medians[:2])
        rows.append(
            [
                f"{row['work']} {row['title']}",
                f"{row['sizes']['states']:,}",
                *(f"{median:.3f}" for median in medians),
                f"{ratio:.2f}" + ("" if ratio <= _MAX_EDITIONS_RATIO else " (missed)"),
            ]
        )
    headings = [
        "work",
        "states",
        "0.1, first run, ms",
        "0.1, second",
        "this version, first",
        "second",
        "ratio of means",
    ]
    return markdown_table(headings, rows)


def bench_cpu() -> str:
    engines = ("vlhmm", "plain GEMM loop", "dynamax", "hmmlearn", "pomegranate")
    rows = []
    for row in read_json("bench/results/cpu.json")["rows"]:
        times = {result["engine"]: result["median_ms"] for result in row["results"]}
        rows.append(
            [
                f"{row['work']} {row['title']}",
                f"{row['sizes']['states']:,}",
                *(_milliseconds(times.get(engine)) for engine in engines),
                _milliseconds(row["floor_ms"]),
                f"{times['vlhmm'] / times['dynamax']:.2f}" if times.get("dynamax") else "-",
            ]
        )
    return markdown_table(["work", "states", *engines, "floor", "vlhmm / dynamax"], rows)


def bench_cpu_other() -> str:
    """Work beside queries; a run that did not measure it has no rows."""
    rows = [
        [
            one["name"],
            one["message"] or _milliseconds(one["milliseconds"]),
            f"{one['compared_with']}: {_milliseconds(one['other_ms'])}" if one["other_ms"] else "",
            f"{one['milliseconds'] / one['other_ms']:.2f}" if one["milliseconds"] and one["other_ms"] else "",
            one["goal"] + ("" if one["met"] is not False else " (missed)"),
        ]
        for one in read_json("bench/results/cpu.json").get("other", [])
    ]
    return markdown_table(["work", "vlhmm, ms", "compared with, ms", "ratio", "goal"], rows)


def bench_grid() -> str:
    """The grid of small HMMs: how many cells are above the fastest peer; a run that did not measure it has no rows."""
    ratios: dict[str, list[float]] = {}
    for cell in read_json("bench/results/cpu.json").get("grid", []):
        if cell["ours_ms"] and cell["peer_ms"]:
            ratios.setdefault(cell["work"], []).append(cell["ours_ms"] / cell["peer_ms"])
    rows = (
        [
            work,
            str(len(found)),
            f"{sorted(found)[len(found) // 2]:.2f}",
            f"{max(found):.2f}",
            str(sum(one > 1 for one in found)),
        ]
        for work, found in ratios.items()
    )
    return markdown_table(["work", "sizes", "median ratio to the fastest peer", "largest", "above 1"], rows)


def bench_epochs() -> str:
    rows = (
        [
            epoch["title"],
            f"{epoch['seconds']:.1f}",
            f"{epoch['tokens_per_second']:,.0f}",
            f"{epoch['times_faster_than_the_paper']:.0f}",
        ]
        for epoch in read_json("bench/results/ptb.json")["epochs"]
    )
    return markdown_table(["epoch", "seconds", "tokens / s", "times the speed of the paper's 433 s"], rows)


def bench_errors() -> str:
    errors: dict[tuple[str, int], dict[str, str]] = {}
    for row in read_json("bench/results/checks.json")["errors"]:
        missed = " (missed)" if row["worst"] > row["allowed"] else ""
        errors.setdefault((row["hmm"], row["states"]), {})[row["precision"]] = f"{row['worst']:.1e}{missed}"
    allowed = {row["precision"]: row["allowed"] for row in read_json("bench/results/checks.json")["errors"]}
    headings = ["HMM", "states", *(f"{precision} (at most {limit:.0e})" for precision, limit in allowed.items())]
    rows = (
        [hmm, f"{states:,}", *(found[precision] for precision in allowed)] for (hmm, states), found in errors.items()
    )
    return markdown_table(headings, rows)


def _gib(number: float | None) -> str:
    return "" if number is None else f"{number / 2**30:.2f}"


def bench_memory() -> str:
    rows = (
        [peak["work"], _gib(peak["bytes"]), _gib(peak["allowed"])]
        for peak in read_json("bench/results/checks.json")["memory"]
    )
    return markdown_table(["work", "GiB", "at most"], rows)


def bench_first_step() -> str:
    rows = (
        [
            step["work"],
            "compiled" if step["compiled"] else "from the cache",
            f"{step['first_step']:.1f}",
            f"{step['process']:.1f}",
        ]
        for step in read_json("bench/results/first.json")["first_steps"]
    )
    return markdown_table(["work", "kernels", "first step, s", "whole process, s"], rows, left=2)


def bench_largest() -> str:
    rows = (
        [
            found["work"],
            f"{found['states']:,}",
            _gib(found["bytes"]),
            _milliseconds(found["milliseconds"]),
            "memory" if "out of memory" in found["ended"] else "time",
        ]
        for found in read_json("bench/results/scaling.json")["largest"]
    )
    return markdown_table(["work", "states", "GiB", "ms", "ended by"], rows)


_CONTROL = {512: "experiments/control/results/smollm2-512.json", 2048: "experiments/control/results/smollm2-2048.json"}


def control() -> str:
    """Keyword constraints on the text of SmolLM2: guided generation against the alternatives."""
    results = {states: read_json(file)["methods"] for states, file in _CONTROL.items()}
    methods = {f"guided, HMM of {states:,} states": found["guided"] for states, found in results.items()}
    methods |= {name: method for name, method in results[512].items() if name != "guided"}
    rows = (
        [
            name,
            f"{method['outputs']:,}",
            f"{100 * method['satisfied']:.1f} %",
            f"{100 * method['sets_solved']:.1f} %",
            f"{method['log_likelihood']:.3f} ± {method['standard_error']:.3f}",
            f"{method['log_likelihood_shared']:.3f}",
            f"{method['tokens']:.1f}",
        ]
        for name, method in methods.items()
    )
    headings = ["method", "outputs", "satisfied", "sets solved", "log-likelihood per token", "on shared sets", "tokens"]
    return markdown_table(headings, rows)


def control_calibration() -> str:
    rows = []
    for states, file in _CONTROL.items():
        found = read_json(file)["calibration"]
        rows.append(
            [
                f"{states:,}",
                f"{found['error']:.4f}",
                f"{found['brier']:.4f}",
                f"{found['brier_of_mean']:.4f}",
                f"{found['num']:,}",
            ]
        )
    return markdown_table(["states", "mean absolute error", "Brier score", "Brier score of the mean", "cases"], rows)


def control_cost() -> str:
    rows = []
    costs = [("one H200", file) for file in _CONTROL.values()]
    costs += [("two CPU cores", f"experiments/control/results/cost-cpu-{states}.json") for states in _CONTROL]
    for (device, file), states in zip(costs, [*_CONTROL, *_CONTROL], strict=True):
        cost = read_json(file)["overhead"]
        rows.append(
            [
                device,
                f"{states:,}",
                f"{cost['step_ms']:.1f}",
                f"{cost['guided_step_ms']:.1f}",
                f"{100 * cost['part']:.1f} %",
            ]
        )
    return markdown_table(["device", "states", "model step, ms", "guided step, ms", "overhead"], rows)


def control_distillation() -> str:
    rows = []
    for states in _CONTROL:
        found = read_json(f"experiments/control/results/distill-{states}.json")
        held_out = found["held_out"]
        rows.append(
            [
                f"{states:,}",
                f"{held_out['hmm']:.1f}",
                f"{held_out['unigram']:,.0f}",
                f"{held_out['teacher']:.1f}",
                f"{found['train_seconds']:.0f}",
            ]
        )
    return markdown_table(["states", "HMM", "unigram", "SmolLM2 given the prompt", "training, s"], rows)


def own_text() -> str:
    rows = []
    for found in _own_text_results():
        hmm, same = (found["bits_per_byte"][name]["test"] for name in ("HMM", "Kneser-Ney 5-gram"))
        best = found["kneser_ney_best"]
        rows.append(
            [
                f"{found['megabytes']:g} MB",
                f"{found['vocab_size']:,}",
                f"{found['bits_per_byte']['unigram']['test']:.3f}",
                f"{same:.3f}",
                f"{best['test']:.3f} ({best['vocab_size']:,})",
                f"{hmm:.3f}",
                _percent(hmm, same),
                _percent(hmm, best["test"]),
            ]
        )
    headings = [
        "training text",
        "pieces",
        "unigram",
        "KN 5-gram, same pieces",
        "KN 5-gram, its best pieces",
        "HMM",
        "/ same pieces",
        "/ best pieces",
    ]
    return markdown_table(headings, rows)


def own_text_cost() -> str:
    rows = (
        [
            f"{found['megabytes']:g} MB",
            f"{found['train_tokens']:,}",
            f"{found['num_states']:,}",
            f"{found['num_parameters'] / 1e6:.2f}M",
            str(found["recipe"]["train"]["epochs"]),
            f"{found['cpu_seconds']:,.0f}",
            found["device"],
        ]
        for found in _own_text_results()
    )
    headings = ["training text", "tokens", "states", "parameters", "epochs", "CPU seconds in total", "device"]
    return markdown_table(headings, rows)


def _own_text_results() -> list[dict[str, Any]]:
    folder = ROOT / "experiments/ours/own-text"
    found = [read_json(str(path.relative_to(ROOT))) for path in folder.glob("*.json")]
    return sorted(found, key=lambda result: float(result["megabytes"]))


def serve_load(device: str) -> str:
    """Load on the server on a "cpu" or one "h200"; a machine that was not measured yet has no rows."""
    path = f"bench/results/serve-{device}.json"
    found = read_json(path) if (ROOT / path).is_file() else {"serve": []}
    loads = [*found["serve"], *(soak["load"] for soak in found.get("memory", []))]
    rows = [
        [
            f"{load['clients']:,}",
            f"{load['seconds']:,.0f}",
            f"{load['requests_per_second']:,.1f}",
            f"{load['tokens_per_second']:,.0f}",
            *("-" if load[name] is None else f"{load[name]:,.0f}" for name in ("p50_ms", "p95_ms", "p99_ms")),
            ", ".join(f"{status}: {count:,}" for status, count in sorted(load["statuses"].items())),
        ]
        for load in loads
    ]
    headings = ["clients", "s", "requests / s", "tokens / s", "p50 ms", "p95 ms", "p99 ms", "answers by status"]
    lines = markdown_table(headings, rows or [["not measured yet", *["-"] * 7]])
    for soak in found.get("memory", []):
        lines += (
            f"\nMemory of the server over {soak['minutes']:g} minutes of {soak['load']['clients']:,} clients: "
            f"{soak['first_mib']:,.0f} MiB after a tenth of them, {soak['last_mib']:,.0f} MiB at the end, "
            f"{soak['highest_mib']:,.0f} MiB at most.\n"
        )
    return lines


def _percent(ours: float, theirs: float) -> str:
    return f"{100 * (ours / theirs - 1):+.1f} %"


_STEP_GOALS_MS = {"W3b": 0.8, "W3c": 1.5, "W3d": 3.0}
"""Of the second round: targets in milliseconds on one H200, set before they were measured."""


def bench_steps() -> str:
    """Block-factored training steps on one H200, by `bench profile`."""
    rows = []
    for one in read_json("bench/results/profile-h200.json")["profiles"]:
        sizes = one["sizes"]
        if not one["work"].startswith("W3"):
            continue
        floor, goal = sum(one["parts_ms"].values()), _STEP_GOALS_MS.get(one["work"])
        missed = "" if goal is None or one["in_a_row_ms"] <= goal else " (missed)"
        rows.append(
            [
                one["work"],
                f"{sizes['num_blocks']:,} x {sizes['states_per_block']:,}",
                f"{one['in_a_row_ms']:.2f}",
                f"{floor:.2f}",
                f"{one['in_a_row_ms'] / floor:.1f}",
                "-" if goal is None else f"{goal:g}{missed}",
            ]
        )
    return markdown_table(["step", "blocks x states", "ms", "floor, ms", "times the floor", "goal, ms"], rows)
