"""Training on several ranks is that of one process, whatever their number, also of a training that others began."""

import ctypes
import signal
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from graphs import graphs_on_cpu

from tests.distributed.launch import on_ranks
from tests.distributed.trained import CORPUS, COUNTED, QUICK, TRAININGS, gradient_events, model, weights
from vlhmm.distributed import ALONE, World, sum_in_order
from vlhmm.training import sharding
from vlhmm.training import step as step_module
from vlhmm.training.checkpoint import read_tensors, write_tensors
from vlhmm.training.gradient import train
from vlhmm.training.run_folder import RunFolder, read_log
from vlhmm.training.step import Step
from vlhmm.training.trainer import CheckEvent, StepEvent, Stopped

LONGER = replace(QUICK, epochs=3, ema=0.9)
FEW = ["scalar", "neural low-rank", "average", "plateau", "mini-batches"]


def part(folder: Path, here: World, resume: bool = True, seconds: float | None = None) -> torch.Tensor | None:
    """Goes on with a training, for a step if there are 0 `seconds`; the weights, once it is finished."""
    trained = model()
    *_, last = gradient_events(trained, LONGER, here, out=folder, resume=resume, max_seconds=seconds)
    assert isinstance(last, Stopped)
    return weights(trained) if last.reason == "finished" else None


def interrupted(folder: Path, here: World) -> None:
    """By a signal to one rank, after its second step."""
    for event in gradient_events(model(), LONGER, here, out=folder):
        if isinstance(event, StepEvent) and event.step == 2 and here.rank == here.size - 1:
            signal.raise_signal(signal.SIGINT)
    assert isinstance(event, Stopped)
    assert (event.reason, event.step) == ("interrupted", 2)


def with_graphs(here: World) -> None:
    """Sums stand between the two graphs of a step, as they do between its parts where these run eagerly."""

    def run() -> torch.Tensor:
        trained = model()
        step = Step(trained, replace(QUICK, ema=0.9), here)
        windows = torch.randint(CORPUS.tokenizer.vocab_size, (8, 6, 8), generator=torch.Generator().manual_seed(0))
        for number, window in enumerate(windows):
            step(window[step.rows.start : step.rows.stop], 0.01, fresh=number == 0)
        return torch.cat([weights(trained), weights(step.averaged)])

    eager = run()
    with pytest.MonkeyPatch.context() as patch:
        # On a CPU a step looks for underflow, which a graph could not.
        patch.setattr(step_module, "can_be_captured", lambda tables, batch: True)
        made = graphs_on_cpu(patch)
        assert torch.equal(run(), eager)
    assert [graph.replays for graph in made] == [4, 4]


def with_local_steps(here: World) -> None:
    """Between two averages a rank is one process with its rows alone."""
    settings = replace(QUICK, ema=0.9)
    ours, alone = model(), model()
    step = Step(ours, settings, here, local=True)
    single = Step(alone, replace(settings, batch_size=len(step.rows)))
    windows = torch.randint(CORPUS.tokenizer.vocab_size, (3, 6, 8), generator=torch.Generator().manual_seed(0))
    for number, window in enumerate(windows):
        for one in (step, single):
            one(window[step.rows.start : step.rows.stop], 0.01, fresh=number == 0)
    assert torch.equal(weights(ours), weights(alone))
    step.average_ranks()
    state = [value for values in single.optimizer.state_dict()["state"].values() for value in values.values()]
    averaged = [value for values in step.optimizer.state_dict()["state"].values() for value in values.values()]
    for found, own in zip(
        [weights(ours), weights(step.averaged), *averaged],
        [weights(alone), weights(single.averaged), *state],
        strict=True,
    ):
        mean = sum_in_order(own, here) / here.size
        assert torch.allclose(found, mean, rtol=1e-12, atol=1e-15)


def in_local_steps(folder: Path, here: World, **options: Any) -> tuple[str, int, torch.Tensor]:
    trained = model()
    *_, last = gradient_events(trained, LONGER, here, out=folder, local_steps=2, **options)
    assert isinstance(last, Stopped)
    return last.reason, last.step, weights(trained)


def local_run(folder: Path, here: World) -> None:
    """It is stopped where all ranks have the same weights: after two steps, and at the end of the epoch of three."""
    _, _, unbroken = in_local_steps(folder / "local", here)
    stops = [in_local_steps(folder / "local in parts", here, max_seconds=0.0)[:2]]
    while stops[-1][0] == "time":
        reason, step, found = in_local_steps(folder / "local in parts", here, resume=True, max_seconds=0.0)
        stops.append((reason, step))
    assert [step for _, step in stops] == [2, 3, 4, 6, 8, 9]
    assert torch.equal(found, unbroken)


