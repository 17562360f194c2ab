"""The benchmark: it runs from end to end, its truth is the truth, and a wrong answer gets no time."""

import itertools
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from tiny import tiny_corpus
from torch import Tensor
from typer.testing import CliRunner

from bench import beside, epoch, errors, first_step, hang, largest, memory, tilings
from bench.__main__ import app
from bench.errors import error_rows
from bench.floor import Needs, Rates
from bench.measure import Result, compare
from bench.original import EagerTraining, step_error
from bench.ours import Initialisation, Ours, first_steps, step_inputs
from bench.peers import PlainLoop
from bench.report import Row
from bench.sizes import STEPS, step_sizes
from bench.workloads import (
    Answer,
    DenseInputs,
    DenseSizes,
    NotOffered,
    Timed,
    TransitionKind,
    Truth,
    Work,
    dense_inputs,
    error,
    tolerance,
)
from vlhmm.models import ModelSettings
from vlhmm.ops import waiting
from vlhmm.training.presets import BlockSettings, Recipe
from vlhmm.training.settings import TrainSettings

CPU = torch.device("cpu")
DENSE: tuple[Work, ...] = ("W1", "W2", "W4", "W5")


@pytest.fixture(scope="module")
def inputs() -> DenseInputs:
    return dense_inputs(DenseSizes(states=3, num_words=5, batch=2, length=4), CPU)


def every_path(inputs: DenseInputs, row: int) -> dict[tuple[int, ...], float]:
    """p(x, z) of every path."""
    start, transition, emission = inputs.start.double(), inputs.transition.double(), inputs.emission.double()
    tokens = inputs.tokens[row].tolist()
    found = {}
    for path in itertools.product(range(inputs.sizes.states), repeat=len(tokens)):
        prob = float(start[path[0]])
        for before, after in itertools.pairwise(path):
            prob *= float(transition[before, after])
        for state, token in zip(path, tokens, strict=True):
            prob *= float(emission[token, state])
        found[path] = prob
    return found


def test_the_truth_equals_the_sum_over_every_path(inputs: DenseInputs) -> None:
    truth = Truth(inputs)
    posterior = torch.zeros(2, 4, 3, dtype=torch.float64)
    transition = torch.zeros(3, 3, dtype=torch.float64)
    emission = torch.zeros(5, 3, dtype=torch.float64)
    totals, best = [], []
    for row in range(2):
        paths = every_path(inputs, row)
        total = sum(paths.values())
        totals.append(total)
        best.append(max(paths.values()))
        for path, prob in paths.items():
            for t, state in enumerate(path):
                posterior[row, t, state] += prob / total
                emission[inputs.tokens[row, t], state] += prob / total
            for before, after in itertools.pairwise(path):
                transition[before, after] += prob / total
    torch.testing.assert_close(truth.answer("W1")["log_prob"], torch.tensor(totals, dtype=torch.float64).log())
    torch.testing.assert_close(truth.answer("W2")["transition"], transition)
    torch.testing.assert_close(truth.answer("W2")["emission"], emission)
    torch.testing.assert_close(truth.answer("W4")["best_log_prob"], torch.tensor(best, dtype=torch.float64).log())
    torch.testing.assert_close(truth.answer("W5")["posterior"], posterior)


@pytest.mark.parametrize("work", DENSE)
def test_ours_is_right_and_a_small_change_is_wrong(work: Work, inputs: DenseInputs) -> None:
    truth, timed = Truth(inputs), Ours().timed(work, inputs)
    answer = timed.answer(timed.run())
    allowed = tolerance(work, CPU)
    assert error(work, truth, answer) <= allowed

    def changed(values: Tensor) -> Tensor:
        if work != "W4":
            return values * 1.001
        elsewhere = values.clone()
        elsewhere[0, 1] = (elsewhere[0, 1] + 1) % inputs.sizes.states
        return elsewhere

    for name, values in answer.items():
        assert error(work, truth, {**answer, name: changed(values)}) > allowed
        assert error(work, truth, {**answer, name: values[:1]}) == float("inf")


