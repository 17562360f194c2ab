"""Commands of torchrun whose ranks fail, are interrupted or are killed."""

import os
import random
import resource
import signal
import sys
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from tests.distributed.kills import MODEL, children, run, started, started_on_two
from tests.distributed.launch import on_ranks
from tests.kill.scenarios import differences, write_material
from vlhmm.cli import main
from vlhmm.distributed import World
from vlhmm.training.run_folder import read_log

RANKS = 2


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    write_material(folder, teacher=False)
    return folder


def command(folder: Path, here: World, *options: str) -> int:
    """The status of `vlhmm train` on one rank, raised unless it is 0; what it prints goes to a file of its own."""
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    sys.argv = ["vlhmm", "train", "../text.txt", "--out", "out", *MODEL.split(), *options]
    with (
        Path(f"../{folder.name}.{here.rank}.out").open("w") as out,
        Path(f"../{folder.name}.{here.rank}.err").open("w") as err,
        redirect_stdout(out),
        redirect_stderr(err),
    ):
        status = main()
    if status:
        raise ValueError(status)
    return status


def printed(folder: Path, kind: str) -> list[str]:
    """By all ranks."""
    return [
        line
        for rank in range(RANKS)
        for line in (folder.parent / f"{folder.name}.{rank}.{kind}").read_text().splitlines()
    ]


@pytest.fixture(scope="module")
def peace(work: Path) -> Path:
    """A training in peace."""
    folder = work / "peace"
    assert on_ranks(lambda here: command(folder, here, "--set", "epochs=8"), RANKS) == ["0"] * RANKS
    return folder


def test_a_run_of_several_ranks_is_told_once(peace: Path) -> None:
    checks = [line for line in printed(peace, "err") if "valid perplexity" in line]
    assert len(checks) == 8 * 2 == len([record for record in read_log(peace / "out") if record["kind"] == "check"])
    assert len([line for line in printed(peace, "out") if line.startswith("model ")]) == 1


def test_a_killed_rank_costs_the_steps_since_the_last_save_alone(work: Path, peace: Path) -> None:
    killed = run(work / "killed", RANKS, kills=1, epochs=8, draw=random.Random(1), seconds=0.3)
    assert (killed.status, killed.in_training) == (0, 1), killed.err
    assert "started anew by torchrun" in killed.err
    assert differences(peace, work / "killed") == []


def test_a_run_that_ends_before_its_ranks_are_killed_is_no_success(work: Path) -> None:
    with pytest.raises(AssertionError, match="torchrun ended after 0 of 1 kills, raise --epochs"):
        run(work / "early", RANKS, kills=1, epochs=1, draw=random.Random(1), seconds=600.0)


def test_a_rank_killed_on_one_machine_costs_those_of_others_no_more(work: Path, peace: Path) -> None:
    """torchrun counts restarts by machine: the one that joins again has seen none."""
    folder = work / "two machines"
    with started_on_two(folder, 3, epochs=8) as agents:
        state = folder / "out" / "training.safetensors"
        while not state.exists() and all(agent.process.poll() is None for agent in agents):
            time.sleep(0.01)
        os.kill(children(agents[0].process, 1, set())[0], signal.SIGKILL)
        statuses = [agent.process.wait(timeout=90) for agent in agents]
        errors = [agent.err() for agent in agents]
    assert statuses == [0, 0], errors
    assert sum("started anew by torchrun" in err for err in errors) == 1
    assert differences(peace, folder) == []


def test_a_full_disk_of_the_first_rank_ends_all_with_one_message(work: Path) -> None:
    def full(here: World) -> int:
        if here.is_first:
            # Of the state, not of the small files before it.
            resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        return command(work / "full", here, "--set", "epochs=1")

    assert on_ranks(full, RANKS) == ["ValueError: 2", "OtherRankError: rank 0: 2"]
    (error,) = [line for line in printed(work / "full", "err") if "error" in line.lower()]
    assert error.startswith("error: out/")
    assert error.endswith("File too large")


def test_ctrl_c_ends_all_ranks_with_one_checkpoint(work: Path) -> None:
    """As a terminal sends it: to torchrun, which passes it on."""
    folder = work / "interrupted"
    with started(folder, RANKS, 0, epochs=400) as agent:
        state = folder / "out" / "training.safetensors"
        while not state.exists() and agent.process.poll() is None:
            time.sleep(0.02)
        agent.process.send_signal(signal.SIGINT)
        agent.process.wait(timeout=60)
        told = agent.err()
    (stopped,) = [line for line in told.splitlines() if line.startswith("stopped at step ")]
    assert "--resume" in stopped
    assert told.count("stopping after this step") == 1
