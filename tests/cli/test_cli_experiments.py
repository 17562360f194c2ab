"""`python -m experiments`: every shipped table runs end to end on a small text, and says what is wrong where something is."""

import json
import re
from pathlib import Path

import pytest
from cli_helpers import Run, write_text

import vlhmm
from experiments.cli_show import _difference
from experiments.show import Ours, Shown

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
    "word_scale": 1,
    "precision": "highest",
    "initialisation": "paper",
    "decoder_layers": 2,
    "decoder_heads": 1,
    "decoder_kv_heads": 0,
    "decoder_hidden": 32,
    "rope_theta": 10_000,
    # Language models of others are not here.
    "teacher.name": "decoder",
    "teacher.tokens": 100,
    "teacher.dim": 8,
    "teacher.layers": 2,
    "teacher.heads": 1,
    "teacher.epochs": 1,
    "teacher.embedding_dim": 8,
    "teacher.hidden_dim": 8,
    "teacher.num_layers": 1,
    "teacher.batch_size": 2,
    "teacher.window": 10,
    "samples.tokens": 400,
    "samples.length": 8,
    # With 8 tokens of context samples then fill the windows of 16.
    "samples.prefix": 8,
    "samples.batch_size": 50,
    "samples.real_copies": 1,
    "finetune.epochs": 1,
    "finetune.batch_size": 2,
    "finetune.window": 8,
    "lvd.cluster_tokens": 200,
    "lvd.joint_tokens": 200,
    "lvd.pca": 0,
    "em.iterations": 1,
    "em.batch_size": 8,
    "em.window": 16,
}
"""Rows that differ in size alone become one, and are run once."""


@pytest.fixture(autouse=True)
def few_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.measure.TIMED_BATCHES", 2)
    monkeypatch.setattr("experiments.measure.TIMED_STEPS", 2)


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
    from experiments.row_settings import knows
    from experiments.table_file import read_table

    table = read_table(file)
    rows = table.rows
    # A hundredth of the text must fill a window.
    small = SMALL if all(row.train_fraction == 1 for row in rows) else SMALL | {"batch_size": 1}
    if table.best_first:
        # Fewer combinations.
        small = small | {"layer_norm": "false", "embeddings": "tied"}
    known = {name: value for name, value in small.items() if any(knows(row.settings, name) for row in rows)}
    changes = [word for name, value in known.items() for word in ("--set", f"{name}={value}")]
    return [file, "--corpus", text, *changes, "--results", results]


@pytest.mark.parametrize("file", TABLES, ids=lambda file: file.stem)
def test_every_shipped_table_runs_on_a_small_text(run_experiments: Run, text: Path, results: Path, file: Path) -> None:
    options = small_options(file, text, results)
    # One seed, and two where the table speaks of how far apart they are.
    wanted = ["--seed", 1, "--seed", 2] if '_spread"]' in file.read_text() else ["--seed", 1]
    shown = run_experiments("run", *options, *wanted, "--runs", results / "runs", "--device", "cpu")
    assert shown.status == 0, shown.err
    answer = run_experiments("show", *options, "--json").json
    assert all(row["status"] != "not run" for row in answer["rows"])
    assert all(claim["outcome"] != "not run" for claim in answer["claims"])
    assert "not run" not in shown.out
    again = run_experiments("run", *options, *wanted, "--runs", results / "runs", "--device", "cpu", "--json")
    assert again.json == []


def test_rows_side_by_side_end_as_results(run_experiments: Run, text: Path, tmp_path: Path) -> None:
    options = small_options(EXPERIMENTS / "chiu2020" / "table2.toml", text, tmp_path)
    shown = run_experiments("run", *options, "--runs", tmp_path / "runs", "--device", "cpu", "--jobs", 2)
    assert shown.status == 0, shown.err
    assert "not run" not in shown.out


def test_rows_that_are_not_timed_end_with_their_results_side_by_side(
    run_experiments: Run, text: Path, tmp_path: Path
) -> None:
    folder = EXPERIMENTS / "lee2025"
    options = [*small_options(folder / "figure8.toml", text, tmp_path), folder / "restarts.toml"]
    places = ("--runs", tmp_path / "runs", "--device", "cpu", "--seed", 1)
    made = run_experiments("run", *options, *places, "--jobs", 2, "--json").json
    # Both tables have a row without a teacher and one with 10M tokens of p(x, z): here all of those are one.
    assert sorted({result["row"] for result in made}) == sorted(result["row"] for result in made)
    assert run_experiments("run", *options, *places, "--json").json == []
    for file in ("figure8", "restarts"):
        shown = run_experiments("show", folder / f"{file}.toml", *options[1:-1], "--json")
        assert all(row["status"] == "finished" for row in shown.json["rows"])


