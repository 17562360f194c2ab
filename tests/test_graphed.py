"""`Graphed`: when work runs eagerly, is captured and is replayed; the graph is played by the work itself."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from graphs import WorkAgain, graphs_on_cpu

from vlhmm import capture
from vlhmm.capture import CaptureError, Graphed

CPU = torch.device("cpu")


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[WorkAgain]:
    return graphs_on_cpu(monkeypatch)


def replayed(graphed: Graphed[int], calls: int, key: int = 0) -> list[bool]:
    found = []
    for number in range(calls):
        assert graphed(lambda number=number: number, key) is not None
        found.append(graphed.replayed)
    return found


def test_work_runs_eagerly_then_is_captured_once_and_replayed(made: list[WorkAgain]) -> None:
    done = [0]

    def work() -> int:
        done[0] += 1
        return done[0]

    graphed = Graphed[int](CPU, eager_calls=2)
    assert [graphed.eager_left(), graphed.has_graph()] == [2, False]
    assert [graphed(work) for _ in range(5)] == [1, 2, 3, 4, 5]
    assert [graph.replays for graph in made] == [3]
    assert [graphed.eager_left(), graphed.has_graph()] == [0, True]


def test_a_replay_does_the_work_that_was_captured_and_gives_its_result(made: list[WorkAgain]) -> None:
    graphed = Graphed[str](CPU, eager_calls=1)
    assert [graphed(lambda name=name: name) for name in ("first", "second", "third")] == ["first", "second", "second"]


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_eager_calls_are_counted_for_each_key(made: list[WorkAgain], calls: int) -> None:
    graphed = Graphed[int](CPU, eager_calls=calls)
    for key in (4, 7):
        assert replayed(graphed, calls + 2, key) == [False] * calls + [True] * 2
    assert replayed(graphed, 2, 4) == [True, True]
    assert len(made) == 2


def test_a_call_that_must_be_eager_neither_counts_nor_loses_the_graph(made: list[WorkAgain]) -> None:
    graphed = Graphed[str](CPU, eager_calls=1)
    for name, eagerly, expected in (
        ("a", True, "a"),
        ("b", False, "b"),
        ("c", True, "c"),
        ("d", False, "d"),
        ("e", True, "e"),
        ("f", False, "d"),
    ):
        assert graphed(lambda name=name: name, eagerly=eagerly) == expected
    assert [graph.replays for graph in made] == [2]


def test_graphs_of_one_share_memory_and_those_of_two_do_not(made: list[WorkAgain]) -> None:
    graphed, other = Graphed[int](CPU, eager_calls=0), Graphed[int](CPU, eager_calls=0)
    for key in range(3):
        replayed(graphed, 1, key)
    replayed(other, 1)
    first, second, third, of_other = made
    assert [second.in_memory_of, third.in_memory_of] == [first, first]
    assert [first.in_memory_of, of_other.in_memory_of] == [None, None]
    graphed.forget()
    replayed(graphed, 1)
    assert made[-1].in_memory_of is None


def test_what_is_forgotten_is_counted_and_captured_anew(made: list[WorkAgain]) -> None:
    graphed = Graphed[int](CPU, eager_calls=1)
    replayed(graphed, 3)
    graphed.forget()
    assert [graphed.has_graph(0), graphed.eager_left(0)] == [False, 1]
    assert replayed(graphed, 3) == [False, True, True]
    assert [graph.replays for graph in made] == [2, 2]


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_without_graphs_all_calls_are_eager(device: str) -> None:
    graphed = Graphed[int](torch.device(device), enabled=False, eager_calls=0)
    assert replayed(graphed, 3) == [False, False, False]


def test_on_a_cpu_all_calls_are_eager() -> None:
    assert replayed(Graphed[int](CPU, eager_calls=0), 3) == [False, False, False]


def test_an_owner_may_give_graphs_up(made: list[WorkAgain]) -> None:
    graphed = Graphed[int](CPU, eager_calls=1)
    replayed(graphed, 2)
    graphed.enabled = False
    assert replayed(graphed, 2) == [False, False]


def test_what_holds_at_launches_holds_while_work_is_run_or_captured_but_not_at_replays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held, seen = [False], list[tuple[str, bool]]()

    @contextmanager
    def launching() -> Iterator[None]:
        held[0] = True
        try:
            yield
        finally:
            held[0] = False

    class Graph:
        def replay(self) -> None:
            seen.append(("replay", held[0]))

    def captured(work, generator, *, in_memory_of) -> Graph:
        seen.append(("capture", held[0]))
        return Graph()

    monkeypatch.setattr(capture, "may_capture", lambda device: True)
    monkeypatch.setattr(capture, "_capture_graph", captured)
    graphed = Graphed[None](CPU, eager_calls=1, launching=launching)
    for _ in range(3):
        graphed(lambda: seen.append(("run", held[0])))
    assert seen == [("run", True), ("capture", True), ("replay", False), ("replay", False)]


def test_work_that_cannot_be_captured_says_so_and_can_go_on_eagerly(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(work, generator, *, in_memory_of) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(capture, "may_capture", lambda device: True)
    monkeypatch.setattr(capture, "_capture_graph", refused)
    graphed = Graphed[int](CPU, eager_calls=1)
    replayed(graphed, 1)
    with pytest.raises(CaptureError, match="not permitted"):
        replayed(graphed, 1)
    assert not graphed.has_graph()
    graphed.enabled = False
    assert replayed(graphed, 2) == [False, False]


def test_no_memory_for_a_graph_is_an_error_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def no_room(work, generator, *, in_memory_of) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(capture, "may_capture", lambda device: True)
    monkeypatch.setattr(capture, "_capture_graph", no_room)
    with pytest.raises(torch.OutOfMemoryError):
        replayed(Graphed[int](CPU, eager_calls=0), 1)


class Owner:
    def __init__(self, device: torch.device) -> None:
        self.total = torch.zeros((), device=device)
        self.graphed = Graphed[None](device, eager_calls=1)

    def __call__(self) -> None:
        self.graphed(self._work)

    def _work(self) -> None:
        self.total.add_(1)


@pytest.mark.gpu
def test_an_owner_gives_its_memory_back_at_once() -> None:
    owner = Owner(torch.device("cuda"))
    for _ in range(4):
        owner()
    assert owner.graphed.has_graph()
    assert float(owner.total) == 4
    gone = weakref.ref(owner)
    gc.disable()
    try:
        del owner
        assert gone() is None
    finally:
        gc.enable()


@pytest.mark.gpu
def test_graphs_of_several_shapes_give_what_their_work_gives() -> None:
    device = torch.device("cuda")
    generator = torch.Generator(device).manual_seed(0)
    given = {size: torch.zeros(size, device=device) for size in (3, 1000, 64)}
    graphed = Graphed[torch.Tensor](device, eager_calls=1, generator=generator)
    for number in range(12):
        size = (3, 1000, 64)[number % 3]
        given[size].fill_(number)
        found = graphed(lambda size=size: given[size] * 2 + 1, size)
        assert graphed.replayed == (number >= 3)
        assert (found == 2 * number + 1).all()
    graphed.forget()
    assert not graphed.has_graph(3)


@pytest.mark.gpu
def test_a_second_part_reads_what_the_first_returns() -> None:
    device = torch.device("cuda")
    first, second = Graphed[torch.Tensor](device, eager_calls=1), Graphed[None](device, eager_calls=0)
    given, out = torch.ones(100, device=device), torch.zeros(100, device=device)
    for number in range(6):
        given.fill_(number)
        half = first(lambda: given / 2, eagerly=number == 4)
        second(lambda half=half: out.copy_(half * 4), eagerly=not first.replayed)  # type: ignore[func-returns-value]
        assert (out == 2 * number).all()
    assert first.has_graph()
    assert second.has_graph()


@pytest.mark.gpu
def test_work_that_waits_for_the_device_is_no_graph() -> None:
    device = torch.device("cuda")
    graphed = Graphed[float](device, eager_calls=1)
    given = torch.ones(3, device=device)
    assert graphed(lambda: float(given.sum())) == 3
    with pytest.raises(CaptureError):
        graphed(lambda: float(given.sum()))
    graphed.enabled = False
    assert graphed(lambda: float(given.sum())) == 3
