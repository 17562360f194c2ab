"""Emission ops against their specification, over every kind of support."""

import pytest
import torch

from vlhmm.ops.emission import column as column_ops
from vlhmm.ops.emission import emitting_states, log_emission, normalize_over_words, reference, word_layout
from vlhmm.ops.emission import scattered as scattered_ops
from vlhmm.support import Support, blocked_support, cloned_support, dense_support, uniform_support

WIDTH = 4


def supports() -> dict[str, Support]:
    generator = torch.Generator().manual_seed(1)
    return {
        "dense": dense_support(7, 3),
        "dense, one state": dense_support(5, 1),
        "one word": dense_support(1, 3),
        "blocked, uneven": blocked_support(torch.tensor([2, 0, 2, 1, 2, 3, 2, 0, 2]), 4, 5),
        "blocked, equal": blocked_support(torch.tensor([1, 0, 2, 0, 1, 2]), 3, 3),
        "blocked, one without words": blocked_support(torch.tensor([3, 0, 0, 1, 3]), 4, 3),
        "cloned": cloned_support(6, 3),
        "uniform": uniform_support(9, 6, 3, generator),
        "uniform, states without words": uniform_support(3, 20, 2, generator),
        "uniform, shared groups": Support(
            torch.tensor([0, 1, 1, 0, 1]), torch.tensor([[0, 2, 3], [1, 2, 4]]), 6, partition=False
        ),
    }


SUPPORTS = supports()


