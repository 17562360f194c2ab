"""Two hosts, joined by a cable alone, work as two ranks of one do."""

import pytest

from tests.distributed.two_hosts import missing, on_two_hosts


@pytest.fixture(scope="module", autouse=True)
def hosts() -> None:
    if reason := missing():
        pytest.skip(reason)


def test_the_laws_hold_on_ranks_of_two_hosts() -> None:
    for status, out, errors in on_two_hosts("-m", "tests.distributed.laws"):
        assert (status, out) == (0, "all hold\n"), errors
