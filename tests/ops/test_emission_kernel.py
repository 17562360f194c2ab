"""The emission's kernels against their specification in float64: in Triton's interpreter, and on a GPU with -m gpu."""

import os

import pytest
import torch

if not torch.cuda.is_available():
    # Read by triton when it is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")
pytest.importorskip("triton")

import triton

from vlhmm.models import Model, ModelSettings
from vlhmm.ops.emission import kernel, launch, log_emission, reference, word_layout
from vlhmm.precision import Numerics
from vlhmm.support import Support, blocked_support, cloned_support

# Of values and of gradients, relative to the largest element. Operands are exact in every precision, so that of values only
# float32 sums round; gradients read the gradient of the logits in the precision.
TOLERANCE = {"highest": (3e-6, 1e-5), "tf32": (1e-5, 6e-4), "bf16": (1e-5, 4e-3)}

skip_interpreter_on_gpu_machine = pytest.mark.skipif(
    torch.cuda.is_available(), reason="a process has kernels compiled or interpreted, not both"
)
DEVICES = [
    pytest.param("cpu", marks=skip_interpreter_on_gpu_machine, id="interpreter"),
    pytest.param("cuda", marks=pytest.mark.gpu, id="gpu"),
]
# The interpreter's products take the bits of bf16 for integers.
PRECISIONS = [
    *(pytest.param("cpu", name, marks=skip_interpreter_on_gpu_machine) for name in ("highest", "tf32")),
    *(pytest.param("cuda", name, marks=pytest.mark.gpu) for name in ("bf16", "tf32", "highest")),
]


def sized(sizes: list[int], states: int) -> Support:
    """Groups of so many words, the words of a group far apart."""
    groups = torch.arange(len(sizes)).repeat_interleave(torch.tensor(sizes))
    shuffled = groups[torch.randperm(groups.shape[0], generator=torch.Generator().manual_seed(2))]
    return blocked_support(shuffled, len(sizes), states)


# (support, width, words of a tile)
SMALL = {
    "uneven": (sized([1, 17, 3, 5], 5), 3, 16),
    "a group of many tiles": (sized([2, 290], 3), 2, 16),
    "a group without words": (sized([4, 0, 2, 0], 17), 20, None),
    "one word, one state, one feature": (sized([1, 1], 1), 1, None),
    "cloned": (cloned_support(5, 3), 4, None),
    "pieces of states and features": (sized([3, 2], 131), 67, None),
    "one group": (sized([550], 5), 3, 16),
    "one group, pieces of states and features": (sized([37], 131), 67, None),
}
LARGE = {
    "uneven": (sized([1, 700, 33, 64, 65, 2], 129), 257, 64),
    "a group of many tiles": (sized([2, 2900, 150], 100), 96, 16),
    "a group without words": (sized([40, 0, 200, 0], 17), 20, None),
    "one word, one state, one feature": (sized([1, 1], 1), 1, None),
    "cloned": (cloned_support(555, 30), 100, None),
    "pieces of states and features": (sized([300, 20], 1000), 512, None),
    "one group": (sized([9001], 301), 96, None),
    "one group, pieces of states and features": (sized([1000], 1037), 300, None),
}


@pytest.fixture(autouse=True)
def outputs_start_as_nan(monkeypatch):
    """What a kernel leaves unwritten shows."""
    plain = torch.Tensor.new_empty

    def new_nan(self, *args, **kwargs):
        made = plain(self, *args, **kwargs)
        return made.fill_(torch.nan) if made.is_floating_point() else made

    monkeypatch.setattr(torch.Tensor, "new_empty", new_nan)


def on(device: str, support: Support) -> Support:
    return blocked_support(support.group_of_word.to(device), support.num_groups, support.states_per_word)


def inputs(support: Support, width: int, seed: int = 0) -> list[torch.Tensor]:
    """Logits of the size a model has, whatever the width; operands that bf16 holds exactly."""
    generator = torch.Generator().manual_seed(seed)
    emit = torch.randn(support.num_states, width, generator=generator) * 2 / width**0.5
    words = torch.randn(support.num_words, width, generator=generator)
    bias = torch.randn(support.num_words, generator=generator)
    exact = (operand.bfloat16().float().to(support.group_of_word.device) for operand in (emit, words, bias))
    return [operand.requires_grad_() for operand in exact]


