"""Memory is counted as the system gives it: a container's limit, less what is used and does not give way."""

from pathlib import Path

import pytest
import torch

from vlhmm import memory

CPU = torch.device("cpu")


@pytest.fixture
def container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    monkeypatch.setattr(memory, "_system_available", lambda: 1_000)
    return tmp_path


def test_cached_files_give_way(container: Path) -> None:
    assert memory.available_bytes(CPU) == 1_000
    (container / "memory.max").write_text("900\n")
    (container / "memory.current").write_text("800\n")
    assert memory.available_bytes(CPU) == 100
    (container / "memory.stat").write_text("anon 200\nfile 600\ninactive_file 500\nactive_file 100\n")
    assert memory.available_bytes(CPU) == 600
    (container / "memory.max").write_text("max\n")
    assert memory.available_bytes(CPU) == 1_000


def test_what_cannot_fit_is_refused_with_both_numbers(container: Path) -> None:
    memory.require_memory(1_000, "a table", "make it smaller", CPU)
    with pytest.raises(
        ValueError, match=r"a table would take 2\.0 GiB, but 0\.0 GiB are available on cpu: make it smaller"
    ):
        memory.require_memory(2 << 30, "a table", "make it smaller", CPU)
