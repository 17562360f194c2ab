"""The laws of a model's tables: rows sum to one, and dropping states is renormalising."""

import numpy as np
import pytest
import torch
from small_models import ANY_SUPPORT, LOW_RANK, OVERLAPPING, PARTITIONS, VARIANTS, small_model

from vlhmm.cluster import random_blocks
from vlhmm.hmm import HMM
from vlhmm.models import Model, ModelSettings, StateSubset, build, neural_hmm
from vlhmm.ops.emission import emitting_states
from vlhmm.support import Support, dense_support
from vlhmm.tables import Tables
from vlhmm.transitions import Transition

FACTORED = [variant for variant, settings in VARIANTS.items() if settings.transition == "block-factored"]


def every_row(transition: Transition, rows: int) -> torch.Tensor:
    return transition.log_rows(torch.arange(rows)).exp()


def emission_totals(tables: Tables) -> torch.Tensor:
    states = tables.support.states_of(torch.arange(tables.num_words))
    totals = torch.zeros(tables.num_states, dtype=torch.float64)
    return totals.index_add(0, states.flatten(), tables.log_emission.exp().flatten())


def assert_normalised(tables: Tables) -> None:
    ones = torch.ones(tables.num_states, dtype=torch.float64)
    live = emitting_states(tables.support)
    rows = every_row(tables.transition, tables.num_states)
    torch.testing.assert_close(tables.log_start.exp().sum(), ones[0])
    torch.testing.assert_close(rows.sum(1), ones)
    torch.testing.assert_close(emission_totals(tables), live.double())
    assert (tables.log_start[~live] == -torch.inf).all()
    assert (rows[:, ~live] == 0).all()


def renormalised(probs: torch.Tensor) -> torch.Tensor:
    return probs / probs.sum(-1, keepdim=True)


def two_draws(model: Model) -> tuple[StateSubset, StateSubset]:
    generator = torch.Generator().manual_seed(4)
    previous, kept = model.kept_after_dropout(0.4, generator), model.kept_after_dropout(0.6, generator)
    assert previous is not None
    assert kept is not None
    return previous, kept


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", PARTITIONS)
def test_every_row_sums_to_one_with_and_without_dropout(variant, kind):
    model = small_model(variant, PARTITIONS[kind])
    previous, kept = two_draws(model)
    tables, boundary = model.tables_with_boundary(previous, kept)
    assert_normalised(model.tables())
    assert_normalised(tables)
    assert boundary is not None
    sums = every_row(boundary, previous.states.numel()).sum(1)
    torch.testing.assert_close(sums, torch.ones_like(sums))


@pytest.mark.parametrize("variant", ANY_SUPPORT)
@pytest.mark.parametrize("kind", OVERLAPPING)
def test_every_row_sums_to_one_without_a_partition(variant, kind):
    assert_normalised(small_model(variant, OVERLAPPING[kind]).tables())


def kept_columns(full: torch.Tensor, columns: torch.Tensor, variant: str) -> torch.Tensor:
    """Rows of the full table over the kept states: renormalised as a whole, or block by block."""
    if variant not in FACTORED:
        return renormalised(full[:, columns.flatten()])
    blocks = full.view(full.shape[0], columns.shape[0], -1)
    within = full[:, columns]
    total = within.sum(2, keepdim=True)
    return (within / torch.where(total > 0, total, 1.0) * blocks.sum(2, keepdim=True)).flatten(1)


@pytest.mark.parametrize("variant", [variant for variant in VARIANTS if variant not in LOW_RANK])
@pytest.mark.parametrize("kind", PARTITIONS)
def test_dropping_states_renormalises_the_full_tables(variant, kind):
    model = small_model(variant, PARTITIONS[kind])
    previous, kept = two_draws(model)
    full, (tables, boundary) = model.tables(), model.tables_with_boundary(previous, kept)
    all_rows = every_row(full.transition, full.num_states)
    states, source = kept.states.flatten(), previous.states.flatten()

    assert tables.support.states_per_word == kept.states.shape[1]
    torch.testing.assert_close(tables.log_start.exp(), renormalised(full.log_start.exp()[states]))
    expected = kept_columns(all_rows, kept.states, variant)
    torch.testing.assert_close(every_row(tables.transition, len(states)), expected[states])
    assert boundary is not None
    torch.testing.assert_close(every_row(boundary, len(source)), expected[source])
    for word, group in enumerate(full.support.group_of_word.tolist()):
        columns = kept.states[group] - group * full.support.states_per_word
        torch.testing.assert_close(tables.log_emission[word], full.log_emission[word, columns])