def test_not_a_number_is_wrong(inputs: DenseInputs) -> None:
    assert error("W1", Truth(inputs), {"log_prob": torch.tensor([float("nan"), -5.0])}) == float("inf")


def test_a_wrong_answer_gets_no_time_and_a_failure_stops_no_other() -> None:
    calls = {"right": 0, "wrong": 0}

    def engine(name: str) -> Timed:
        def run() -> float:
            calls[name] += 1
            return 1.0 if name == "right" else 1.1

        return Timed(run, lambda found: {"log_prob": torch.tensor(found)})

    def broken() -> Timed:
        raise RuntimeError("no such device\nand more")

    def absent() -> Timed:
        raise NotOffered("too large")

    def off(answer: Answer) -> float:
        return float((answer["log_prob"] - 1).abs())

    engines = {"wrong": lambda: engine("wrong"), "broken": broken, "absent": absent, "right": lambda: engine("right")}
    wrong, failed, absent_one, right = compare(engines, off, 1e-3, CPU, repeat=5)
    assert wrong.median is None
    assert wrong.message.startswith("wrong: off by 1.0e-01")
    assert failed.message == "failed: RuntimeError: no such device"
    assert absent_one.message == "not offered: too large"
    assert len(right.milliseconds) == 5
    # The wrong one ran to be checked, and never for the clock.
    assert calls == {"wrong": 2, "right": 2 + 2 * 5}


def test_ratios_are_to_the_fastest_right_peer_and_the_floor() -> None:
    peers = [Result("slow", (8.0, 9.0, 7.0)), Result("wrong", (), 0.1, "wrong"), Result("fast", (4.0,))]
    row = Row("W1", {"states": 2}, 1e-6, 0.5, Result("vlhmm", (3.0, 1.0, 2.0), 0.0), peers, "tf32").to_json()
    assert row["best_peer"] == "fast"
    ours = row["results"][0]
    assert (ours["median_ms"], ours["min_ms"], ours["max_ms"]) == (2.0, 1.0, 3.0)
    assert (ours["ratio_to_best_peer"], ours["ratio_to_floor"]) == (0.5, 4.0)


def test_the_floor_is_the_larger_of_moving_and_computing() -> None:
    rates = Rates(bytes_per_second=10.0, float32_flops=4.0, matmul_flops=2.0, operand_bytes=4)
    assert Needs(matmul_flops=6.0, bytes=10.0).seconds(rates) == 3.0
    assert Needs(matmul_flops=6.0, bytes=100.0).seconds(rates) == 10.0
    assert Needs(max_plus_pairs=5.0).seconds(rates) == 5.0


@pytest.mark.parametrize("work", ["W3", "W3b", "W3c"])
def test_training_steps_equal_those_in_float64(work: str) -> None:
    inputs = step_inputs(step_sizes(work, quick=True), CPU)  # type: ignore[arg-type]
    losses, _ = first_steps(inputs)
    allowed = tolerance(work, CPU)
    assert step_error(inputs, {"losses": losses}) <= allowed
    # The last loss shows what every update before it did.
    losses[-1] *= 1 + 1e-4
    assert step_error(inputs, {"losses": losses}) > allowed


def test_the_original_by_tiles_equals_that_of_whole_tables() -> None:
    inputs = step_inputs(step_sizes("W3c", quick=True), CPU)
    whole, tiles = (EagerTraining(inputs, torch.float64, whole_tables) for whole_tables in (True, False))
    for window, kept in zip(inputs.windows, first_steps(inputs)[1], strict=False):
        assert whole.step(window, kept) == pytest.approx(tiles.step(window, kept), rel=1e-12)


