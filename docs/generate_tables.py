"""Writes the tables of README.md and docs/ from the committed result files; with --check it only compares them.

A page names a table in a comment, and this program fills in what stands between it and the end mark:

    <!-- table: experiment experiments/chiu2020/table2.toml valid train -->
    ...
    <!-- end of table -->
"""

from __future__ import annotations

import difflib
import re
import shlex
import sys
from collections.abc import Callable, Sequence

from tables import distributed, measurements, papers
from tables.common import ROOT

_MARKED = re.compile(r"(<!-- table: (.+?) -->\n).*?(<!-- end of table -->)", re.DOTALL)
_MAKERS: dict[str, Callable[..., str]] = {
    maker.__name__.replace("_", "-"): maker
    for maker in (
        papers.best_models,
        papers.claim_counts,
        papers.claims,
        papers.experiment,
        papers.figure,
        papers.leads,
        papers.rates,
        papers.rows_not_run,
        papers.what_was_run,
        measurements.bench_h200,
        measurements.bench_editions,
        measurements.bench_cpu,
        measurements.bench_cpu_other,
        measurements.bench_grid,
        measurements.bench_epochs,
        measurements.bench_errors,
        measurements.bench_memory,
        measurements.bench_first_step,
        measurements.bench_largest,
        measurements.bench_steps,
        measurements.control,
        measurements.control_calibration,
        measurements.control_cost,
        measurements.control_distillation,
        measurements.own_text,
        measurements.own_text_cost,
        measurements.serve_load,
        distributed.distributed_check,
        distributed.distributed_enough,
        distributed.distributed_overhead,
        distributed.distributed_predicted,
    )
}


def with_tables(text: str) -> str:
    """The page with every marked table as the result files have it."""

    def filled(found: re.Match[str]) -> str:
        name, *arguments = shlex.split(found[2])
        return f"{found[1]}{_MAKERS[name](*arguments)}{found[3]}"

    return _MARKED.sub(filled, text)


def main(arguments: Sequence[str]) -> int:
    check = "--check" in arguments
    differing = 0
    pages = [page for page in sorted((ROOT / "docs").rglob("*.md")) if "_build" not in page.parts]
    for page in [ROOT / "README.md", *pages]:
        text = page.read_text(encoding="utf-8")
        made = with_tables(text)
        if made == text:
            continue
        differing += 1
        name = str(page.relative_to(ROOT))
        if check:
            sys.stderr.writelines(
                difflib.unified_diff(text.splitlines(True), made.splitlines(True), name, f"{name} by the results", n=1)
            )
        else:
            page.write_text(made, encoding="utf-8")
            print(f"written: {name}")
    if check and differing:
        print(f"error: tables of {differing} pages differ from the result files: run `make tables`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
