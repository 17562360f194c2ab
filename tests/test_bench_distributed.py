"""The benchmark of several processes, and its model of larger ones."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from bench.__main__ import app
from bench.distributed import on_gpu
from bench.scaling_model import ETHERNET, NVLINK, Cluster, Link, enough_tokens, predicted


def test_the_command_measures_steps_and_what_the_model_says_of_them(tmp_path: Path) -> None:
    file = tmp_path / "found.json"
    ran = CliRunner().invoke(app, ["distributed", "--device", "cpu", "--quick", "--json", str(file)])
    assert ran.exit_code == 0, ran.output
    found = json.loads(file.read_text())
    assert [(step["ranks"], step["tokens"]) for step in found["steps"]] == [(1, 6), (1, 12), (2, 6), (2, 12)]
    assert {one["ranks"] for one in found["reductions"]} == {2}
    assert [check["tokens"] for check in found["checks"]] == [6, 12]
    assert all(check["predicted_ms"] > 0 and check["measured_ms"] > 0 for check in found["checks"])


def test_a_world_of_one_makes_the_same_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bench.distributed.REPEAT", 1)
    (step,) = on_gpu(torch.device("cpu"), quick=True)["gpu_steps"]
    assert step["bytes"] > 0
    assert step["plain_ms"] > 0
    assert step["distributed_ms"] > 0


def test_a_ring_sends_an_nth_of_the_buffer_in_each_message() -> None:
    link = Link(latency=1e-3, bytes_per_second=1e6)
    assert link.all_reduce(1, 4e6) == 0
    assert link.all_reduce(2, 4e6) == pytest.approx(2 * (1e-3 + 2))
    assert link.all_reduce(8, 4e6) == pytest.approx(14 * (1e-3 + 0.5))
    # Whatever it was, it is found again.
    fitted = Link.fitted(2, [(size, link.all_reduce(2, size)) for size in (4_000, 10_000, 4_000_000)])
    assert (fitted.latency, fitted.bytes_per_second) == pytest.approx((1e-3, 1e6))


def test_efficiency_is_reached_at_the_tokens_that_are_told() -> None:
    cluster = Cluster("two machines of four", 2, 4, NVLINK, ETHERNET)
    steps = [(1_000, 2.0), (2_000, 3.0), (8_000, 12.0)]
    for efficiency in (0.2, 0.3, 0.5, 0.9):
        tokens = enough_tokens(cluster, steps, 30_000_000, 0.1, efficiency)
        costs = (
            2.0 if tokens == 1_000 else 2 + (tokens - 1_000) / 1e3 if tokens <= 2_000 else 3 + (tokens - 2_000) * 1.5e-3
        )
        found = predicted(cluster, round(tokens), costs, 30_000_000, 0.1).efficiency
        assert found == pytest.approx(efficiency) if tokens > 1_000 else found > efficiency
