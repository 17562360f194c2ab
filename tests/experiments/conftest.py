"""Times are not what these tests are about: a batch and a step are timed twice."""

import pytest


@pytest.fixture(autouse=True)
def few_timings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("experiments.measure.TIMED_BATCHES", 2)
    monkeypatch.setattr("experiments.measure.TIMED_STEPS", 2)
