"""Where derived and fetched files are kept between runs."""

import os
from pathlib import Path


def cache_dir() -> Path:
    """`VLHMM_CACHE`, else `vlhmm` in `XDG_CACHE_HOME`, else `~/.cache/vlhmm`."""
    if chosen := os.environ.get("VLHMM_CACHE"):
        return Path(chosen).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "vlhmm"
