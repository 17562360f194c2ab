"""What many states cost: no tensor of all pairs of states, so that memory grows with their number."""

from typing import Any

import numpy as np
import torch
from small_models import Blocks
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from vlhmm.models import Model, neural_hmm
from vlhmm.ops.row_logsumexp import CHUNK_BYTES
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step

WORDS = 500


class LargestTensor(TorchDispatchMode):
    """The most numbers that any one operation gave."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.numbers = max(self.numbers, leaf.numel())
        return result


def largest_in_training(model: Model, state_dropout: float) -> int:
    step = Step(model, TrainSettings(batch_size=2, window=4, state_dropout=state_dropout))
    windows = torch.randint(WORDS, (2, 2, 4), generator=torch.Generator().manual_seed(0))
    with LargestTensor() as largest:
        for number, window in enumerate(windows):
            step(window, 0.01, fresh=number == 0)
        model.tables()
    return largest.numbers


def test_block_factored_tables_and_training_have_no_square_of_the_states() -> None:
    num_blocks, per_block, dim = 32, 64, 16
    model = neural_hmm(Blocks(np.arange(WORDS) % num_blocks, num_blocks), per_block, dim, transition="block-factored")
    states = num_blocks * per_block
    # log p(m' | z) of all states, and behind them of those that a batch's beliefs speak of.
    assert largest_in_training(model, 0.5) <= states * num_blocks
    assert largest_in_training(model, 0.0) <= (states + 2 * per_block) * num_blocks


def test_a_softmax_makes_its_normaliser_a_stretch_at_a_time() -> None:
    num_blocks, per_block = 96, 64
    model = neural_hmm(Blocks(np.arange(WORDS) % num_blocks, num_blocks), per_block, 4)
    assert largest_in_training(model, 0.0) <= CHUNK_BYTES // 4 < (num_blocks * per_block) ** 2 // 2
