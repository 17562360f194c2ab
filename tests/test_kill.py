"""A few kills and failing writes of `make kill`: commands go on to the same bits, and errors are one line that names the file."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import vlhmm

ROOT = Path(vlhmm.__file__).parents[1]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked")
def test_killed_commands_and_failing_writes_lose_nothing() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "tests.kill", "--quiet", "--kills", "8", "--errors", "6", "--only", "train,em,prepare"],
        cwd=Path(__file__).parents[1],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "8 kills and " in ran.stdout
