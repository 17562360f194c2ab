"""Tables made to be kept: their rows sum to one in the precision in which they are used, however large the logits."""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import Blocks
from torch import Tensor

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from vlhmm.evaluate import HMMScorer
from vlhmm.hmm import HMM
from vlhmm.inference.blocked import blocked_factors, plain_window
from vlhmm.inference.gather import Batch, Boundary
from vlhmm.models import Model, neural_hmm
from vlhmm.ops.blocked_recursion import blocked_recursion_by_kernels
from vlhmm.precision import Numerics
from vlhmm.tables import Belief, Tables
from vlhmm.transitions import SoftmaxTransition

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


@pytest.mark.parametrize("transition", ["softmax", "block-factored"])
def test_tables_are_trained_in_bf16_and_kept_for_float32(transition: str) -> None:
    model = with_large_logits(transition)
    for gradients in (True, False):
        with torch.set_grad_enabled(gradients):
            assert model.tables(numerics=Numerics.training(model.settings.precision)).precision == "bf16"
            assert model.tables().precision == "highest"


@pytest.mark.gpu
@pytest.mark.parametrize("transition", ["softmax", "block-factored"])
@pytest.mark.parametrize("out_scale", [2.0, 8.0])
def test_a_quick_scorer_is_within_its_error(out_scale: float, transition: str) -> None:
    with torch.no_grad():
        tables = with_large_logits(transition, out_scale).to("cuda").tables().detach()
    quick, tokens = HMMScorer(tables).quick(), text(8, 64)
    assert quick.tables.precision == "tf32"
    found = quick.score_window(tokens, torch.full((8,), 64), None)[0].double().sum(1).cpu()
    expected = HMM(tables.to("cpu", torch.float64)).log_prob(tokens)
    torch.testing.assert_close(found, expected, rtol=3e-5, atol=0)


@pytest.mark.gpu
@pytest.mark.parametrize("transition", ["softmax", "block-factored"])
def test_kept_tables_are_the_same_on_either_device(transition: str) -> None:
    model = with_large_logits(transition)
    with torch.no_grad():
        expected, found = model.tables(), model.to("cuda").tables()
    torch.testing.assert_close(found.log_emission.cpu(), expected.log_emission, rtol=1e-5, atol=1e-5)


def in_bf16(transition: SoftmaxTransition) -> SoftmaxTransition:
    """In float64, what kernels read of the features, with its own normaliser."""
    out, into = (part.bfloat16().cpu().double() for part in (transition.out, transition.into))
    return SoftmaxTransition(out, into, (out @ into.T).logsumexp(dim=1))


@pytest.mark.parametrize("boundary", [False, True])
def test_rounded_tables_are_normalised_where_no_kernel_reads_them(boundary: bool) -> None:
    """Over all texts of two words, after a given one, probabilities sum to one."""
    exact = kept_tables(8.0, 200.0)
    assert isinstance(exact.transition, SoftmaxTransition)
    normalizer = in_bf16(exact.transition).log_normalizer.float()
    assert (normalizer - exact.transition.log_normalizer).abs().max() > 0.1
    tables = replace(exact, precision="bf16", transition=replace(exact.transition, log_normalizer=normalizer))
    tokens = torch.cartesian_prod(torch.arange(WORDS), torch.arange(WORDS))
    count = len(tokens)
    belief = Belief(torch.zeros(count, dtype=torch.int64), torch.full((count, PER_BLOCK), -np.log(PER_BLOCK)))
    entering = None
    if boundary:
        states = torch.arange(PER_BLOCK).repeat(count)
        rows = (tables.transition.out[states], tables.transition.into, normalizer[states])
        entering = Boundary(SoftmaxTransition(*rows))
    log_probs, _ = plain_window(tables, Batch(tokens, torch.full((count,), 2)), belief, entering)
    assert abs(float(log_probs.double().sum(1).exp().sum()) - 1) < 1e-4


def as_if_kernels_rounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlhmm.tables._rounded_by_kernels", lambda tables: tables.precision == "bf16")


