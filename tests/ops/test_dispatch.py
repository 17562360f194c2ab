"""One place decides which backend serves an operation, and can say why."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import vlhmm
from vlhmm.ops import dispatch

GPU = torch.device("cuda", 0)


@pytest.fixture
def ampere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As if there were a device of compute capability 8.0."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    dispatch.unavailable.cache_clear()
    yield
    dispatch.unavailable.cache_clear()


def test_no_other_module_asks_for_triton_or_the_capability() -> None:
    package = Path(vlhmm.__file__).parent
    asks = re.compile(r'find_spec\("triton"\)|get_device_capability')
    asking = {path.relative_to(package).as_posix() for path in package.rglob("*.py") if asks.search(path.read_text())}
    assert asking == {"ops/dispatch.py"}


def test_a_cpu_is_served_by_torch_and_the_reason_names_it() -> None:
    loops, *found = dispatch.backends(torch.device("cpu"))
    assert (loops.operation, loops.backend) == ("queries of small HMMs", "numba")
    assert {one.operation for one in found} == {kernels.operation for kernels in dispatch.OPERATIONS}
    assert {(one.backend, one.reason) for one in found} == {("torch", "the device is cpu, not cuda")}


def test_a_gpu_is_served_by_kernels_within_their_limits(ampere: None) -> None:
    loops, *found = dispatch.backends(GPU)
    assert (loops.backend, loops.reason) == ("torch", "the device is cuda, not cpu")
    assert {one.backend for one in found} == {"triton"}
    kernels = dispatch.Kernels("something", max_size=8, min_size=2, size="width")
    assert kernels.limits() == "float32, width at least 2, width at most 8"
    for size, served in ((1, False), (2, True), (8, True), (9, False)):
        assert kernels.run(torch.float32, GPU, size=size) is served
    assert not kernels.run(torch.float64, GPU)
    # Integers have one type everywhere.
    assert kernels.run(torch.int64, GPU)


def test_an_old_gpu_is_served_by_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    dispatch.unavailable.cache_clear()
    assert dispatch.unavailable(GPU) == "compute capability 7.5 is below 8.0"
    assert not dispatch.DENSE_RECURSION.run(torch.float32, GPU)
    dispatch.unavailable.cache_clear()


def test_every_operation_has_its_kernels_listed() -> None:
    named = {value for value in vars(dispatch).values() if isinstance(value, dispatch.Kernels)}
    assert named == set(dispatch.OPERATIONS)
