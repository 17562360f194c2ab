"""A model folder that the command line made, and a browser that may reach no network."""

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))

from cli_helpers import SMALL, write_text

from vlhmm.cli import main

INSTALL = "apt-get install -y chromium"
FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
]


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with its training run."""
    where = tmp_path_factory.mktemp("explorer")
    write_text(where / "text.txt")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.argv", ["vlhmm", "train", str(where / "text.txt"), "--out", str(where / "run"), *SMALL])
        assert main() == 0
    return where / "run"


@pytest.fixture(scope="session")
def browser() -> Iterator[Any]:
    """Chromium of the system; nothing is downloaded."""
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        if os.environ.get("VLHMM_REQUIRE_BROWSER") == "1":
            pytest.fail(f"no Chromium, but VLHMM_REQUIRE_BROWSER is 1: {INSTALL}")
        pytest.skip(f"no Chromium: {INSTALL}")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        # A new profile each time.
        launched = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield launched
        launched.close()
