"""The emission of a text's tokens against rows of the whole table in float64: in Triton's interpreter, and on a GPU with -m gpu."""

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

from vlhmm.ops.emission import by_token as token_emission
from vlhmm.ops.emission.by_token import launch, on_cpu, reference
from vlhmm.ops.emission.by_token import token_log_emission_by_kernels as log_emission_by_kernels
from vlhmm.ops.emission.by_token import token_log_softmax_by_kernels as log_softmax_by_kernels
from vlhmm.records import convert
from vlhmm.support import Support, blocked_support, dense_support

interpreted = pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled or interpreted, not both")
DEVICES = [
    pytest.param("cpu", marks=interpreted, id="interpreter"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
]
# The interpreter's products take the bits of bf16 for integers.
PRECISIONS = [
    pytest.param("cpu", "highest", marks=interpreted),
    pytest.param("cpu", "tf32", marks=interpreted),
    # On a GPU the others make a table.
    pytest.param("cuda", "bf16", marks=pytest.mark.gpu),
]
TOLERANCE = {"highest": (3e-6, 1e-5), "tf32": (1e-5, 1e-3), "bf16": (1e-5, 8e-3)}
"""Of values and of gradients, relative to the largest element: operands are exact in every precision, cotangents are not."""

# (words, states, width, sequences, positions)
SHAPES = [(37, 5, 3, 2, 7), (1, 1, 1, 1, 1), (150, 131, 67, 3, 50), (300, 19, 20, 1, 9)]
LARGE = [(9001, 301, 96, 20, 30), (1000, 1037, 300, 3, 70), (33000, 64, 128, 7, 50)]


pytestmark = pytest.mark.usefixtures("unwritten_is_nan")


def on(device: str, support: Support) -> Support:
    return convert(support, device)


def text(words: int, sequences: int, positions: int) -> Tensor:
    """Some words come often."""
    generator = torch.Generator().manual_seed(words)
    return (words * torch.rand(sequences, positions, generator=generator) ** 3).long()


def drawn(*shape: int, scale: float = 1.0) -> Tensor:
    """Numbers that bf16 holds exactly."""
    return (scale * torch.randn(*shape, generator=torch.Generator().manual_seed(shape[0]))).bfloat16().float()


def assert_equal_with_gradients(
    ours: Callable[..., Tensor], exact: Callable[..., Tensor], operands: list[Tensor], room: tuple[float, float]
) -> None:
    found, wanted = list[Tensor](), list[Tensor]()
    for function, dtype, made in ((ours, torch.float32, found), (exact, torch.float64, wanted)):
        leaves = [operand.to(dtype).requires_grad_() for operand in operands]
        value = function(*leaves)
        # Off zero in the mean: the sum over all tokens, which the softmax takes away, matters then.
        generator = torch.Generator().manual_seed(7)
        cotangent = (torch.randn(value.shape, generator=generator) + 1).to(value)
        made += [value.detach(), *torch.autograd.grad(value, leaves, cotangent)]
    for index, (actual, expected) in enumerate(zip(found, wanted, strict=True)):
        scale = max(1.0, float(expected.abs().max()))
        torch.testing.assert_close(actual.double(), expected, rtol=0, atol=room[index > 0] * scale)


@pytest.mark.parametrize(("device", "precision"), PRECISIONS)
@pytest.mark.parametrize("number", range(4))
def test_rows_of_factors_and_gradients_equal_those_of_the_table(device: str, precision: Any, number: int) -> None:
    shapes = SHAPES if device == "cpu" else SHAPES + LARGE
    for words, states, width, sequences, positions in shapes[number :: len(SHAPES)]:
        support, tokens = on(device, dense_support(words, states)), text(words, sequences, positions).to(device)
        operands = [drawn(states, width, scale=2 / width**0.5).to(device), drawn(words, width).to(device)]
        assert_equal_with_gradients(
            lambda emit, of_words, tokens=tokens: log_emission_by_kernels(emit, of_words, tokens, precision),
            lambda emit, of_words, tokens=tokens, support=support: reference.token_log_emission(
                emit, of_words, None, tokens, support, None, "highest"
            ),
            operands,
            TOLERANCE[precision],
        )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("number", range(4))
def test_rows_of_a_table_and_its_gradient_equal_those_of_its_softmax(device: str, number: int) -> None:
    shapes = SHAPES if device == "cpu" else SHAPES + LARGE
    for words, states, _, sequences, positions in shapes[number :: len(SHAPES)]:
        support, tokens = on(device, dense_support(words, states)), text(words, sequences, positions).to(device)
        assert_equal_with_gradients(
            lambda logits, tokens=tokens: log_softmax_by_kernels(logits, tokens),
            lambda logits, tokens=tokens, support=support: reference.token_log_softmax(logits, tokens, support, None),
            [drawn(words, states, scale=3.0).to(device)],
            TOLERANCE["highest"],
        )


@pytest.mark.parametrize("device", DEVICES)
def test_words_without_probability_and_large_logits_are_no_trouble(device: str) -> None:
    logits = 300 * drawn(70, 3)
    logits[:40, 0] = -torch.inf
    logits[3, 1] = -torch.inf
    tokens = torch.tensor([[0, 3, 69, 50]])
    logits, tokens = logits.to(device), tokens.to(device)
    ours, exact = logits.clone().requires_grad_(), logits.double().requires_grad_()
    value = log_softmax_by_kernels(ours, tokens)
    expected = reference.token_log_softmax(exact, tokens, on(device, dense_support(70, 3)), None)
    torch.testing.assert_close(value.double(), expected, rtol=1e-6, atol=1e-4)
    cotangent = torch.where(expected > -torch.inf, 1.0, 0.0)
    (found,) = torch.autograd.grad(value, ours, cotangent.float())
    (wanted,) = torch.autograd.grad(expected, exact, cotangent)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_a_word_that_does_not_exist_has_a_row_of_nan(device: str) -> None:
    tokens = torch.tensor([[0, 9, -1, 4]], device=device)
    of_factors = log_emission_by_kernels(drawn(3, 4).to(device), drawn(9, 4).to(device), tokens, "highest")
    of_table = log_softmax_by_kernels(drawn(9, 3).to(device), tokens)
    for rows in (of_factors, of_table):
        assert rows.isnan().all(1).tolist() == [False, True, True, False]


def test_many_parts_are_joined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "MIN_ROWS", 3)
    monkeypatch.setattr(launch, "MIN_TOKENS", 5)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    support, tokens = on(device, dense_support(230, 5)), text(230, 3, 30).to(device)
    assert_equal_with_gradients(
        lambda logits: log_softmax_by_kernels(logits, tokens),
        lambda logits: reference.token_log_softmax(logits, tokens, support, None),
        [drawn(230, 5).to(device)],
        TOLERANCE["highest"],
    )
    assert_equal_with_gradients(
        lambda emit, words: log_emission_by_kernels(emit, words, tokens, "highest"),
        lambda emit, words: reference.token_log_emission(emit, words, None, tokens, support, None, "highest"),
        [drawn(5, 7).to(device), drawn(230, 7).to(device)],
        TOLERANCE["highest"],
    )


