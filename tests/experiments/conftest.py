"""Times are not what these tests are about: a batch is timed twice."""

import pytest


@pytest.fixture(autouse=True)
def few_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlhmm.experiments.measure.TIMED_BATCHES", 2)