@pytest.mark.parametrize("out_scale", [0.5, 8.0])
def test_queries_in_bf16_read_an_hmm_whose_rows_sum_to_one(out_scale: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Features are rounded, and the normaliser is that of rounded features: tiles and rows agree."""
    exact = kept_tables(out_scale, 5.0)
    as_if_kernels_rounded(monkeypatch)
    tables = exact.with_precision("bf16")
    assert tables.precision == "bf16"
    assert isinstance(tables.transition, SoftmaxTransition)
    assert isinstance(exact.transition, SoftmaxTransition)
    expected = in_bf16(exact.transition)
    torch.testing.assert_close(tables.transition.out.double(), expected.out, rtol=0, atol=0)
    torch.testing.assert_close(tables.transition.log_normalizer.double(), expected.log_normalizer, rtol=1e-6, atol=1e-5)
    rows = tables.transition.log_rows(torch.arange(tables.num_states)).exp().sum(1)
    torch.testing.assert_close(rows, torch.ones(tables.num_states), rtol=1e-4, atol=0)
    tokens = torch.cartesian_prod(torch.arange(WORDS), torch.arange(WORDS))
    log_probs, _ = plain_window(tables, Batch(tokens, torch.full((len(tokens),), 2)), None, None)
    assert abs(float(log_probs.double().sum(1).exp().sum()) - 1) < 1e-4
    torch.testing.assert_close(HMM(tables).log_prob(tokens), log_probs.double().sum(1).float(), rtol=1e-5, atol=1e-4)


def test_tables_moved_to_where_kernels_round_get_the_normaliser_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    on_cpu = kept_tables(8.0, 200.0).with_precision("bf16")
    monkeypatch.setattr(
        "vlhmm.tables._rounded_by_kernels", lambda tables: tables.precision == "bf16" and tables is not on_cpu
    )
    moved = on_cpu.to(dtype=torch.float32)
    assert isinstance(moved.transition, SoftmaxTransition)
    rows = moved.transition.log_rows(torch.arange(moved.num_states)).double().exp().sum(1)
    assert torch.equal(moved.transition.out, moved.transition.out.bfloat16().float())
    torch.testing.assert_close(rows, torch.ones_like(rows), rtol=1e-4, atol=0)


@pytest.mark.parametrize("transition", ["softmax", "block-factored"])
def test_on_a_cpu_the_precision_of_queries_changes_nothing(transition: str) -> None:
    hmm, tokens = HMM(with_large_logits(transition).tables().detach()), text(2, 16)
    for precision in ("bf16", "tf32", "highest"):
        other = hmm.with_precision(precision)
        assert other.tables.precision == precision
        assert torch.equal(other.log_prob(tokens), hmm.log_prob(tokens))
    assert hmm.tables.precision == "highest"


@pytest.mark.gpu
@pytest.mark.parametrize("transition", ["softmax", "block-factored"])
def test_queries_in_bf16_score_the_rounded_hmm(transition: str) -> None:
    """Over all texts of two words probabilities sum to one, in kernels and in rows."""
    with torch.no_grad():
        hmm = HMM(with_large_logits(transition, 2.0).to("cuda").tables().detach())
    tokens = torch.cartesian_prod(torch.arange(WORDS), torch.arange(WORDS))
    for precision, room in (("highest", 1e-5), ("tf32", 1e-4), ("bf16", 2e-2)):
        asked = hmm.with_precision(precision)  # type: ignore[arg-type]
        assert abs(float(asked.log_prob(tokens).double().exp().sum()) - 1) < room
        rows = asked.tables.transition.log_rows(torch.arange(hmm.num_states, device="cuda")).double().exp().sum(1)
        torch.testing.assert_close(rows, torch.ones_like(rows), rtol=1e-4, atol=0)


def test_what_fades_matters_only_where_nothing_is_rounded() -> None:
    tables, tokens = kept_tables(8.0, 200.0), text(2, 16)
    factors = blocked_factors(tables, Batch(tokens, torch.full((2,), 16)), None, None)
    strict, rounded = (blocked_recursion_by_kernels(factors, precision) for precision in ("highest", "tf32"))
    assert strict.underflow.any()
    assert not rounded.underflow.any()
    torch.testing.assert_close(rounded.token_log_probs, strict.token_log_probs, rtol=1e-3, atol=1e-3)


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
    assert not run.underflow.any()
    assert_as_in_float64(run.token_log_probs.double().sum(1), tables, tokens)


def test_numbers_that_vanish_from_the_kernels_are_seen() -> None:
    tables, tokens = kept_tables(8.0, 200.0), text(2, 16)
    factors = blocked_factors(tables, Batch(tokens, torch.full((2,), 16)), None, None)
    assert blocked_recursion_by_kernels(factors, tables.precision).underflow.any()
    assert_as_in_float64(HMM(tables).log_prob(tokens), tables, tokens)
