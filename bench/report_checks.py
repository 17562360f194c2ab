"""Errors, memory, first steps, scaling, trainings side by side and constraints as tables."""

from __future__ import annotations

from math import log

from rich.markup import escape
from rich.table import Table

from bench.beside import Beside
from bench.constraints import Compiled
from bench.cpu import Extra
from bench.errors import ErrorRow
from bench.first_step import FirstStep
from bench.grid import Cell
from bench.largest import Largest
from bench.memory import Peak
from bench.scaling import Point
from bench.serve import Load


def error_table(rows: list[ErrorRow]) -> Table:
    shown = _table(
        "error of log p of 64 tokens against float64, relative, the worst sequence",
        "hmm",
        "states",
        "precision",
        "error",
        "allowed",
        "",
    )
    for row in rows:
        verdict = _verdict(row.worst, row.allowed)
        shown.add_row(row.hmm, f"{row.states:,}", row.precision, f"{row.worst:.1e}", f"{row.allowed:.0e}", verdict)
    return shown


def compiled_table(rows: list[Compiled]) -> Table:
    shown = _table("seconds until a constraint is compiled", "constraint", "tokens", "seconds", "allowed", "", "result")
    for row in rows:
        result = row.refused or f"{row.states:,} states x {row.classes:,} classes"
        verdict = _verdict(row.seconds, row.allowed)
        tokens = f"{row.tokens:,} {row.vocabulary}"
        shown.add_row(escape(row.constraint), tokens, f"{row.seconds:.2f}", f"{row.allowed:g}", verdict, result[:80])
    return shown


def load_table(rows: list[Load]) -> Table:
    columns = ("clients", "requests/s", "tokens/s", "p50 ms", "p95 ms", "p99 ms", "answers")
    shown = _table("load on the server, over loopback", *columns)
    for row in rows:
        latencies = ("-" if one is None else f"{one:,.0f}" for one in (row.p50_ms, row.p95_ms, row.p99_ms))
        answers = ", ".join(f"{status}: {count:,}" for status, count in sorted(row.statuses.items()))
        rates = (f"{row.requests_per_second:,.1f}", f"{row.tokens_per_second:,.0f}")
        shown.add_row(f"{row.clients:,}", *rates, *latencies, answers)
    return shown


def grid_table(rows: list[Cell]) -> Table:
    shown = _table(
        "small HMMs on a CPU, milliseconds", "work", "states", "texts", "length", "vlhmm", "fastest peer", "", "ratio"
    )
    for row in rows:
        ours, theirs, ratio = ("-" if one is None else f"{one:.3g}" for one in (row.ours_ms, row.peer_ms, row.ratio))
        sizes = (f"{row.states:,}", f"{row.batch:,}", f"{row.length:,}")
        shown.add_row(row.work, *sizes, ours, theirs, row.peer or "-", ratio)
    return shown


def extra_table(rows: list[Extra]) -> Table:
    shown = _table("other work on a CPU, milliseconds", "work", "vlhmm", "compared with", "", "ratio", "goal", "")
    for row in rows:
        times = [row.message if one is None else f"{one:,.4g}" for one in (row.milliseconds, row.other_ms)]
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        verdict = "" if row.met is None else ("met" if row.met else "missed")
        shown.add_row(row.name, times[0], row.compared_with, times[1], ratio, row.goal, verdict)
    return shown


def peak_table(rows: list[Peak]) -> Table:
    shown = _table("memory at the highest", "work", "precision", "GiB", "allowed", "", "with")
    for row in rows:
        figures = (_gib(row.bytes), _gib(row.allowed), _verdict(row.bytes, row.allowed))
        shown.add_row(row.work, row.precision, *figures, row.message)
    return shown


def first_step_table(rows: list[FirstStep]) -> Table:
    shown = _table(
        "seconds of the first training step of a process",
        "work",
        "precision",
        "kernels",
        "first step",
        "until captured",
        "whole process",
        "allowed",
        "",
    )
    for row in rows:
        shown.add_row(
            row.work,
            row.precision,
            "compiled" if row.compiled else "from disk",
            row.message or _seconds(row.first_step),
            _seconds(row.until_captured),
            _seconds(row.process),
            f"{row.allowed:.0f}",
            _verdict(row.first_step, row.allowed),
        )
    return shown


def point_table(points: list[Point]) -> Table:
    shown = _table(
        "cost against one size, the others as in the work",
        "work",
        "precision",
        "size",
        "value",
        "ms",
        "floor",
        "exponent",
    )
    for point in points:
        shown.add_row(
            point.work,
            point.precision,
            point.axis,
            f"{point.value:,}",
            point.message if point.milliseconds is None else f"{point.milliseconds:.3g}",
            f"{point.floor_ms:.2g}",
            _exponent(point, points),
        )
    return shown


def largest_table(rows: list[Largest]) -> Table:
    shown = _table("the most states that fit, doubled", "work", "precision", "states", "GiB", "ms", "ended by")
    for row in rows:
        shown.add_row(row.work, row.precision, f"{row.states:,}", _gib(row.bytes), f"{row.milliseconds:.3g}", row.ended)
    return shown


def beside_table(rows: list[Beside]) -> Table:
    shown = _table(
        "ms a step of trainings side by side",
        "preset",
        "states",
        "precision",
        "trainings",
        "programs wait",
        "ms",
        "busy cores",
    )
    for row in rows:
        waits = "yes" if row.waits else "no"
        times = (f"{row.milliseconds:.3g}", f"{row.cores:.1f}")
        shown.add_row(row.preset, f"{row.states:,}", row.precision, str(row.jobs), waits, *times)
    return shown


def _exponent(point: Point, points: list[Point]) -> str:
    """How the time grew from the size before: 1 is proportional."""
    before = [
        other
        for other in points
        if (other.work, other.axis) == (point.work, point.axis) and other.value < point.value and other.milliseconds
    ]
    if not before or not point.milliseconds:
        return ""
    last = before[-1]
    return f"{log(point.milliseconds / (last.milliseconds or 1)) / log(point.value / last.value):.2f}"


def _table(title: str, first: str, *numbers: str) -> Table:
    shown = Table(title=title)
    shown.add_column(first)
    for heading in numbers:
        shown.add_column(heading, justify="right")
    return shown


def _verdict(found: float | None, allowed: float | None) -> str:
    if found is None or allowed is None:
        return ""
    return "ok" if found <= allowed else "too much"


def _gib(number: int | None) -> str:
    return "" if number is None else f"{number / 2**30:.2f}"


def _seconds(number: float | None) -> str:
    return "" if number is None else f"{number:.1f}"
