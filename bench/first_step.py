"""`python -m bench.first_step W3b`: one training step in a fresh process, compilation included, as JSON."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from typing import cast

import torch

from bench.measure import wait
from bench.ours import STEP_PRECISION, STEPS_CHECKED, step_inputs
from bench.sizes import step_sizes
from bench.workloads import Step as StepWork
from bench.workloads import products_read
from vlhmm.training.step import Step

ALLOWED = 30.0
"""Seconds of the first step."""


@dataclass(frozen=True)
class FirstStep:
    work: str
    compiled: bool
    """Kernels had to be compiled; else they lay in Triton's folder from a process before."""
    precision: str
    """What matrix products read."""
    first_step: float | None = None
    """Seconds."""
    until_captured: float | None = None
    """Of the steps after it, until the first one by CUDA graphs is done."""
    process: float | None = None
    """Of everything, imports and the making of the model included."""
    allowed: float = ALLOWED
    message: str = ""


def first_steps(work: StepWork, device: torch.device, quick: bool) -> list[FirstStep]:
    """Twice in processes of their own that share an empty folder for kernels."""
    found, reads = [], products_read(STEP_PRECISION, device)
    with tempfile.TemporaryDirectory() as folder:
        for compiled in (True, False):
            command = [sys.executable, "-m", "bench.first_step", work, device.type, *(["quick"] if quick else [])]
            begun = time.perf_counter()
            child = subprocess.run(
                command, env={**os.environ, "TRITON_CACHE_DIR": folder}, capture_output=True, text=True, check=False
            )
            if child.returncode != 0:
                reason = (child.stderr.strip().splitlines() or ["no reason given"])[-1]
                found.append(FirstStep(work, compiled, reads, message=f"failed: {reason[:120]}"))
                continue
            first_step, until_captured = json.loads(child.stdout.splitlines()[-1])
            process = time.perf_counter() - begun
            found.append(FirstStep(work, compiled, reads, first_step, until_captured, process))
    return found


def _seconds(work: StepWork, device: torch.device, quick: bool) -> tuple[float, float]:
    inputs = step_inputs(step_sizes(work, quick), device)
    step = Step(inputs.model, inputs.settings)
    marks = []
    for number, window in enumerate(inputs.windows[:STEPS_CHECKED]):
        wait(device)
        marks.append(time.perf_counter())
        step(window, inputs.settings.learning_rate, fresh=number == 0)
    wait(device)
    return marks[1] - marks[0], time.perf_counter() - marks[1]


if __name__ == "__main__":
    print(json.dumps(_seconds(cast(StepWork, sys.argv[1]), torch.device(sys.argv[2]), "quick" in sys.argv[3:])))