def value_and_gradients(function, operands: list[torch.Tensor]) -> list[torch.Tensor]:
    value = function(*operands)
    generator = torch.Generator().manual_seed(7)
    # Off zero in the mean: the sum over a group, which the softmax takes away, matters then.
    cotangent = (torch.randn(value.shape, generator=generator) + 1).to(value)
    return [value.detach(), *torch.autograd.grad(value, operands, cotangent)]


def assert_near(actual: torch.Tensor, expected: torch.Tensor, tolerance: float) -> None:
    assert actual.shape == expected.shape
    scale = expected.abs().max().item() or 1.0
    torch.testing.assert_close(actual.double(), expected.double(), rtol=0, atol=tolerance * scale)


def check_against_reference(
    function, operands: list[torch.Tensor], support: Support, tolerances: tuple[float, float]
) -> None:
    """`function` takes emit, words and, where there is one, bias."""

    def expected(emit, words, bias=None):
        return reference.log_emission(emit, words, bias, support)

    exact = [operand.detach().double().requires_grad_() for operand in operands]
    found = value_and_gradients(function, operands)
    of_value, of_gradients = tolerances
    each = [of_value, *(of_gradients for _ in operands)]
    for actual, wanted, tolerance in zip(found, value_and_gradients(expected, exact), each, strict=True):
        assert actual.dtype == operands[0].dtype
        # A group of one word has the log-probability 0 and no gradient, up to what rounds in the terms of size 1.
        assert_near(actual, wanted, tolerance * max(1.0, 1.0 / (wanted.abs().max().item() or 1.0)))


@pytest.mark.parametrize("kind", SMALL)
@pytest.mark.parametrize(("device", "precision"), PRECISIONS)
def test_value_and_gradients_equal_the_reference(device, precision, kind):
    support, width, tile_words = (SMALL if device == "cpu" else LARGE)[kind]
    support = on(device, support)
    layout = word_layout(support.group_of_word, support.num_groups, tile_words)

    def tiled(emit, words, bias=None):
        return launch.tiled_log_emission(emit, words, bias, layout, precision)

    operands = inputs(support, width)
    check_against_reference(tiled, operands, support, TOLERANCE[precision])
    if kind == "uneven":
        check_against_reference(tiled, operands[:2], support, TOLERANCE[precision])