@pytest.mark.parametrize("variant", VARIANTS)
def test_boundary_alone_equals_boundary_with_tables(variant):
    model = small_model(variant, PARTITIONS["blocked"])
    previous, kept = two_draws(model)
    together = model.tables_with_boundary(previous, kept)[1]
    alone = model.boundary(previous, kept)
    assert together is not None
    rows = previous.states.numel()
    torch.testing.assert_close(every_row(alone, rows), every_row(together, rows))
    # A batch needs the blocks of its last tokens alone, some of them twice.
    some = torch.tensor([3, 1, 3])
    expected = every_row(alone, rows).view(*previous.states.shape, -1)[some].flatten(0, 1)
    part = model.boundary(StateSubset(previous.states[some]), kept)
    torch.testing.assert_close(every_row(part, expected.shape[0]), expected)


@pytest.mark.parametrize("variant", VARIANTS)
def test_keeping_all_states_changes_nothing(variant):
    model = small_model(variant, PARTITIONS["blocked"], reset_token=5)
    full = model.tables()
    tables, boundary = model.tables_with_boundary(model.all_states(), model.all_states())
    assert boundary is not None
    assert tables.reset_token == full.reset_token == 5
    rows = every_row(full.transition, full.num_states)
    torch.testing.assert_close(tables.log_start, full.log_start)
    torch.testing.assert_close(tables.log_emission, full.log_emission)
    torch.testing.assert_close(every_row(tables.transition, full.num_states), rows)
    torch.testing.assert_close(every_row(boundary, full.num_states), rows)
    assert model.tables_with_boundary(None, None)[1] is None
    to_all = model.boundary(model.all_states(), None)
    torch.testing.assert_close(every_row(to_all, full.num_states), rows)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("kind", ["blocked", "blocked, one without words"])
def test_gradients_reach_every_parameter_and_are_finite(variant, kind):
    model = small_model(variant, PARTITIONS[kind])
    previous, kept = two_draws(model)
    tables, boundary = model(previous, kept)
    assert boundary is not None
    live = emitting_states(tables.support)
    generator = torch.Generator().manual_seed(2)
    total = torch.zeros((), dtype=torch.float64)
    for rows in (
        tables.log_start[None, live],
        tables.transition.log_rows(torch.arange(tables.num_states))[:, live],
        boundary.log_rows(torch.arange(previous.states.numel()))[:, live],
        tables.log_emission,
    ):
        total = total + (rows * torch.randn(rows.shape, generator=generator, dtype=rows.dtype)).sum()
    total.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # What all states share cancels in the softmax of the start.
        if name not in ("start.score.bias", "encoder.start_network.norm.bias", "encoder.start_network.1.norm.bias"):
            assert (parameter.grad != 0).any(), name


@pytest.mark.parametrize("variant", ANY_SUPPORT)
def test_states_without_words_leave_inference_and_gradients_whole(variant):
    model = small_model(variant, OVERLAPPING["uniform, states without words"])
    HMM(model.tables()).log_prob(torch.tensor([[0, 1, 2, 1], [2, 2, 0, 1]])).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


@pytest.mark.parametrize("variant", VARIANTS)
def test_all_sentences_sum_to_one(variant):
    support = PARTITIONS["cloned"]
    model = small_model(variant, support)
    sentences = torch.cartesian_prod(*[torch.arange(support.num_words)] * 3)
    for kept in (None, two_draws(model)[1]):
        total = HMM(model.tables(kept)).log_prob(sentences).exp().sum()
        torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_window_that_never_begins_needs_no_start(variant):
    """All else is the same, and so is every gradient; the start cannot be used by mistake."""
    model = small_model(variant, PARTITIONS["blocked"])
    previous, kept = two_draws(model)
    gradients = []
    for with_start in (True, False):
        tables, boundary = model(previous, kept, with_start=with_start)
        assert boundary is not None
        assert (tables.log_start == -torch.inf).all() != with_start
        model.zero_grad()
        rows = torch.arange(tables.num_states), torch.arange(previous.states.numel())
        totals = tables.transition.log_rows(rows[0]), boundary.log_rows(rows[1]), tables.log_emission
        sum((total * total).sum() for total in totals).backward()
        gradients.append([parameter.grad for name, parameter in model.named_parameters() if "start" not in name])
    for with_start, without in zip(*gradients, strict=True):
        if with_start is None:
            # The start alone reads it.
            assert variant == "linear, free transition"
            assert without is None
            continue
        torch.testing.assert_close(without, with_start, rtol=0, atol=0)


