"""The first edition's ways that records keep: folders without checksums, of which loading warns; how a text opens; torch's loops."""

from pathlib import Path

import pytest

from vlhmm.ops import dispatch

from . import folders

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::vlhmm.data.checksums.UncheckedFileWarning"))


@pytest.fixture(autouse=True)
def _texts_open_as_when_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The records have a text open after an EOS that is the first token of all; nothing else about them has changed."""
    monkeypatch.setattr("vlhmm.lm.belief_at", folders.opening_of_records)


@pytest.fixture(autouse=True)
def answers_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiled loops round differently; they have tests of their own."""
    monkeypatch.setattr(dispatch, "MAX_LOOP_STATES", 0)
