"""Tables made to be kept: their rows sum to one in the precision in which they are used, however large the logits."""

import numpy as np
import pytest
import torch
from small_models import Blocks

from vlhmm.hmm import HMM
from vlhmm.models import Model, neural_hmm

WORDS, NUM_BLOCKS, PER_BLOCK, DIM = 60, 4, 24, 32


def with_large_logits(transition: str) -> Model:
    return neural_hmm(
        Blocks(np.arange(WORDS) % NUM_BLOCKS, NUM_BLOCKS),
        PER_BLOCK,
        DIM,
        transition=transition,  # type: ignore[arg-type]
        initialisation="code",
        precision="bf16",
        out_scale=8.0,
    )


def test_the_softmax_over_all_blocks_is_kept_for_float32_and_trained_in_bf16() -> None:
    model = with_large_logits("softmax")
    assert model.tables().precision == "bf16"
    with torch.no_grad():
        assert model.tables().precision == "highest"
        # A softmax within the tile needs no sum from elsewhere.
        assert with_large_logits("block-factored").tables().precision == "bf16"


@pytest.mark.gpu
def test_kept_tables_of_large_logits_score_as_in_float64() -> None:
    model = with_large_logits("softmax")
    tokens = torch.randint(WORDS, (8, 64), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        tables = model.to("cuda").tables()
        expected = HMM(tables.to("cpu", torch.float64)).log_prob(tokens)
    logits = tables.transition.out @ tables.transition.into.T  # type: ignore[union-attr]
    assert float(logits.abs().max()) > 100
    torch.testing.assert_close(HMM(tables).log_prob(tokens).double().cpu(), expected, rtol=2e-6, atol=0)
