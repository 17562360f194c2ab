"""Where a number comes from: machine, versions, commit."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import numpy as np
import torch

from vlhmm._version import __version__


def versions() -> dict[str, str]:
    return {
        "vlhmm": __version__,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
    }


def device_name(device: torch.device) -> str:
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    threads = torch.get_num_threads()
    return f"cpu, {threads} thread{'' if threads == 1 else 's'}"


def commit_of_source() -> str | None:
    """Of this program's source; `VLHMM_COMMIT` says it where the history does not travel with the files."""
    if given := os.environ.get("VLHMM_COMMIT"):
        return given
    here = Path(__file__).parent

    def git(*arguments: str) -> str | None:
        try:
            ran = subprocess.run(["git", "-C", str(here), *arguments], capture_output=True, text=True, timeout=10)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return ran.stdout.strip() if ran.returncode == 0 else None

    commit = git("rev-parse", "HEAD")
    changed = git("status", "--porcelain", "--untracked-files=no", "--", "..")
    return f"{commit} with changes" if commit and changed else commit
