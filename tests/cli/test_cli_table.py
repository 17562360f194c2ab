"""`vlhmm table`: every shipped table runs end to end on a small text, and says what is wrong where something is."""

import json
from pathlib import Path

import pytest
from cli_helpers import Run, write_text

import vlhmm

EXPERIMENTS = Path(vlhmm.__file__).parents[1] / "experiments"
TABLES = sorted(EXPERIMENTS.rglob("*.toml"))
SMALL = {
    "num_blocks": 4,
    "states_per_block": 4,
    "dim": 8,
    "epochs": 1,
    "checks_per_epoch": 1,
    "batch_size": 8,
    "window": 16,
    "num_states": 4,
    "num_layers": 1,
    "embedding_dim": 8,
    "hidden_dim": 8,
    "fallback": "true",
    "order": 2,
    "learning_rate": 0.02,
    "weight_decay": 0,
    "ema": 0,
    "min_rate": 0,
    "patience": 4,
    "out_scale": 1,
    "precision": "highest",
    "initialisation": "paper",
}
"""Rows that differ in size alone become one, and are run once."""


@pytest.fixture(autouse=True)
def few_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlhmm.experiments.measure.TIMED_BATCHES", 2)
    monkeypatch.setattr("vlhmm.experiments.measure.TIMED_STEPS", 2)


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("text") / "small.txt"
    write_text(path, 150)
    return path


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder for all tables: they share what they have in common."""
    return tmp_path_factory.mktemp("shared")


def small_options(file: Path, text: Path, results: Path) -> list[object]:
    """The settings of SMALL that some row of the table has."""
    from vlhmm.experiments.row_settings import knows
    from vlhmm.experiments.table_file import read_table

    rows = read_table(file).rows
    # A hundredth of the text must fill a window.
    small = SMALL if all(row.train_fraction == 1 for row in rows) else SMALL | {"batch_size": 1}
    known = {name: value for name, value in small.items() if any(knows(row.settings, name) for row in rows)}
    changes = [word for name, value in known.items() for word in ("--set", f"{name}={value}")]
    return [file, "--corpus", text, *changes, "--results", results]


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_every_shipped_table_runs_on_a_small_text(run: Run, text: Path, results: Path, file: Path) -> None:
    options = small_options(file, text, results)
    shown = run("table", "run", *options, "--runs", results / "runs", "--device", "cpu")
    assert shown.status == 0, shown.err
    answer = run("table", "show", *options, "--json").json
    assert all(row["status"] != "not run" for row in answer["rows"])
    assert all(claim["outcome"] != "not run" for claim in answer["claims"])
    assert "not run" not in shown.out
    again = run("table", "run", *options, "--runs", results / "runs", "--device", "cpu", "--json")
    assert again.json == []


def test_rows_side_by_side_end_as_results(run: Run, text: Path, tmp_path: Path) -> None:
    options = small_options(EXPERIMENTS / "chiu2020" / "table2.toml", text, tmp_path)
    shown = run("table", "run", *options, "--runs", tmp_path / "runs", "--device", "cpu", "--jobs", 2)
    assert shown.status == 0, shown.err
    assert "not run" not in shown.out


def test_show_says_what_was_not_run(run: Run) -> None:
    shown = run("table", "show", EXPERIMENTS / "chiu2020" / "search.toml", "--results", "nowhere")
    assert shown.status == 0
    assert shown.out.count("not run") >= 24


def test_the_paper_stands_beside_ours_and_the_difference(run: Run, text: Path) -> None:
    Path("one.toml").write_text(
        f'title = "One"\ncorpus = "{text}"\ncolumns = ["valid", "parameters"]\n'
        '[[rows]]\nname = "bigrams"\nbaseline = "kneser-ney"\nchanges = { order = 2, fallback = true }\n'
        "paper = { valid = 2.0 }\n"
    )
    done = run("table", "run", "one.toml", "--json").json
    (row,) = run("table", "show", "one.toml", "--json").json["rows"]
    ours = done[0]["measured"]["valid"]
    assert row["quantities"]["valid"]["difference"] == pytest.approx(ours - 2)
    assert row["quantities"]["valid"]["percent"] == pytest.approx(50 * (ours - 2))
    shown = run("table", "show", "one.toml").out
    assert f"{ours:.1f}" in shown
    assert f"({50 * (ours - 2):+.1f} %)" in shown
    assert all(line == line.rstrip() for line in shown.splitlines())
    (result,) = Path("results").iterdir()
    stored = json.loads(result.read_text())
    assert stored["command"] == "vlhmm table run one.toml --row bigrams"
    assert "/" not in stored["command"]


def test_plots_are_drawn_beside_the_results(run: Run, text: Path, results: Path) -> None:
    options = small_options(EXPERIMENTS / "chiu2020" / "figure3.toml", text, results)
    row = ("--row", "2^10", "--row", "2^14, block-factored")
    assert run("table", "run", *options, *row, "--runs", results / "runs", "--device", "cpu").status == 0
    assert run("table", "show", *options, "--plot").status == 0
    assert {path.name for path in results.glob("*.png")} == {"figure3.png", "figure3-curves.png"}


def test_list_counts_rows_and_results(run: Run) -> None:
    listed = run("table", "list", EXPERIMENTS, "--json").json
    assert {Path(table["file"]).stem for table in listed} == {path.stem for path in TABLES}
    assert all(0 <= table["run"] <= table["rows"] for table in listed)
    assert "figure3.toml" in run("table", "list", EXPERIMENTS).out
    assert "0 tables" in run("table", "list", ".").error


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "epochs=1"), "--results"),
        (("--row", "KN 5-grm"), "did you mean 'KN 5-gram'"),
        (("--set", "epoch=1", "--results", "r"), "'epoch'"),
        (("--corpus", "ptbb", "--results", "r"), "no corpus 'ptbb'"),
        (("--data-dir", "nowhere", "--row", "HMM, 900 states", "--results", "r"), "is missing"),
    ],
)
def test_bad_requests_are_refused(run: Run, options: tuple[str, ...], message: str) -> None:
    assert message in run("table", "run", EXPERIMENTS / "chiu2020" / "table1-ptb.toml", *options).error
    assert not Path("r").exists()


@pytest.mark.parametrize("command", ["run", "show", "list"])
def test_help_shows_examples(run: Run, command: str) -> None:
    assert f"vlhmm table {command}" in run("table", command, "--help").out.split("Example")[1]
