"""`python -m experiments run --verify` trains anew, compares, and leaves results as they are."""

import json
from pathlib import Path

import pytest
from cli_helpers import Run, write_text

CPU = ("--device", "cpu")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    """Two rows over a small text; the first chooses its learning rate."""
    write_text(tmp_path / "small.txt", 60)
    path = tmp_path / "tables" / "small.toml"
    path.parent.mkdir()
    path.write_text(
        f'title = "Small"\ncorpus = "{tmp_path / "small.txt"}"\npreset = "demo"\ncolumns = ["valid"]\ntimings = false\n'
        "rate_tokens = 400\n"
        "changes = { num_blocks = 4, states_per_block = 4, dim = 8, epochs = 1, batch_size = 8, window = 16, checks_per_epoch = 1 }\n"
        '[[rows]]\nname = "HMM"\nrates = [0.001, 0.01]\n'
        '[[rows]]\nname = "bigrams"\nbaseline = "kneser-ney"\ntest = true\nchanges = { order = 2, fallback = true }\n'
        '[[rows]]\nname = "never run"\nchanges = { dim = 4 }\n'
    )
    return path


def contents(folder: Path) -> dict[str, tuple[bytes, int]]:
    return {file.name: (file.read_bytes(), file.stat().st_mtime_ns) for file in folder.iterdir()}


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_are_verified_and_left_untouched(run_experiments: Run, table: Path, tmp_path: Path, jobs: int) -> None:
    runs = ("--runs", tmp_path / "runs")
    run_experiments("run", table, *CPU, *runs, "--row", "HMM", "--row", "bigrams")
    results = table.parent / "results"
    before = contents(results)
    kept = sorted((tmp_path / "runs").iterdir())
    ran = run_experiments("run", table, *CPU, *runs, "--verify", "--jobs", jobs, "--json")
    assert ran.status == 0, ran.err
    assert "1 of 3 rows have no result to verify" in ran.err
    assert "->" not in ran.err
    assert contents(results) == before
    assert sorted((tmp_path / "runs").iterdir()) == kept
    figures = ran.json
    stored = {one["row"]: one for one in (json.loads(content) for content, _ in before.values())}
    assert {(one["row"], one["quantity"]) for one in figures} >= {("HMM", "valid"), ("bigrams", "test")}
    for one in figures:
        # The same seed on the same device: not only within the tolerance.
        assert one["new"] == one["stored"] == stored[one["row"]]["measured"][one["quantity"]]
        assert (one["difference"], one["within"]) == (0.0, True)


def test_a_figure_outside_the_tolerance_is_shown_and_fails(run_experiments: Run, table: Path, tmp_path: Path) -> None:
    chosen = ("--row", "bigrams", "--runs", tmp_path / "runs", *CPU)
    run_experiments("run", table, *chosen)
    (file,) = (table.parent / "results").iterdir()
    values = json.loads(file.read_text())
    values["measured"]["test"] *= 1.02
    file.write_text(json.dumps(values))
    before = contents(file.parent)
    ran = run_experiments("run", table, *chosen, "--verify")
    assert ran.status == 1
    assert "1 of 4 figures are outside" in ran.err
    (row,) = [line for line in ran.out.splitlines() if "test ppl" in line]
    assert row.endswith("NO")
    assert contents(file.parent) == before
    answer = run_experiments("run", table, *chosen, "--verify", "--json")
    assert answer.status == 1
    assert [one["quantity"] for one in json.loads(answer.out) if not one["within"]] == ["test"]


def test_what_cannot_be_verified_is_refused_in_one_line(run_experiments: Run, table: Path, tmp_path: Path) -> None:
    runs = ("--runs", tmp_path / "runs", *CPU)
    for arguments, expected in (
        ((), "3 of 3 rows have no result to verify"),
        (("--row", "never run"), "small/never run"),
        (("--force",), "leave out --force"),
        (("--max-seconds", 5), "leave out --max-seconds"),
    ):
        ran = run_experiments("run", table, *runs, "--verify", *arguments)
        assert ran.status != 0
        assert expected in ran.err
        assert len(ran.err.strip().splitlines()) == 1
    assert not (table.parent / "results").exists()
