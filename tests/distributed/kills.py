"""kill -9 of random ranks of one training under torchrun, which starts them anew; the end must be that of a run in peace.

python -m tests.distributed.kills --kills 20
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tests.distributed.launch import ROOT
from tests.kill.scenarios import differences, write_material

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
    """torchrun with a training in `folder`/out of the text in the folder beside it; killed when the block ends."""
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone"]
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
    """A rank is killed up to `seconds` after the first save of each start, or, one in five, somewhere before."""
    counts = {True: 0, False: 0}
    with started(folder, ranks, kills, epochs) as agent:
        before = set[int]()
        for _ in range(kills):
            victims = _children(agent.process, ranks, before)
            before |= set(victims)
            made = draw.random() < 0.8 and _saved_again(agent.process, folder / "out" / "training.safetensors")
            time.sleep(draw.uniform(0.0, seconds))
            if agent.process.poll() is not None:
                break
            os.kill(draw.choice(victims), signal.SIGKILL)
            counts[made] += 1
        status = agent.process.wait(timeout=600)
        return Killed(status, agent.err(), counts[True], counts[False])


def _children(agent: "subprocess.Popen[bytes]", ranks: int, before: set[int]) -> list[int]:
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
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        work, draw = Path(name), random.Random(asked.seed)
        write_material(work, teacher=False)
        begun = time.monotonic()
        peace = run(work / "peace", asked.ranks, 0, asked.epochs, draw)
        assert peace.status == 0, peace.err
        print(f"in peace: {time.monotonic() - begun:.1f} s", flush=True)
        begun = time.monotonic()
        killed = run(work / "killed", asked.ranks, asked.kills, asked.epochs, draw, asked.seconds)
        found = differences(work / "peace", work / "killed") if killed.status == 0 else [killed.err]
        print(
            f"{killed.in_training} kills in training, {killed.elsewhere} elsewhere, {time.monotonic() - begun:.1f} s: "
            + ("; ".join(found) or "the same bits")
        )
        sys.exit(bool(found))


if __name__ == "__main__":
    main()