def stopped_between_averages(folder: Path, here: World) -> None:
    """By a signal to one rank after the third of nine steps, of which the fourth ends with an average."""
    settings = replace(QUICK, epochs=3, checks_per_epoch=1, batch_size=2)

    def run(out: Path, stop_at: int = 0, **options: Any) -> tuple[str, int, torch.Tensor]:
        trained = model()
        for event in gradient_events(trained, settings, here, out=out, local_steps=4, **options):
            if isinstance(event, StepEvent) and event.step == stop_at and here.rank == here.size - 1:
                signal.raise_signal(signal.SIGINT)
        assert isinstance(event, Stopped)
        return event.reason, event.step, weights(trained)

    _, num_steps, unbroken = run(folder / "local, whole")
    assert num_steps > 4
    reason, step, found = run(folder / "local, stopped", stop_at=3)
    assert (reason, step) == ("interrupted", 4)
    # Before the first check the model is what the average has left.
    mean = sum_in_order(found, here) / here.size
    assert torch.equal(found, mean)
    _, _, found = run(folder / "local, stopped", resume=True)
    assert torch.equal(found, unbroken)


def local_with_others_between(folder: Path, here: World) -> None:
    """One process has gone on with a run of local steps, and hands it back."""
    reason, _, _ = in_local_steps(folder / "local, then one", here, resume=True, max_seconds=0.0)
    assert reason == "time"


def test_an_infinite_loss_is_looked_at_by_all_ranks_where_only_one_has_a_graph() -> None:
    """Their numbers of rows differ, and with them what can be captured."""

    def reads(here: World) -> float:
        step = Step(model(), QUICK, here)
        step.loss.fill_(torch.inf)
        step.token_log_probs.fill_(-1.0)
        step.token_log_probs[0, 0] = -torch.inf
        step._gradients.replayed = here.is_first
        return step.read_loss()

    assert on_ranks(reads, 2, time_limit=10.0) == ["1.0"] * 2


def test_ranks_train_what_one_process_does_and_go_on_with_each_others_runs(tmp_path: Path) -> None:
    expected = {name: trained(ALONE) for name, trained in TRAININGS.items()}
    whole = part(tmp_path / "whole", ALONE, resume=False)

    def same(here: World, names: Iterable[str]) -> None:
        for name in names:
            found = TRAININGS[name](here)
            exact = 1e-10 if name in COUNTED else 1e-6
            assert torch.allclose(found, expected[name], rtol=exact, atol=exact), name

    def two(here: World) -> None:
        same(here, TRAININGS)
        # As a script of torchrun calls it.
        trained = model()
        train(trained, CORPUS, QUICK)
        assert torch.allclose(weights(trained), expected["neural softmax"][-len(weights(trained)) :], rtol=1e-6)
        with_graphs(here)
        assert part(tmp_path / "by one", here, seconds=0.0) is None
        assert part(tmp_path / "by two", here, resume=False, seconds=0.0) is None
        interrupted(tmp_path / "interrupted", here)
        with_local_steps(here)
        local_run(tmp_path, here)
        stopped_between_averages(tmp_path, here)
        in_local_steps(tmp_path / "local, then one", here, max_seconds=0.0)

    def four(here: World) -> None:
        same(here, FEW)
        assert part(tmp_path / "by two", here, seconds=0.0) is None
        for name in ("by one", "interrupted"):
            is_whole(part(tmp_path / name, here))

    def is_whole(found: torch.Tensor | None) -> None:
        assert found is not None
        assert whole is not None
        assert torch.allclose(found, whole, rtol=1e-6, atol=1e-6)

    def sharded(here: World) -> None:
        """From the first step of another run to the last but one."""
        step_module.SHARDED_FROM, sharding.LARGE = 0, 7
        with_graphs(here)
        same(here, ["neural softmax", "frozen embeddings"])
        is_whole(part(tmp_path / "for parts", here, resume=False))
        for _ in range(3):
            assert part(tmp_path / "by parts", here, seconds=0.0) is None

    assert part(tmp_path / "by one", ALONE, resume=False, seconds=0.0) is None
    assert part(tmp_path / "by parts", ALONE, resume=False, seconds=0.0) is None
    assert on_ranks(sharded, 3) == ["None"] * 3
    is_whole(part(tmp_path / "by parts", ALONE))
    assert on_ranks(two, 2) == ["None"] * 2
    assert part(tmp_path / "local, then one", ALONE, seconds=0.0) is None
    assert on_ranks(lambda here: local_with_others_between(tmp_path, here), 2) == ["None"] * 2
    assert on_ranks(four, 4) == ["None"] * 4
    is_whole(part(tmp_path / "by two", ALONE))

    checks = [record["step"] for record in read_log(tmp_path / "whole") if record["kind"] == "check"]
    state = read_tensors(tmp_path / "whole" / "training.safetensors")[0]
    for name in ("by one", "by two", "by parts", "for parts", "interrupted"):
        # Once, not once a rank; and nothing tells by how many it was made.
        assert [record["step"] for record in read_log(tmp_path / name) if record["kind"] == "check"] == checks
        made = read_tensors(tmp_path / name / "training.safetensors")[0]
        assert {key: value.shape for key, value in made.items()} == {key: value.shape for key, value in state.items()}