@pytest.mark.parametrize("variant", ["neural, factored", "neural, factored, paper", "linear, factored"])
def test_states_of_a_block_share_half_of_their_embedding(variant):
    encoder = small_model(variant, PARTITIONS["blocked"]).encoder
    per_block, half = 5, VARIANTS[variant].dim // 2
    embedded = encoder._embedded(encoder.embedding, None)
    some = torch.tensor([7, 3, 19, 7])
    assert torch.equal(encoder._embedded(encoder.embedding, some), embedded[some])
    blocks = embedded.view(4, per_block, 2 * half)
    assert (blocks[:, :, :half] == blocks[:, :1, :half]).all()
    assert torch.equal(embedded[:, half:], encoder.embedding.weight)
    assert blocks[:, 0, :half].unique().numel() == 4 * half


def test_tied_linear_transition_logits_are_symmetric():
    transition = small_model("linear, tied", PARTITIONS["blocked"]).tables().transition
    logits = transition.log_rows(torch.arange(20)) + transition.log_normalizer[:, None]
    torch.testing.assert_close(logits, logits.T)


def test_out_scale_multiplies_the_transition_logits():
    base, scaled = (
        build(ModelSettings("linear", 5, 3, out_scale=scale), PARTITIONS["blocked"]).tables().transition
        for scale in (1.0, 0.25)
    )
    torch.testing.assert_close(scaled.out, base.out * 0.25)
    torch.testing.assert_close(scaled.into, base.into)


@pytest.mark.parametrize("support", [*PARTITIONS.values(), *OVERLAPPING.values()])
def test_a_moved_model_keeps_its_support(support: Support):
    moved = small_model("scalar", support).to("meta").support
    assert moved.group_of_word.device.type == moved.states_of_group.device.type == "meta"
    assert (moved.num_states, moved.partition) == (support.num_states, support.partition)


def test_bad_requests_are_refused():
    uniform = small_model("neural softmax", OVERLAPPING["uniform"])
    with pytest.raises(ValueError, match="needs a support that is a partition"):
        uniform.kept_after_dropout(0.5)
    with pytest.raises(ValueError, match=r"block-factored.*partitioned into blocks"):
        small_model("neural block-factored", OVERLAPPING["uniform"])
    with pytest.raises(ValueError, match=r"factored.*partitioned into blocks"):
        small_model("neural, factored", OVERLAPPING["uniform"])
    blocked = small_model("neural softmax", PARTITIONS["blocked"])
    with pytest.raises(ValueError, match="kept for 2 blocks, but the model has 4"):
        blocked.tables(StateSubset(torch.tensor([[0, 1], [5, 6]])))
    with pytest.raises(ValueError, match="reset token is 9, but tokens go from 0 to 8"):
        small_model("neural softmax", PARTITIONS["blocked"], reset_token=9)
    with pytest.raises(ValueError, match="ask for 7 states per block, but the support has 5"):
        build(ModelSettings(states_per_block=7), PARTITIONS["blocked"])


def test_a_table_that_cannot_fit_is_refused_before_it_is_allocated():
    settings = ModelSettings("scalar", states_per_block=1 << 24, transition="table")
    with pytest.raises(ValueError, match="transition table of 16777216 states would take 1,048,576"):
        build(settings, dense_support(3, 1 << 24))


def test_embeddings_that_cannot_fit_are_refused_before_they_are_allocated():
    blocks = random_blocks(6, 2, np.random.default_rng(0))
    with pytest.raises(
        ValueError, match=r"2,199,023,255,552 states of width 8 would take 81,920.0 GiB.*states_per_block"
    ):
        neural_hmm(blocks, states_per_block=1 << 40, dim=8)
    with pytest.raises(ValueError, match=r"4 states of width 1,099,511,627,776 would take 16,384.0 GiB.*dim smaller"):
        neural_hmm(blocks, states_per_block=2, dim=1 << 40)
