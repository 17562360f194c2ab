"""Work as a CUDA graph: what it gives is what the work gives, on any stream and beside others."""

import threading

import pytest
import torch

from vlhmm.capture import Graphed

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("priority", [-1, 0])
def test_a_graph_gives_what_its_work_gives_on_a_stream_of_any_priority(priority: int) -> None:
    given = torch.rand(64, 64, device="cuda")
    out = torch.empty_like(given)
    torch.cuda.synchronize()
    with torch.cuda.stream(torch.cuda.Stream(priority=priority)):
        assert torch.cuda.current_stream().priority == priority
        graphed = Graphed[object](torch.device("cuda"), eager_calls=0)
        graphed(lambda: torch.mm(given, given, out=out))
        given.fill_(0.5)
        graphed(lambda: torch.mm(given, given, out=out))
        assert graphed.replayed
        torch.cuda.current_stream().synchronize()
    torch.testing.assert_close(out, torch.full_like(out, 16.0))


def test_a_thread_may_wait_for_its_stream_while_another_captures() -> None:
    """As a row does whose graphs are given back while the row beside it captures its own."""
    failures = list[BaseException]()
    capturing, waited = threading.Event(), threading.Event()
    out = torch.zeros(8, device="cuda")

    def work() -> None:
        out.add_(1)
        capturing.set()
        assert waited.wait(10)

    def capture() -> None:
        try:
            with torch.cuda.stream(torch.cuda.Stream()):
                Graphed[None](torch.device("cuda"), eager_calls=0)(work)
                torch.cuda.current_stream().synchronize()
        except BaseException as error:
            failures.append(error)
            capturing.set()

    thread = threading.Thread(target=capture)
    thread.start()
    assert capturing.wait(10)
    with torch.cuda.stream(torch.cuda.Stream()):
        torch.ones(8, device="cuda").add_(1)
        torch.cuda.current_stream().synchronize()
    waited.set()
    thread.join()
    assert not failures
    assert (out == 1).all()


def test_the_first_replay_draws_what_the_work_would_draw(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where the capture stream is late with the state of the generator, as beside other processes: the graph draws at a time by which
    that stream has reset it."""
    generator, other = (torch.Generator("cuda").manual_seed(5) for _ in range(2))
    out = torch.empty(64, device="cuda")
    begin = torch.cuda.CUDAGraph.capture_begin

    def begin_late(self: torch.cuda.CUDAGraph, *args: object, **options: object) -> None:
        torch.cuda._sleep(30_000_000)
        begin(self, *args, **options)  # type: ignore[arg-type]

    def work() -> None:
        torch.cuda._sleep(100_000_000)
        out.uniform_(generator=generator)

    monkeypatch.setattr(torch.cuda.CUDAGraph, "capture_begin", begin_late)
    graphed = Graphed[None](torch.device("cuda"), eager_calls=1, generator=generator)
    for replayed in (False, True, True):
        graphed(work)
        assert graphed.replayed == replayed
        assert torch.equal(out, torch.empty_like(out).uniform_(generator=other))
