"""A part of `make soak`: every query of some two hundred small HMMs against enumeration."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def run(*options: str) -> subprocess.CompletedProcess[str]:
    # In a process of its own, without the checks of shapes that the other tests run under: they take most of the time.
    command = [sys.executable, "-m", "tests.soak", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


def test_every_query_of_many_hmms_equals_enumeration():
    found = run("--cases", "200", "--seed", "1000000")
    assert found.returncode == 0, found.stdout + found.stderr
    lines = found.stdout.splitlines()
    assert lines[0] == "200 HMMs from seed 1000000, float32 and float64 by turns, on cpu"
    assert any(line.startswith("soft_") for line in lines[2:])
    for line in lines[2:]:
        assert line.split()[1:4] == ["200", "0", "0"], line


def test_processes_share_the_cases_and_the_counts_are_written(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    found = run("--cases", "7", "--seed", "3", "--processes", "2", "--query", "log_prob", "--json", str(file))
    assert found.returncode == 0, found.stdout + found.stderr
    record = json.loads(file.read_text(encoding="utf-8"))
    assert {held: of["number"] for held, of in record["cases"].items()} == {"float32": 3, "float64": 4}
    assert record["outcomes"]["float64"]["log_prob"] == {"right": 4, "wrong": 0, "error": 0}
    assert record["cases"]["float64"]["tolerance"] == 1e-9


def test_queries_by_turns_are_all_asked(tmp_path: Path) -> None:
    file = tmp_path / "soak.json"
    found = run("--cases", "18", "--seed", "0", "--queries", "3", "--json", str(file))
    assert found.returncode == 0, found.stdout + found.stderr
    outcomes = json.loads(file.read_text(encoding="utf-8"))["outcomes"]
    for held in ("float32", "float64"):
        assert [count["right"] for count in outcomes[held].values()] == [1] * 27


def test_cases_that_there_was_no_time_for_are_said():
    found = run("--cases", "5", "--seconds", "0", "--query", "log_prob")
    assert found.returncode == 1
    assert "of 5 cases were not run within 0 s" in found.stdout


def test_a_wrong_answer_is_found_and_can_be_asked_for_again(tmp_path):
    """With a defect in the package the status is 1, and each failure comes with its command."""
    (tmp_path / "defect.py").write_text(
        "import sys, runpy\n"
        "import vlhmm\n"
        "right = vlhmm.HMM.log_prob\n"
        "vlhmm.HMM.log_prob = lambda *args, **options: right(*args, **options) + 0.5\n"
        "sys.argv = ['soak', '--cases', '2', '--seed', '7', '--query', 'log_prob']\n"
        "runpy.run_module('tests.soak', run_name='__main__')\n"
    )
    command = [sys.executable, str(tmp_path / "defect.py")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    found = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert found.returncode == 1
    assert "python -m tests.soak --cases 1 --seed 7 --dtype float64 --query log_prob" in found.stdout
    assert found.stdout.splitlines()[-1].split()[:4] == ["log_prob", "0", "2", "0"]