def test_a_trial_that_fails_costs_its_own_row_alone(
    run_experiments: Run, text: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from experiments import rows

    Path("rates.toml").write_text(
        f'title = "Rates"\ncorpus = "{text}"\npreset = "demo"\ncolumns = ["valid"]\nrate_tokens = 400\ntimings = false\n'
        "changes = { num_blocks = 4, states_per_block = 4, dim = 8, epochs = 1, batch_size = 2, window = 8 }\n"
        '[[rows]]\nname = "broken"\nrates = [0.001, 0.5]\n'
        '[[rows]]\nname = "sound"\nchanges = { dim = 4 }\nrates = [0.001, 0.01]\n'
    )
    train_row = rows.train_row

    def failing(row, *rest):
        if row.name == "broken, rate 0.5":
            raise OSError("the disk is full")
        return train_row(row, *rest)

    monkeypatch.setattr(rows, "train_row", failing)
    shown = run_experiments("run", "rates.toml", "--device", "cpu", "--jobs", 2)
    assert shown.status != 0
    assert "the disk is full" in shown.err
    assert "broken: left out" in shown.err
    status = {row["name"]: row["status"] for row in run_experiments("show", "rates.toml", "--json").json["rows"]}
    assert status == {"broken": "not run", "sound": "finished"}


def test_rates_are_tried_before_rows_are_run(run_experiments: Run, text: Path) -> None:
    Path("rates.toml").write_text(
        f'title = "Rates"\ncorpus = "{text}"\ncolumns = ["valid"]\nwindows = 16\ntimings = false\nseeds = [3, 4]\n'
        'rate_tokens = 500\npreset = "lee2025-scalar"\n'
        "changes = { states_per_block = 4, batch_size = 8, window = 16, checks_per_epoch = 1 }\n"
        '[[rows]]\nname = "HMM"\nrates = [0.01, 0.1, 1.0]\n'
    )
    done = run_experiments("run", "rates.toml", "--json", "--device", "cpu").json
    *tried, first, second = done
    assert [(one["row"], one["seed"]) for one in tried[:3]] == [
        ("HMM, rate 0.01", 3),
        ("HMM, rate 0.1", 3),
        ("HMM, rate 1", 3),
    ]
    assert [(one["row"], one["seed"]) for one in (first, second)] == [("HMM", 3), ("HMM", 4)]
    # Of the trials only results are kept.
    assert len([path for path in Path("runs/table").iterdir() if (path / "log.jsonl").exists()]) == 2
    rates = sorted(one["settings"]["train"]["learning_rate"] for one in tried)
    best = min(tried, key=lambda one: one["measured"]["valid"])["settings"]["train"]["learning_rate"]
    assert first["settings"]["train"]["learning_rate"] == best
    assert rates[0] < best < rates[-1]
    assert f"HMM {best:g} of {', '.join(f'{rate:g}' for rate in rates)}" in " ".join(
        run_experiments("show", "rates.toml").out.split()
    )
    (row,) = run_experiments("show", "rates.toml", "--json").json["rows"]
    assert (row["learning_rate"], row["rates"], row["seeds"]) == (best, rates, [3, 4])
    assert second["command"] == "python -m experiments run rates.toml --row HMM --seed 4"


def test_named_rows_run_in_their_order_and_of_one_table_alone(run_experiments: Run, text: Path) -> None:
    rows = "".join(
        f'[[rows]]\nname = "{order}-grams"\nbaseline = "kneser-ney"\nchanges = {{ order = {order}, fallback = true }}\nseconds = {order}\n'
        for order in (1, 2, 3)
    )
    for name in ("one", "other"):
        # Another part of the text, so that a row of one table is not that of the other.
        part = 200 if name == "one" else 300
        Path(f"{name}.toml").write_text(f'title = "T"\ncorpus = "{text}"\ncolumns = ["valid"]\ntokens = {part}\n{rows}')
    named = ("--row", "3-grams", "--row", "other/1-grams", "--row", "one/2-grams")
    done = run_experiments("run", "one.toml", "other.toml", *named, "--json").json
    assert [(one["table"], one["row"]) for one in done] == [
        ("one", "3-grams"),
        ("other", "3-grams"),
        ("other", "1-grams"),
        ("one", "2-grams"),
    ]
    left = run_experiments("run", "one.toml", "other.toml", "--json").json
    assert [(one["table"], one["row"]) for one in left] == [("one", "1-grams"), ("other", "2-grams")]


def test_show_says_what_was_not_run(run_experiments: Run) -> None:
    shown = run_experiments("show", EXPERIMENTS / "chiu2020" / "search.toml", "--results", "nowhere")
    assert shown.status == 0
    assert shown.out.count("not run") >= 24


def test_the_paper_stands_beside_ours_and_the_difference(run_experiments: Run, text: Path) -> None:
    Path("one.toml").write_text(
        f'title = "One"\ncorpus = "{text}"\ncolumns = ["valid", "parameters"]\n'
        '[[rows]]\nname = "bigrams"\nbaseline = "kneser-ney"\nchanges = { order = 2, fallback = true }\n'
        "paper = { valid = 2.0 }\n"
    )
    done = run_experiments("run", "one.toml", "--json").json
    (row,) = run_experiments("show", "one.toml", "--json").json["rows"]
    ours = done[0]["measured"]["valid"]
    assert row["quantities"]["valid"]["difference"] == pytest.approx(ours - 2)
    assert row["quantities"]["valid"]["percent"] == pytest.approx(50 * (ours - 2))
    shown = run_experiments("show", "one.toml").out
    assert f"{ours:.1f}" in shown
    assert f"({50 * (ours - 2):+.1f} %)" in shown
    assert all(line == line.rstrip() for line in shown.splitlines())
    (result,) = Path("results").iterdir()
    stored = json.loads(result.read_text())
    assert stored["command"] == "python -m experiments run one.toml --row bigrams"
    assert "/" not in stored["command"]


def test_plots_are_drawn_beside_the_results(run_experiments: Run, text: Path, results: Path) -> None:
    options = small_options(EXPERIMENTS / "chiu2020" / "figure3.toml", text, results)
    row = ("--row", "2^10", "--row", "2^13, ours")
    assert run_experiments("run", *options, *row, "--runs", results / "runs", "--device", "cpu").status == 0
    assert run_experiments("show", *options, "--plot").status == 0
    assert {path.name for path in results.glob("*.png")} == {"figure3.png", "figure3-curves.png"}


def test_list_counts_rows_and_results(run_experiments: Run) -> None:
    listed = run_experiments("list", EXPERIMENTS, "--json").json
    assert {Path(table["file"]).stem for table in listed} == {path.stem for path in TABLES}
    assert all(0 <= table["run"] <= table["rows"] for table in listed)
    assert "figure3.toml" in run_experiments("list", EXPERIMENTS).out
    assert "0 tables" in run_experiments("list", ".").error


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
def test_bad_requests_are_refused(run_experiments: Run, options: tuple[str, ...], message: str) -> None:
    assert message in run_experiments("run", EXPERIMENTS / "chiu2020" / "table1-ptb.toml", *options).error
    assert not Path("r").exists()


def test_a_narrow_terminal_cuts_titles_not_files_or_counts(
    run_experiments: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.chdir(EXPERIMENTS.parent)
    listed = run_experiments("list", "experiments/chiu2020", "--json").json
    lines = run_experiments("list", "experiments/chiu2020").out.splitlines()[1:]
    assert max(map(len, lines)) <= 100
    for table, shown in zip(listed, lines, strict=True):
        assert shown.startswith(f"{table['file']} ")
        assert re.search(rf" {table['rows']} +{table['run']} +\d", shown)


def test_a_difference_that_rounds_to_nothing_has_no_minus() -> None:
    assert _difference("valid", Shown(141.2, Ours(141.19, 141.19, 141.19))) == "+0.0 (+0.0 %)"
    assert _difference("valid", Shown(125.0, Ours(120.2, 120.2, 120.2))) == "-4.8 (-3.8 %)"


def test_claims_of_all_tables_are_listed_with_their_outcomes(run_experiments: Run) -> None:
    judged = run_experiments("claims", EXPERIMENTS / "lee2025", "--json").json
    assert {claim["outcome"] for claim in judged} <= {"supported", "contradicted", "not run"}
    assert {"table1", "table4", "figure8"} <= {Path(claim["file"]).stem for claim in judged}
    last = run_experiments("claims", EXPERIMENTS / "lee2025").out.splitlines()[-1]
    assert sum(int(part.split()[0]) for part in last.split(", ")) == len(judged)


@pytest.mark.parametrize("command", ["run", "show", "list", "claims"])
def test_help_shows_examples(run_experiments: Run, command: str) -> None:
    assert f"python -m experiments {command}" in run_experiments(command, "--help").out.split("Example")[1]
