"""Training on several ranks is that of one process."""

import pytest
import torch

from tests.distributed.launch import on_ranks
from tests.distributed.trained import COUNTED, EVERY, all_trained
from vlhmm.distributed import ALONE, World


@pytest.mark.parametrize(("ranks", "variants"), [(2, EVERY), (4, ["scalar", "neural low-rank"])])
def test_ranks_train_what_one_process_does(ranks: int, variants: list[str]) -> None:
    expected = all_trained(ALONE, variants)

    def same(here: World) -> None:
        for name, found in all_trained(here, variants).items():
            exact = 1e-10 if name in COUNTED else 1e-6
            assert torch.allclose(found, expected[name], rtol=exact, atol=exact), name

    assert on_ranks(same, ranks) == ["None"] * ranks
