"""`python -m bench serve`: a server under load, what its clients saw, and its memory."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from bench import serve
from bench.__main__ import app


def test_loads_an_overload_and_memory_are_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "WARM_SECONDS", 0.1)
    monkeypatch.setattr(serve, "RETRY_SECONDS", 0.2)
    command = ["serve", "--device", "cpu", "--states", "512", "--clients", "1", "--seconds", "2", "--overload", "12"]
    command += ["--max-requests", "2", "--soak", "0.02", "--json", str(tmp_path / "serve.json")]
    ran = CliRunner().invoke(app, command)
    assert ran.exit_code == 0, ran.output
    found = json.loads((tmp_path / "serve.json").read_text())
    alone, overload = found["serve"]
    assert (alone["clients"], overload["clients"]) == (1, 12)
    assert alone["statuses"].keys() == {"200"}
    # Two requests at a time are taken, and twelve ask.
    assert "429" in overload["statuses"]
    assert overload["statuses"].keys() <= {"200", "429"}
    assert alone["tokens_per_second"] > alone["requests_per_second"] > 0
    assert 0 < alone["p50_ms"] <= alone["p95_ms"] <= alone["p99_ms"]
    (memory,) = found["memory"]
    assert memory["load"]["clients"] == 12
    assert 10 < memory["first_mib"] <= memory["highest_mib"] == pytest.approx(max(memory["samples"]), abs=0.1)
