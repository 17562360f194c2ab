"""Signs of life of ranks, and who is taken for silent."""

import time

import pytest
from torch.distributed import HashStore

from vlhmm import heartbeat
from vlhmm.heartbeat import Heartbeat, Watch


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [100.0]
    monkeypatch.setattr(heartbeat.time, "monotonic", lambda: now[0])
    return now


def looks(watch: Watch, clock: list[float], seconds: int) -> list[int]:
    """Once a second; the last answer."""
    for _ in range(seconds):
        clock[0] += 1
        found = watch.silent()
    return found


def test_a_rank_is_silent_whose_count_stands_still_for_the_time_limit(clock: list[float]) -> None:
    store = HashStore()
    watch = Watch(store, [0, 2], 10.0)
    for count in range(30):
        store.set("vlhmm/beat/0", str(count))
        store.set("vlhmm/beat/2", str(min(count, 15)))
        found = looks(watch, clock, 1)
        assert found == ([2] if count >= 25 else []), count
    # One that has never counted.
    assert looks(Watch(HashStore(), [1], 10.0), clock, 10) == []
    assert looks(Watch(HashStore(), [1], 10.0), clock, 11) == [1]


def test_a_process_that_was_stopped_itself_takes_nobody_for_silent(clock: list[float]) -> None:
    store = HashStore()
    store.set("vlhmm/beat/1", "5")
    watch = Watch(store, [1], 10.0)
    assert looks(watch, clock, 3) == []
    clock[0] += 1000
    assert watch.silent() == []
    assert looks(watch, clock, 9) == []
    assert looks(watch, clock, 1) == [1]


def test_a_process_counts_until_its_heartbeat_ends() -> None:
    store = HashStore()
    beating = Heartbeat(store, 3, time_limit=0.1)
    end = time.monotonic() + 20
    while not (store.check(["vlhmm/beat/3"]) and int(store.get("vlhmm/beat/3")) > 2):
        assert time.monotonic() < end
        time.sleep(0.01)
    beating.end()
    last = store.get("vlhmm/beat/3")
    time.sleep(0.1)
    assert store.get("vlhmm/beat/3") == last