def test_the_command_runs_from_end_to_end(tmp_path: Path) -> None:
    file = tmp_path / "bench.json"
    arguments = ["--device", "cpu", "--quick", "--repeat", "1", "--json", str(file)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [row["work"] for row in found["rows"]] == ["W1", "W2", "W4", "W5", *STEPS]
    assert all(row["worst"] <= row["allowed"] for row in found["errors"])
    assert [peak["work"].split(", ")[-1] for peak in found["memory"]] == ["25 tokens", "beyond the shorter one"]
    assert {"command", "commit", "device_name", "versions", "seconds", "rates"} <= set(found)
    for part in ("rows", "epochs", "memory", "first_steps"):
        assert {row["precision"] for row in found[part]} <= {"float32"}
    for row in found["rows"]:
        ours = row["results"][0]
        assert ours["engine"] == "vlhmm"
        assert ours["median_ms"] > 0
        assert ours["error"] <= row["tolerance"]
        assert row["floor_ms"] > 0
    by_name = {result["engine"]: result for result in found["rows"][0]["results"]}
    assert by_name[PlainLoop.name]["median_ms"] > 0
    assert "vlhmm" in done.output


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled or interpreted, not both")
def test_tilings_of_kernels_are_checked(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    file = tmp_path / "tilings.json"
    arguments = ["tilings", "--device", "cpu", "--quick", "--only", "W3c", "--json", str(file)]
    assert CliRunner().invoke(app, arguments, catch_exceptions=False).exit_code == 0
    found = json.loads(file.read_text(encoding="utf-8"))["tilings"]
    assert {one["kernel"] for one in found} == {"make_tiles", "forward", "backward", "accumulate", "move"}
    assert all(one["error"] <= 1 and not one["message"] for one in found)
    exact = [torch.full((2,), -3.0), torch.ones(4)]
    assert tilings.error_of([exact[0] * (1 + 2 * tilings.VALUE_ERROR), exact[1]], exact) > 1
    assert tilings.error_of([exact[0], exact[1] * (1 + 2 * tilings.GRADIENT_ERROR)], exact) > 1
    assert tilings.error_of([exact[0], exact[1] * torch.nan], exact) == float("inf")
    assert CliRunner().invoke(app, [*arguments[:5], "W1"]).exit_code == 2


def test_all_that_is_measured_on_a_cpu_is_one_command(tmp_path: Path) -> None:
    file, unpacked = tmp_path / "cpu.json", tmp_path / "peers"
    # A peer that is read from a folder, and fails: the others are still measured.
    (unpacked / "dynamax").mkdir(parents=True)
    (unpacked / "dynamax" / "__init__.py").write_text("unpacked = True")
    arguments = ["cpu", "--quick", "--repeat", "1", "--json", str(file), "--peers-from", str(unpacked)]
    done = CliRunner().invoke(app, arguments)
    sys.path.remove(str(unpacked))
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text(encoding="utf-8"))
    assert [row["work"] for row in found["rows"]] == list(DENSE)
    for row in found["rows"]:
        precisions = {result["engine"]: result["precision"] for result in row["results"]}
        assert precisions["vlhmm"] == precisions["dynamax"] == "float32"
        assert precisions["hmmlearn"] == "float64"
        assert next(one for one in row["results"] if one["engine"] == "dynamax")["message"].startswith("failed")
    measured = [one for one in found["other"] if not one["message"]]
    assert all(one["milliseconds"] > 0 for one in measured)
    assert len({one["name"] for one in found["other"]}) == 7
    assert {(cell["states"], cell["batch"], cell["work"]) for cell in found["grid"]} == {
        *itertools.product((2, 8), (1, 3), DENSE)
    }
    assert all(cell["ours_ms"] > 0 for cell in found["grid"])
    pytest.importorskip("matplotlib")
    drawn = CliRunner().invoke(app, ["plots", str(file), "--to", str(tmp_path)])
    assert drawn.exit_code == 0, drawn.output
    assert (tmp_path / "small-grid.png").stat().st_size > 0


def test_a_profile_names_what_took_the_time(tmp_path: Path) -> None:
    file = tmp_path / "profile.json"
    arguments = ["profile", "--device", "cpu", "--quick", "--only", "W3c,W4", "--repeat", "1", "--json", str(file)]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    step, viterbi = json.loads(file.read_text(encoding="utf-8"))["profiles"]
    assert (step["work"], viterbi["work"]) == ("W3c", "W4")
    for found in (step, viterbi):
        times = [kernel["microseconds"] for kernel in found["kernels"]]
        assert times == sorted(times, reverse=True)
        assert 0 < times[0] / 1e3 < 10 * found["milliseconds"]
        assert all(part > 0 for part in found["parts_ms"].values())
    assert {"networks", "normaliser", "tiles", "update"} <= set(step["parts_ms"])
    refused = CliRunner().invoke(app, ["profile", "--device", "cpu", "--quick", "--only", "W9"])
    assert refused.exit_code == 2
    assert "unknown work 'W9'" in refused.output


def test_scaling_covers_every_size_and_is_drawn(tmp_path: Path) -> None:
    file = tmp_path / "scaling.json"
    done = CliRunner().invoke(app, ["scaling", "--device", "cpu", "--quick", "--json", str(file)])
    assert done.exit_code == 0, done.output
    points = json.loads(file.read_text(encoding="utf-8"))["points"]
    assert {point["precision"] for point in points} == {"float32"}
    assert {(point["work"], point["axis"]) for point in points} == {
        *itertools.product(("W1", "W2"), ("states", "batch", "length")),
        *itertools.product(("W3b",), ("num_blocks", "states_per_block", "batch", "length")),
        *itertools.product(("W3",), ("num_blocks", "states_per_block")),
    }
    for point in points:
        sizes = point["sizes"]
        assert sizes["window" if point["axis"] == "length" and "window" in sizes else point["axis"]] == point["value"]
        assert point["milliseconds"] > 0
        assert point["floor_ms"] > 0
    pytest.importorskip("matplotlib")
    drawn = CliRunner().invoke(app, ["plots", str(file), "--to", str(tmp_path)])
    assert drawn.exit_code == 0, drawn.output
    assert {path.name for path in tmp_path.glob("*.png")} == {"scaling-dense.png", "scaling-blocked.png"}


def test_points_beyond_the_time_say_so(tmp_path: Path) -> None:
    file = tmp_path / "scaling.json"
    CliRunner().invoke(app, ["scaling", "--device", "cpu", "--quick", "--seconds", "0", "--json", str(file)])
    points = json.loads(file.read_text(encoding="utf-8"))["points"]
    assert {point["message"] for point in points} == {"not run: 0 s were over"}


def test_trainings_side_by_side_are_timed_one_and_several_at_once(tmp_path: Path) -> None:
    file = tmp_path / "beside.json"
    done = CliRunner().invoke(app, ["beside", "--device", "cpu", "--quick", "--json", str(file)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text(encoding="utf-8"))["beside"]
    assert {row["precision"] for row in found} == {"float32"}
    dense = itertools.product(("lee2025-b", "lee2025-scalar", "lee2025-psi-mlp"), (1, 2), (True, False))
    blocked = itertools.product(("chiu2020-ptb",), (1, 2), (False,))
    assert [(one["preset"], one["jobs"], one["waits"]) for one in found] == [*dense, *blocked]
    assert all(one["milliseconds"] > 0 and one["cores"] > 0 for one in found)


def test_constraints_are_compiled_or_refused_with_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "constraints.json"
    done = CliRunner().invoke(app, ["constraints", "--quick", "--json", str(file)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text(encoding="utf-8"))["constraints"]
    assert {one["vocabulary"] for one in found} == {"words", "subwords"}
    assert all((one["states"] is None) == bool(one["refused"]) for one in found)
    states = {(one["constraint"], one["vocabulary"]): one["states"] for one in found}
    # Of every word that tokens can be: 0 to 201 of them.
    assert states["words(10, 200)", "words"] == 202
    assert states["contains_all of 3 words", "words"] == 2**3


def test_every_phase_that_might_hang_makes_steps(tmp_path: Path) -> None:
    file = tmp_path / "hang.json"
    done = CliRunner().invoke(app, ["hang", "--device", "cpu", "--quick", "--seconds", "1", "--json", str(file)])
    assert done.exit_code == 0, done.output
    found = json.loads(file.read_text(encoding="utf-8"))
    assert "not cuda" in found["graph"][0]["why_not"]
    assert [phase["outcome"] for phase in found["phases"]] == ["ended"] * 3
    assert all(steps > 0 for phase in found["phases"] for steps in phase["steps"].values())


def test_a_wait_that_was_given_up_ends_a_phase_and_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def report_one() -> object:
        waiting.reports(CPU)[waiting.MAX_PRODUCT] = (4 << 32) | 7
        return None

    worker = hang.Worker("one", lambda: report_one)
    monkeypatch.setattr(hang, "phases", lambda device, quick: [("provoked", [worker])])
    (phase,) = hang.run(CPU, 5, True, lambda found: None)
    assert phase.outcome == "gave up"
    assert "max-product: program 3 at step 7" in phase.reports[0]


def test_a_phase_without_progress_is_a_hang(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended(Exception):
        pass

    def end(status: int) -> None:
        raise Ended(str(status))

    release, told = threading.Event(), list[hang.Phase]()
    worker = hang.Worker("stuck", lambda: lambda: release.wait(60))
    monkeypatch.setattr(hang, "phases", lambda device, quick: [("provoked", [worker])])
    monkeypatch.setattr(hang, "SILENT_SECONDS", 0.05)
    monkeypatch.setattr(hang.os, "_exit", end)
    with pytest.raises(Ended, match="3"):
        hang.run(CPU, 5, True, told.extend)
    release.set()
    assert told[0].outcome == "hung"


def test_a_training_that_fails_beside_others_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(beside, "_training", broken)
    with pytest.raises(RuntimeError, match="no memory"):
        list(beside.side_by_side(CPU, quick=True))


def test_errors_of_a_wrong_model_show(monkeypatch: pytest.MonkeyPatch) -> None:
    assert all(row.worst <= row.allowed for row in error_rows(CPU, quick=True))
    exact = Truth.log_prob
    monkeypatch.setattr(Truth, "log_prob", lambda truth: 1.001 * exact(truth))
    dense = next(iter(error_rows(CPU, quick=True)))
    assert dense.worst == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("initialisation", ["paper", "code"])
@pytest.mark.parametrize("transition", ["softmax", "block-factored"])
def test_tf32_is_within_its_error_from_either_start(transition: TransitionKind, initialisation: Initialisation) -> None:
    sizes = replace(errors._blocked_sizes(transition, quick=False), num_blocks=32)
    (row,) = errors._blocked(sizes, initialisation, torch.device("cuda"), ["tf32"])
    assert row.worst <= row.allowed


def test_peaks_are_of_work_that_was_done(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counting needs a GPU; that the work runs does not."""

    def counted(call: Callable[[], object], device: torch.device) -> int:
        call()
        return 7

    monkeypatch.setattr(memory, "peak_of", counted)
    sizes = replace(step_sizes("W3b", quick=True), batch=1, window=40)
    found = memory._step(sizes, CPU, "one text", steps=2)
    assert found.bytes == 7
    assert found.message.startswith("loss ")
    assert memory._dense_gradient(CPU, quick=True).bytes == 7


def test_states_are_doubled_until_they_do_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    def counted(call: Callable[[], object], device: torch.device) -> int:
        call()
        return 7

    def at_most_64(states: int, device: torch.device) -> Callable[[], None]:
        if states > 64:
            raise torch.OutOfMemoryError("no more")
        return lambda: None

    monkeypatch.setattr(largest, "peak_of", counted)
    found = largest._doubled("work", "bf16", at_most_64, 4, CPU, seconds=60.0)
    assert (found.states, found.bytes, found.ended) == (64, 7, "2^7 states: no more")
    assert largest._doubled("work", "bf16", at_most_64, 4, CPU, seconds=0.0).ended == "0 s were over"
    # What is doubled on a GPU runs at any size.
    largest._dense(32, CPU)()
    for transition in ("softmax", "block-factored"):
        largest._training(transition, 64, CPU)()  # type: ignore[arg-type]


def test_first_steps_share_a_folder_that_was_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    folders = []

    def child(command: list[str], *, env: dict[str, str], **_: object) -> subprocess.CompletedProcess[str]:
        folder = Path(env["TRITON_CACHE_DIR"])
        folders.append((folder, list(folder.iterdir())))
        (folder / "kernel").touch()
        assert command[1:] == ["-m", "bench.first_step", "W3b", "cpu", "quick"]
        seconds = first_step._seconds("W3b", CPU, quick=True)
        assert all(one > 0 for one in seconds)
        failed = len(folders) == 2
        return subprocess.CompletedProcess(command, int(failed), f"{json.dumps(seconds)}\n", "a\nno memory\n")

    monkeypatch.setattr(first_step.subprocess, "run", child)
    compiled, from_disk = first_step.first_steps("W3b", CPU, quick=True)
    assert compiled.compiled
    assert compiled.first_step is not None
    assert (from_disk.compiled, from_disk.first_step, from_disk.message) == (False, None, "failed: no memory")
    (first, nothing), (second, kernels) = folders
    assert (first, nothing) == (second, [])
    assert [kernel.name for kernel in kernels] == ["kernel"]


def test_an_epoch_is_timed_only_if_it_learnt(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe(
        BlockSettings(num_blocks=5),
        ModelSettings(states_per_block=6, dim=16),
        TrainSettings(batch_size=4, window=8, schedule="constant", warmup=0.0),
    )
    monkeypatch.setattr(epoch, "load_corpus", lambda name: tiny_corpus())
    monkeypatch.setattr(epoch, "recipe_of", lambda work: recipe)
    found = epoch.run_epoch("PTB", CPU)
    assert found.seconds is not None
    assert found.tokens == len(tiny_corpus().train) // 32 * 32
    standstill = replace(recipe, train=replace(recipe.train, learning_rate=1e-12, state_dropout=0.0))
    monkeypatch.setattr(epoch, "recipe_of", lambda work: standstill)
    # The same windows in the same order: without learning the losses of both halves are those of the text alone.
    stopped = epoch.run_epoch("PTB", CPU, steps=20)
    assert stopped.seconds is None
    assert stopped.message.startswith("wrong: the loss went from")


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--only", "W9"], "W9"),
        (["--states", "many"], "many"),
        (["--states", "0"], "at least 1 state"),
        (["--device", "tpu"], "tpu"),
        (["plots", "nothing.json"], "nothing.json"),
        (["--peers-from", "nowhere"], "nowhere"),
    ],
)
def test_bad_options_are_refused(arguments: list[str], named: str) -> None:
    done = CliRunner().invoke(app, ["--quick", "--device", "cpu", *arguments])
    assert done.exit_code != 0
    assert named in done.output


def test_rows_of_a_gpu_name_what_their_products_read() -> None:
    gpu = torch.device("cuda")
    assert {work: Ours().reads(work, gpu) for work in DENSE} == {
        "W1": "bf16",
        "W2": "bf16",
        "W4": "float32",
        "W5": "bf16",
    }
    assert Ours("highest").reads("W1", gpu) == "highest"
    assert Ours("highest").reads("W1", CPU) == "float32"
    assert Ours("tf32").timed("W1", dense_inputs(DenseSizes(3, 5, 2, 4), CPU)).run().shape == (2,)