@pytest.mark.parametrize("groups", [1, 3])
def test_the_ops_give_rows_of_any_partition(groups: int) -> None:
    support = blocked_support(torch.arange(8) % groups, groups, 4)
    tokens = torch.tensor([[3, 0, 0], [7, 7, 1]])
    emit, words, bias = drawn(support.num_states, 5), drawn(8, 5), drawn(8)
    rows = token_emission.token_log_emission(emit, words, bias, tokens, support)
    torch.testing.assert_close(
        rows, token_emission.reference.log_emission(emit, words, bias, support)[tokens.flatten()]
    )
    logits = drawn(8, 4)
    rows = token_emission.token_log_softmax(logits, tokens, support)
    torch.testing.assert_close(rows, token_emission.reference.normalize_over_words(logits, support)[tokens.flatten()])


@pytest.mark.parametrize("with_bias", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_factors_on_a_cpu_equal_those_of_the_table(shape: tuple[int, ...], with_bias: bool) -> None:
    words, states, width, sequences, positions = shape
    support, tokens = dense_support(words, states), text(words, sequences, positions)
    operands = [drawn(states, width, scale=2 / width**0.5), drawn(words, width), *([drawn(words)] * with_bias)]
    assert_equal_with_gradients(
        lambda emit, of_words, bias=None: on_cpu.token_log_emission(emit, of_words, bias, tokens),
        lambda emit, of_words, bias=None: reference.token_log_emission(
            emit, of_words, bias, tokens, support, None, "highest"
        ),
        operands,
        TOLERANCE["highest"],
    )


@pytest.mark.parametrize("at_once", [1, 500, 1 << 22])
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_of_a_softmax_on_a_cpu_equal_those_of_the_table(
    shape: tuple[int, ...], at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(on_cpu, "CPU_CHUNK_BYTES", at_once)
    words, states, _, sequences, positions = shape
    support, tokens = dense_support(words, states), text(words, sequences, positions)
    assert_equal_with_gradients(
        lambda logits: on_cpu.token_log_softmax(logits, tokens),
        lambda logits: reference.token_log_softmax(logits, tokens, support, None),
        [drawn(words, states, scale=3.0)],
        TOLERANCE["highest"],
    )


def test_words_without_probability_are_no_trouble_on_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where none of a piece has any."""
    monkeypatch.setattr(on_cpu, "CPU_CHUNK_BYTES", 3 * 8 * 20)
    logits = 300 * drawn(70, 3).double()
    logits[:40, 0] = -torch.inf
    tokens = torch.tensor([[0, 3, 69, 50]])
    values, gradients = list[Tensor](), list[Tensor]()
    for function in (
        on_cpu.token_log_softmax,
        lambda *some: reference.token_log_softmax(*some, dense_support(70, 3), None),
    ):
        leaf = logits.clone().requires_grad_()
        value = function(leaf, tokens)
        values.append(value)
        gradients += torch.autograd.grad(value, leaf, torch.where(value > -torch.inf, 1.0, 0.0))
    torch.testing.assert_close(values[0], values[1], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-12, atol=1e-12)
