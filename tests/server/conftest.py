from collections.abc import Iterator

import pytest
from serving import Served, serving, small_lm


@pytest.fixture(scope="session", params=[True, False], ids=["states carried over EOS", "states reset at EOS"])
def served(request: pytest.FixtureRequest) -> Iterator[Served]:
    with serving(small_lm(carry=request.param)) as one:
        yield one


@pytest.fixture(scope="session")
def server() -> Iterator[Served]:
    with serving(small_lm(carry=True)) as one:
        yield one
