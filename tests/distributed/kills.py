"""kill -9 of random ranks of one training under torchrun, which starts them anew; the end must be that of a run in peace.

python -m tests.distributed.kills --kills 20 --json bench/results/kills-ranks.json
"""

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch

from tests.distributed.launch import ROOT
from tests.kill.scenarios import differences, write_material
from vlhmm.provenance import commit_of_source, device_name, versions

MODEL = "--preset demo --device cpu --set num_blocks=5 --set states_per_block=8 --set batch_size=4 --set window=16 --no-eval"
STARTING_SECONDS = 60.0
"""A rank that has not saved anything after so long is killed where it is."""


@dataclass(frozen=True)
class Killed:
    status: int
    err: str
    in_training: int
    """Kills of ranks that had made steps."""
    elsewhere: int
    """Kills of ranks that were starting."""


@dataclass(frozen=True)
class Agent:
    """torchrun, and what its ranks say."""

    process: "subprocess.Popen[bytes]"
    said: IO[str]

    def err(self) -> str:
        self.said.seek(0)
        return self.said.read()


@contextmanager
def started(folder: Path, ranks: int, restarts: int, epochs: int) -> Iterator[Agent]:
    """torchrun with a training in `folder`/out of the text in the folder beside it; ended with the block."""
    with _agent(folder, [f"--nproc-per-node={ranks}", "--standalone"], restarts, epochs) as agent:
        yield agent


@contextmanager
def started_on_two(folder: Path, restarts: int, epochs: int) -> Iterator[list[Agent]]:
    """The same training by the torchruns of two machines with a rank each, as far as one machine can play both."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        endpoint = f"127.0.0.1:{free.getsockname()[1]}"
    meeting = ["--nnodes=2", "--nproc-per-node=1", "--rdzv-id=two", "--rdzv-backend=c10d", "--local-addr=127.0.0.1"]
    meeting += [f"--rdzv-endpoint={endpoint}"]
    with ExitStack() as stack:
        yield [
            stack.enter_context(_agent(folder, [*meeting, f"--rdzv-conf=is_host={int(host)}"], restarts, epochs))
            for host in (True, False)
        ]


@contextmanager
def _agent(folder: Path, meeting: list[str], restarts: int, epochs: int) -> Iterator[Agent]:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", *meeting]
    command += [f"--max-restarts={restarts}", "--monitor-interval=0.05", "-m", "vlhmm", "train", "../text.txt"]
    command += ["--out", "out", *MODEL.split(), "--set", f"epochs={epochs}"]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryFile("w+") as err:
        process = subprocess.Popen(command, env=env, cwd=folder, stdout=subprocess.DEVNULL, stderr=err)
        try:
            yield Agent(process, err)
        finally:
            if process.poll() is None:
                # Its ranks end with it.
                process.terminate()
            process.wait()


def run(folder: Path, ranks: int, kills: int, epochs: int, draw: random.Random, seconds: float = 3.0) -> Killed:
    """A rank is killed up to `seconds` after the first save of each start, or, one in five, somewhere before.

    Raises `AssertionError` if training ends before all kills are made: it needs more epochs."""
    counts = {True: 0, False: 0}
    with started(folder, ranks, kills, epochs) as agent:
        before = set[int]()
        for _ in range(kills):
            victims = children(agent.process, ranks, before)
            before |= set(victims)
            made = draw.random() < 0.8 and _saved_again(agent.process, folder / "out" / "training.safetensors")
            if _ended_within(agent.process, draw.uniform(0.0, seconds)):
                raise AssertionError(f"{_early(sum(counts.values()), kills)}: {agent.err()}")
            os.kill(draw.choice(victims), signal.SIGKILL)
            counts[made] += 1
        status = agent.process.wait(timeout=900)
        return Killed(status, agent.err(), counts[True], counts[False])


def _ended_within(agent: "subprocess.Popen[bytes]", seconds: float) -> bool:
    try:
        agent.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _early(made: int, kills: int) -> str:
    return f"torchrun ended after {made} of {kills} kills, raise --epochs"


def children(agent: "subprocess.Popen[bytes]", ranks: int, before: set[int]) -> list[int]:
    """The ranks that torchrun has started since."""
    while agent.poll() is None:
        tasks = Path(f"/proc/{agent.pid}/task")
        found = {int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()} - before
        if len(found) == ranks:
            return sorted(found)
        time.sleep(0.02)
    raise AssertionError("torchrun has ended before its ranks were killed")


def _saved_again(agent: "subprocess.Popen[bytes]", path: Path) -> bool:
    """Waits until a state is saved; False: it takes too long, or training has ended."""
    before = path.stat().st_mtime_ns if path.exists() else 0
    end = time.monotonic() + STARTING_SECONDS
    while agent.poll() is None and time.monotonic() < end:
        if path.exists() and path.stat().st_mtime_ns != before:
            return True
        time.sleep(0.01)
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="write what happened there")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work, draw = Path(name), random.Random(asked.seed)
        write_material(work, teacher=False)
        # Before the folder of results is changed.
        commit = commit_of_source()
        begun = time.monotonic()
        peace = run(work / "peace", asked.ranks, 0, asked.epochs, draw)
        assert peace.status == 0, peace.err
        peace_seconds = time.monotonic() - begun
        print(f"in peace: {peace_seconds:.1f} s", flush=True)
        begun = time.monotonic()
        killed = run(work / "killed", asked.ranks, asked.kills, asked.epochs, draw, asked.seconds)
        seconds = time.monotonic() - begun
        found = differences(work / "peace", work / "killed") if killed.status == 0 else [killed.err]
        told = f"{killed.in_training} kills in training, {killed.elsewhere} elsewhere, {seconds:.1f} s"
        print(f"{told}: {'; '.join(found) or 'the same bits'}")
        if asked.json is not None:
            record: dict[str, Any] = {
                "command": " ".join(["python", "-m", "tests.distributed.kills", *sys.argv[1:]]),
                "commit": commit,
                "device": device_name(torch.device("cpu")),
                "versions": versions(),
                "training": f"{MODEL} --set epochs={asked.epochs}",
                "seed": asked.seed,
                "ranks": asked.ranks,
                "kills_in_training": killed.in_training,
                "kills_while_starting": killed.elsewhere,
                "seconds_in_peace": round(peace_seconds, 1),
                "seconds": round(seconds, 1),
                "differences": found,
            }
            asked.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
        sys.exit(bool(found))


if __name__ == "__main__":
    main()
