"""Several ranks for the tests: processes of torchrun, or, where only their world matters, forks of this process."""

import os
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import vlhmm
from vlhmm.distributed import World, joined

ROOT = Path(vlhmm.__file__).parents[1]


def torchrun(*program: str, ranks: int, options: tuple[str, ...] = (), seconds: float = 120) -> tuple[int, str, str]:
    """`program`: a script with its arguments, or "-m", a module and its arguments. Exit status, stdout, stderr."""
    command = [sys.executable, "-m", "torch.distributed.run", f"--nproc-per-node={ranks}", "--standalone", *options]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")]), "OMP_NUM_THREADS": "1"}
    ran = subprocess.run([*command, *program], env=env, capture_output=True, text=True, timeout=seconds)
    return ran.returncode, ran.stdout, ran.stderr


def on_ranks(work: Callable[[World], object], ranks: int, time_limit: float = 60.0, seconds: float = 90.0) -> list[str]:
    """What `work` returns on each rank, as text, or its error; "killed" where there is neither. The store lives here, as it does
    in torchrun: longer than any rank."""
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in range(ranks)]
    ports = [fork.Pipe(duplex=False) for _ in range(ranks)]
    children = [
        fork.Process(target=_child, args=(work, rank, ranks, port, time_limit, told), daemon=True)
        for rank, ((_, told), (port, _)) in enumerate(zip(pipes, ports, strict=True))
    ]
    for child, (_, told) in zip(children, pipes, strict=True):
        child.start()
        told.close()
    # After the forks: its thread may hold locks of torch at any time, and a fork made then would never get them.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=timedelta(seconds=60))
    for _, port in ports:
        port.send(store.port)
    answers, end = [], time.monotonic() + seconds
    try:
        for heard, _ in pipes:
            try:
                answers.append(heard.recv() if heard.poll(max(0.0, end - time.monotonic())) else "hangs")
            except EOFError:
                answers.append("killed")
    finally:
        for child in children:
            child.kill()
            child.join()
    return answers


def _child(
    work: Callable[[World], object],
    rank: int,
    ranks: int,
    port: "multiprocessing.Connection",
    time_limit: float,
    told: "multiprocessing.Connection",
) -> None:
    environment = {
        "RANK": rank,
        "LOCAL_RANK": rank,
        "WORLD_SIZE": ranks,
        "LOCAL_WORLD_SIZE": ranks,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": port.recv(),
    }
    os.environ.update({name: str(value) for name, value in environment.items()})
    os.environ.update({"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"})
    try:
        with joined(time_limit) as here:
            answer = str(work(here))
    except BaseException as error:
        answer = f"{type(error).__name__}: {error}"
        if isinstance(error, AssertionError):
            answer += traceback.format_exc()
    told.send(answer)
    told.close()