def inputs(support: Support, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    shapes = [(support.num_states, WIDTH), (support.num_words, WIDTH), (support.num_words,)]
    return [torch.randn(*shape, generator=generator, dtype=torch.float64, requires_grad=True) for shape in shapes]


def assert_equal_with_gradients(value: torch.Tensor, expected: torch.Tensor, *leaves: torch.Tensor) -> None:
    torch.testing.assert_close(value, expected, rtol=1e-12, atol=1e-12)
    generator = torch.Generator().manual_seed(3)
    weight = torch.randn(value.shape, generator=generator, dtype=value.dtype)
    gradients = torch.autograd.grad((value * weight).sum(), leaves)
    expected_gradients = torch.autograd.grad((expected * weight).sum(), leaves)
    for gradient, expected_gradient in zip(gradients, expected_gradients, strict=True):
        torch.testing.assert_close(gradient, expected_gradient, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("kind", SUPPORTS)
@pytest.mark.parametrize("with_bias", [True, False])
def test_emission_equals_the_reference(kind, with_bias):
    support = SUPPORTS[kind]
    emit, words, bias = inputs(support)
    used = [emit, words, bias] if with_bias else [emit, words]
    given = bias if with_bias else None
    assert_equal_with_gradients(
        log_emission(emit, words, given, support), reference.log_emission(emit, words, given, support), *used
    )


@pytest.mark.parametrize("kind", SUPPORTS)
def test_normalisation_equals_the_reference(kind):
    support = SUPPORTS[kind]
    generator = torch.Generator().manual_seed(5)
    shape = (support.num_words, support.states_per_word)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    assert_equal_with_gradients(
        normalize_over_words(logits, support), reference.normalize_over_words(logits, support), logits
    )


@pytest.mark.parametrize("kind", SUPPORTS)
def test_gradcheck(kind):
    support = SUPPORTS[kind]
    assert torch.autograd.gradcheck(lambda *args: log_emission(*args, support), inputs(support))


@pytest.mark.parametrize("kind", SUPPORTS)
def test_every_emitting_state_sums_to_one_over_its_words(kind):
    support = SUPPORTS[kind]
    prob = log_emission(*inputs(support), support).detach().exp()
    totals = torch.zeros(support.num_states, dtype=prob.dtype)
    for word in range(support.num_words):
        for column, state in enumerate(support.states_of(torch.tensor(word)).tolist()):
            totals[state] += prob[word, column]
    torch.testing.assert_close(totals, emitting_states(support).double())


@pytest.mark.parametrize("kind", [kind for kind in SUPPORTS if SUPPORTS[kind].partition])
def test_layout_holds_every_word_in_its_own_group_once(kind):
    support = SUPPORTS[kind]
    layout = word_layout(support.group_of_word, support.num_groups)
    groups = layout.buckets_of_groups(layout.groups.double()[:, None, None])
    words = layout.buckets_of_words(layout.words.double()[:, None])
    seen = {}
    for group_bucket, word_bucket in zip(groups, words, strict=True):
        seen.update(zip(group_bucket.flatten().tolist(), word_bucket.squeeze(2).tolist(), strict=True))
    expected = {}
    for word, group in enumerate(support.group_of_word.tolist()):
        expected.setdefault(group, []).append(word)
    assert seen == expected
    assert layout.words.shape[0] == support.num_words
    assert len({size for _, size in layout.shapes}) == len(layout.shapes)


@pytest.mark.parametrize("chunk_bytes", [1, 300])
def test_chunks_are_invisible_without_a_partition(monkeypatch, chunk_bytes):
    monkeypatch.setattr(scattered_ops, "CHUNK_BYTES", chunk_bytes)
    support = SUPPORTS["uniform"]
    emit, words, bias = inputs(support)
    assert_equal_with_gradients(
        log_emission(emit, words, bias, support), reference.log_emission(emit, words, bias, support), emit, words
    )


OVERLAPPING = [kind for kind in SUPPORTS if not SUPPORTS[kind].partition]


@pytest.mark.parametrize("kind", OVERLAPPING)
@pytest.mark.parametrize("pair_bytes", [1, 80, 1 << 20])
def test_cells_of_all_pairs_are_those_of_gathered_states(monkeypatch, kind, pair_bytes):
    monkeypatch.setattr(scattered_ops, "PAIR_BYTES", pair_bytes)
    support = SUPPORTS[kind]
    emit, words, _ = inputs(support)
    states = support.states_of(torch.arange(support.num_words))
    assert_equal_with_gradients(
        scattered_ops.logits_of_all_pairs(emit, words, states, "highest"),
        scattered_ops.scattered_logits(emit, words, states),
        *(emit, words),
    )


def test_all_pairs_round_their_operands_and_nothing_else():
    support = SUPPORTS["uniform"]
    emit, words = (leaf.detach().float().requires_grad_() for leaf in inputs(support)[:2])
    states = support.states_of(torch.arange(support.num_words))
    rounded = [leaf.detach().bfloat16().double().requires_grad_() for leaf in (emit, words)]
    # A cotangent that bf16 holds exactly.
    weight = torch.randn(states.shape, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    value = scattered_ops.logits_of_all_pairs(emit, words, states, "bf16")
    expected = scattered_ops.scattered_logits(*rounded, states)
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-6)
    gradients = torch.autograd.grad(value, (emit, words), weight)
    for found, wanted in zip(gradients, torch.autograd.grad(expected, rounded, weight.double()), strict=True):
        torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", OVERLAPPING)
def test_a_gpu_gives_the_reference_without_a_partition(kind):
    support = SUPPORTS[kind]
    exact = [leaf.detach().bfloat16().double().requires_grad_() for leaf in inputs(support)]
    leaves = [leaf.detach().float().cuda().requires_grad_() for leaf in exact]
    on_gpu = Support(support.group_of_word.cuda(), support.states_of_group.cuda(), support.num_states, partition=False)
    value = log_emission(*leaves, on_gpu, precision="bf16")
    expected = reference.log_emission(*exact, support)
    torch.testing.assert_close(value.double().cpu(), expected, rtol=1e-5, atol=1e-5)
    weight = torch.randn(value.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    gradients = torch.autograd.grad(value, leaves, weight.float().cuda())
    for found, wanted in zip(gradients, torch.autograd.grad(expected, exact, weight), strict=True):
        # bf16 keeps 8 bits of the gradient of a logit.
        torch.testing.assert_close(found.double().cpu(), wanted, rtol=0.02, atol=0.02 * float(wanted.abs().max()))


def test_large_logits_do_not_overflow():
    for support in SUPPORTS.values():
        emit, words, bias = (tensor.detach().float() * 300 for tensor in inputs(support))
        value = log_emission(emit, words, bias, support)
        assert not value.isnan().any()
        assert (value <= 0).all()


def test_the_softmax_of_columns_for_a_gpu_equals_the_library():
    logits = (5 * torch.randn(37, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)).requires_grad_()
    torch.testing.assert_close(column_ops._ColumnLogSoftmax.apply(logits), logits.log_softmax(0))
    assert torch.autograd.gradcheck(column_ops._ColumnLogSoftmax.apply, (logits,))


def test_emitting_states_are_those_of_some_word():
    support = SUPPORTS["blocked, one without words"]
    assert emitting_states(support).tolist() == [True] * 6 + [False] * 3 + [True] * 3
    shared = SUPPORTS["uniform, shared groups"]
    assert emitting_states(shared).tolist() == [True] * 5 + [False]
