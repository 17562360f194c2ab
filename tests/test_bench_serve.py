"""`python -m bench serve`: a server under load, what its clients saw, and its memory."""

import json
import math
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
    # As many as were asked for, or as make four times what one client gets.
    rate = alone["requests_per_second"]
    assert (alone["clients"], overload["clients"]) == (1, max(12, 2 + math.ceil(4 * rate * 0.2)))
    (beside,) = found["overload"]
    assert beside["saturating_clients"] == 1
    assert beside["saturating_requests_per_second"] == rate
    assert beside["times_saturation"] == pytest.approx(sum(overload["statuses"].values()) / 2 / rate)
    assert alone["statuses"].keys() == {"200"}
    # Two requests at a time are taken, and twelve ask.
    assert "429" in overload["statuses"]
    assert overload["statuses"].keys() <= {"200", "429"}
    assert alone["tokens_per_second"] > alone["requests_per_second"] > 0
    assert 0 < alone["p50_ms"] <= alone["p95_ms"] <= alone["p99_ms"]
    (memory,) = found["memory"]
    assert memory["load"]["clients"] == overload["clients"]
    assert 10 < memory["first_mib"] <= memory["highest_mib"] == pytest.approx(max(memory["samples"]), abs=0.1)


def test_memory_that_was_watched_before_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serve, "WARM_SECONDS", 0.1)
    file = tmp_path / "serve.json"
    file.write_text(json.dumps({"command": "soak", "commit": "abc", "memory": [{"minutes": 10}], "serve": []}))
    command = ["serve", "--device", "cpu", "--states", "512", "--clients", "1", "--seconds", "0.5", "--overload", "0"]
    ran = CliRunner().invoke(app, [*command, "--json", str(file)])
    assert ran.exit_code == 0, ran.output
    found = json.loads(file.read_text())
    assert found["memory"] == [{"command": "soak", "commit": "abc", "minutes": 10}]
    assert [one["clients"] for one in found["serve"]] == [1]


def test_an_overload_asks_for_four_times_what_saturates() -> None:
    def load(clients: int, rate: float) -> serve.Load:
        return serve.Load(clients, 10, rate, 0, None, None, None, {"200": int(10 * rate)})

    loads = [load(1, 20), load(8, 97), load(64, 100), load(256, 90)]
    assert serve.saturation(loads) == (8, 100)
    assert serve.overloading(loads, max_requests=512) == 512 + math.ceil(400 * serve.RETRY_SECONDS)
    assert serve.overloading(loads[:2], max_requests=1) == max(32, 1 + math.ceil(4 * 97 * serve.RETRY_SECONDS))
    assert serve.overload_of([*loads, load(1000, 410)]).times_saturation == pytest.approx(4.1)
