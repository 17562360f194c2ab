"""Tables made to be kept: their rows sum to one in the precision in which they are used, however large the logits."""

import os

import numpy as np
import pytest
import torch
from small_models import Blocks
from torch import Tensor

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from vlhmm.hmm import HMM
from vlhmm.inference.blocked import blocked_factors
from vlhmm.inference.gather import Batch
from vlhmm.models import Model, neural_hmm
from vlhmm.ops.blocked_recursion import blocked_recursion_by_kernels
from vlhmm.tables import SoftmaxTransition, Tables

WORDS, NUM_BLOCKS, PER_BLOCK, DIM = 60, 4, 24, 32

PROMISED = 1e-6
"""Of log p(x), in float32. One rounding of a logit is |logit| 2^-24: here at most 7e-7 of a token's log p, of either sign."""


def with_large_logits(transition: str, out_scale: float = 8.0) -> Model:
    return neural_hmm(
        Blocks(np.arange(WORDS) % NUM_BLOCKS, NUM_BLOCKS),
        PER_BLOCK,
        DIM,
        transition=transition,  # type: ignore[arg-type]
        initialisation="code",
        precision="bf16",
        out_scale=out_scale,
    )


def kept_tables(out_scale: float, largest_logit: float, device: str = "cpu") -> Tables:
    with torch.no_grad():
        tables = with_large_logits("softmax", out_scale).to(device).tables().detach()
    assert isinstance(tables.transition, SoftmaxTransition)
    found = float((tables.transition.out.double() @ tables.transition.into.double().T).abs().max())
    assert found > largest_logit, f"the largest logit is {found:.1f}"
    return tables


def text(batch: int, length: int) -> Tensor:
    return torch.randint(WORDS, (batch, length), generator=torch.Generator().manual_seed(1))


def assert_as_in_float64(found: Tensor, tables: Tables, tokens: Tensor) -> None:
    expected = HMM(tables.to("cpu", torch.float64)).log_prob(tokens)
    torch.testing.assert_close(found.double().cpu(), expected, rtol=PROMISED, atol=0)


def test_the_softmax_over_all_blocks_is_kept_for_float32_and_trained_in_bf16() -> None:
    model = with_large_logits("softmax")
    assert model.tables().precision == "bf16"
    with torch.no_grad():
        assert model.tables().precision == "highest"
        assert model.tables(rounded=True).precision == "bf16"
        # A softmax within the tile needs no sum from elsewhere.
        assert with_large_logits("block-factored").tables().precision == "bf16"


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def test_tables_are_rounded_on_request_as_they_are_where_gradients_are_asked_for(device: str) -> None:
    model = with_large_logits("softmax", 2.0).to(device)
    expected = model.tables().detach()
    with torch.no_grad():
        found, kept = model.tables(rounded=True), model.tables()
    assert isinstance(found.transition, SoftmaxTransition)
    assert isinstance(expected.transition, SoftmaxTransition)
    assert isinstance(kept.transition, SoftmaxTransition)
    torch.testing.assert_close(found.transition.log_normalizer, expected.transition.log_normalizer, rtol=0, atol=0)
    rounded_away = (found.transition.log_normalizer - kept.transition.log_normalizer).abs().max()
    # A CPU rounds nothing.
    assert (rounded_away > 1e-3) == (device == "cuda")


# Up to 50 the kernels answer; beyond 200 their numbers vanish, which they see, and the plain way does.
@pytest.mark.gpu
@pytest.mark.parametrize(("out_scale", "largest_logit"), [(2.0, 50.0), (8.0, 200.0)])
def test_kept_tables_of_large_logits_score_as_in_float64(out_scale: float, largest_logit: float) -> None:
    tables, tokens = kept_tables(out_scale, largest_logit, "cuda"), text(8, 64)
    assert_as_in_float64(HMM(tables).log_prob(tokens), tables, tokens)


def test_kernels_score_kept_tables_of_large_logits_as_in_float64() -> None:
    tables, tokens = kept_tables(2.0, 50.0), text(2, 16)
    factors = blocked_factors(tables, Batch(tokens, torch.full((2,), 16)), None, None)
    run = blocked_recursion_by_kernels(factors, tables.precision)
    assert not run.suspect.any()
    assert_as_in_float64(run.token_log_probs.double().sum(1), tables, tokens)


def test_numbers_that_vanish_from_the_kernels_are_seen() -> None:
    tables, tokens = kept_tables(8.0, 200.0), text(2, 16)
    factors = blocked_factors(tables, Batch(tokens, torch.full((2,), 16)), None, None)
    assert blocked_recursion_by_kernels(factors, tables.precision).suspect.any()
    assert_as_in_float64(HMM(tables).log_prob(tokens), tables, tokens)