def refused(work: Callable[[World], object], ranks: int = 2) -> str:
    """The one error of all ranks."""
    told = on_ranks(work, ranks, time_limit=20.0)
    (error,) = [answer for answer in told if not answer.startswith("OtherRankError: ")]
    rank, text = told.index(error), error.partition(": ")[2]
    assert [answer for answer in told if answer != error] == [f"OtherRankError: rank {rank}: {text}"] * (ranks - 1)
    return text


def test_ranks_that_would_train_otherwise_are_refused_before_the_first_step() -> None:
    def other_settings(here: World) -> None:
        list(gradient_events(model(), replace(QUICK, learning_rate=0.1 + here.rank), here))

    assert refused(other_settings) == (
        "train.learning_rate is 0.1 on rank 0, but 1.1 on rank 1: start all ranks with the same code, settings and text"
    )
    many = refused(lambda here: list(gradient_events(model(), replace(QUICK, batch_size=1), here)))
    assert many == (
        "batch_size is 1, but there are 2 ranks, and each takes a row at least: make it larger, or start fewer"
    )


def test_what_does_not_fit_is_refused_with_the_ranks_that_would_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "available_bytes", lambda device: 34 << 30)
    monkeypatch.setattr(sharding, "barrier", lambda here, what: None)

    def require(weights_gib: int, ranks: int) -> None:
        weights = torch.empty(weights_gib << 28, device="meta")
        sharding.require_fitting([weights], World(0, ranks), averaged=False, sharded=True)

    # Three copies of 10 GiB, and a part of 20 GiB.
    with pytest.raises(
        ValueError, match=r"2,684,354,560 parameters on 4 ranks takes 35.0 GiB .* but 34.0 GiB .* start 8 ranks"
    ):
        require(10, 4)
    require(10, 8)
    with pytest.raises(ValueError, match=r"takes 42.0 GiB .* no number of ranks is enough: make the model smaller"):
        require(12, 4)


def test_ranks_on_one_machine_share_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharding, "available_bytes", lambda device: 100)
    monkeypatch.setattr(sharding, "barrier", lambda here, what: None)
    weights = torch.empty(4)
    # 16 bytes: three times, and the state of a half.
    assert sharding.bytes_of_training([weights], 2, averaged=False, sharded=True) == 64
    sharding.require_fitting([weights], World(0, 2), averaged=False, sharded=True)
    with pytest.raises(ValueError, match="on cpu, of which 2 ranks have a part each"):
        sharding.require_fitting([weights], World(0, 2, local_size=2), averaged=False, sharded=True)


def test_a_rank_that_takes_up_a_run_never_holds_all_of_its_state(tmp_path: Path) -> None:
    """Its peak of memory is measured, as Linux tells it of a process."""
    size, number = 2 << 20, 24
    write_tensors(
        tmp_path / "training.safetensors",
        {f"t{n}": torch.full((size,), float(n)) for n in range(number)},
        {"state": "{}"},
    )

    def reads(here: World) -> str:
        # M_MMAP_THRESHOLD: what is freed is given back to the system at once.
        ctypes.CDLL(None).mallopt(-3, 1 << 20)
        with RunFolder(tmp_path, resume=True, here=here) as folder:
            saved = folder.load_state()
            assert saved is not None
            tensors, _ = saved
            Path("/proc/self/clear_refs").write_text("5")
            before = memory("VmRSS")
            assert len(tensors) == number
            for name in tensors:
                assert float(tensors[name].sum()) == size * int(name[1:])
            # A tensor or two, and what gloo keeps: far from all.
            assert here.is_first or memory("VmHWM") - before < 4 * size * number / 2
        return "read"

    assert on_ranks(reads, 2) == ["read"] * 2


def memory(kind: str) -> int:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(kind)]
    return 1024 * int(line.split()[1])


def test_weights_that_differ_between_ranks_end_the_training_at_a_check() -> None:
    def differing(here: World) -> None:
        trained = model()
        for event in gradient_events(trained, QUICK, here):
            assert not isinstance(event, CheckEvent)
            if here.rank == 1:
                with torch.no_grad():
                    next(trained.parameters()).view(-1)[0] += 1e-12

    assert "differs between rank 0 and rank 1" in refused(differing)


def test_a_rank_that_hangs_in_a_step_is_named_with_the_step() -> None:
    def hangs(here: World) -> None:
        for event in gradient_events(model(), QUICK, here):
            if isinstance(event, StepEvent) and event.step == 1 and here.rank == 1:
                signal.raise_signal(signal.SIGSTOP)

    told = on_ranks(hangs, 2, time_limit=2.0, seconds=8)
    assert told[1] == "hangs"
    assert told[0] == (
        "LostRankError: rank 1 did not answer for 2 s in step 1: it hangs, or the time limit is too short"
    )