@pytest.mark.parametrize("device", DEVICES)
def test_every_state_sums_to_one_over_its_words(device):
    support = on(device, SMALL["uneven"][0])
    layout = word_layout(support.group_of_word, support.num_groups, 16)
    emit, words, bias = (operand.detach() * 30 for operand in inputs(support, 5))
    prob = launch.tiled_log_emission(emit, words, bias, layout, "highest").exp()
    totals = prob.new_zeros(support.num_groups, support.states_per_word).index_add_(0, support.group_of_word, prob)
    torch.testing.assert_close(totals, torch.ones_like(totals), rtol=0, atol=3e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_large_logits_do_not_overflow(device):
    support = on(device, SMALL["uneven"][0])
    layout = word_layout(support.group_of_word, support.num_groups, 16)
    emit, words, bias = (operand.detach() * 300 for operand in inputs(support, 5))
    value = launch.tiled_log_emission(emit, words, bias, layout, "highest")
    expected = reference.log_emission(emit.double(), words.double(), bias.double(), support)
    assert_near(value, expected, 1e-6)


@pytest.mark.parametrize("device", DEVICES)
def test_operands_and_cotangent_may_be_views_and_any_may_be_constant(device):
    support = on(device, SMALL["uneven"][0])
    layout = word_layout(support.group_of_word, support.num_groups)
    operands = inputs(support, 5)
    expected = reference.log_emission(*(operand.double() for operand in operands), support)
    wanted = torch.autograd.grad(expected.sum(), operands)
    for varied in range(3):
        strided = [
            operand.detach().mT.contiguous().mT if operand.ndim == 2 else operand.detach() for operand in operands
        ]
        strided[varied].requires_grad_()
        value = launch.tiled_log_emission(*strided, layout, "highest")
        assert_near(value.detach(), expected.detach(), 3e-6)
        # The cotangent of a sum is one number, seen from every cell.
        (found,) = torch.autograd.grad(value.sum(), strided[varied])
        torch.testing.assert_close(found, wanted[varied], rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_tf32_logits_are_made_of_all_bits(device):
    support = on(device, (SMALL if device == "cpu" else LARGE)["uneven"][0])
    layout = word_layout(support.group_of_word, support.num_groups, 16)
    # No bf16 or tf32 holds these.
    emit, words, bias = (operand.detach() * 1.2345678 for operand in inputs(support, 67))
    value = launch.tiled_log_emission(emit, words, bias, layout, "tf32")
    expected = reference.log_emission(emit.double(), words.double(), bias.double(), support)
    assert_near(value, expected, TOLERANCE["tf32"][0])


@pytest.mark.parametrize("device", DEVICES)
def test_tf32_operands_are_rounded_to_nearest(device):
    values = torch.tensor([1.0, 1 + 2**-11, 1 + 2**-11 + 2**-20, -1 - 3 * 2**-12, 0.0, 2 - 2**-23], device=device)
    rounded = torch.empty_like(values)
    round_to_tf32[(1,)](values, rounded, values.shape[0])
    # A half is rounded away from zero.
    assert rounded.tolist() == [1.0, 1 + 2**-10, 1 + 2**-10, -1 - 2**-10, 0.0, 2.0]


@triton.jit
def round_to_tf32(values, rounded, count):
    index = triton.language.arange(0, 16)
    loaded = triton.language.load(values + index, mask=index < count)
    triton.language.store(rounded + index, kernel.operand(loaded, "tf32", "tf32"), mask=index < count)


@pytest.mark.parametrize("tile_words", [1, 3, 16, None])
@pytest.mark.parametrize("kind", SMALL)
def test_tiles_and_spans_hold_every_word_of_a_group_once(kind, tile_words):
    support = SMALL[kind][0]
    layout = word_layout(support.group_of_word, support.num_groups, tile_words)
    words_of = {group: [] for group in range(support.num_groups)}
    for index, (group, first, count, first_tile, end_tile) in enumerate(layout.tiles.tolist()):
        assert 1 <= count <= layout.tile_words
        assert first_tile <= index < end_tile
        assert set(layout.tiles[first_tile:end_tile, 0].tolist()) == {group}
        words_of[group] += layout.words[first : first + count].tolist()
    expected = {
        group: (support.group_of_word == group).nonzero().flatten().tolist() for group in range(support.num_groups)
    }
    assert words_of == expected
    spans = layout.spans.tolist()
    assert {group: layout.words[first : first + count].tolist() for group, first, count in spans} == expected
    assert [count for _, _, count in spans] == sorted((count for _, _, count in spans), reverse=True)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("dtype", "tolerances"), [(torch.float32, TOLERANCE["highest"]), (torch.float64, (1e-12, 1e-12))]
)
def test_log_emission_takes_the_kernels_for_float32_alone(monkeypatch, dtype, tolerances):
    calls = []
    plain = launch.tiled_log_emission
    monkeypatch.setattr(launch, "tiled_log_emission", lambda *given: calls.append(1) or plain(*given))
    support = on("cuda", LARGE["uneven"][0])
    operands = [operand.detach().to(dtype).requires_grad_() for operand in inputs(support, 33)]
    check_against_reference(
        lambda *given: log_emission(*given, support, precision="highest"), operands, support, tolerances
    )
    assert len(calls) == (dtype == torch.float32)


@pytest.mark.gpu
def test_a_graph_replays_what_a_model_computes():
    support = LARGE["uneven"][0]
    settings = ModelSettings(states_per_block=support.states_per_word, dim=48, transition="block-factored")
    model = Model(settings, support).cuda()
    weight = model.emission.words.weight
    features = model.encoder.features(None).emit.detach()
    cotangent = torch.randn(support.num_words, support.states_per_word, device="cuda")

    def gradient() -> torch.Tensor:
        log_prob = model.emission(None, features, model.support, model._layout.words(), Numerics.training("bf16"))
        return torch.autograd.grad(log_prob, weight, cotangent)[0]

    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        gradient()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = gradient()
    with torch.no_grad():
        weight.mul_(1.5)
    graph.replay()
    torch.testing.assert_close(captured, gradient(), rtol=0, atol=0)
