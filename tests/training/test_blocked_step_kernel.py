"""A training step where words share states, columns are dropped or tables are free: with every kernel that a GPU takes for it,
interpreted or in a graph, against plain float64."""

import copy
import gc
import os
import weakref
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

pytest.importorskip("triton")

from vlhmm.inference import blocked, score
from vlhmm.models import Model, ModelSettings, build, heads
from vlhmm.ops import emission, residual_network, state_rows, table_softmax
from vlhmm.ops.blocked_recursion import BlockedFactors, BlockedRun, blocked_recursion_by_kernels
from vlhmm.ops.emission.scattered import logits_of_all_pairs
from vlhmm.ops.groups import of_window as window_groups
from vlhmm.ops.groups import order as group_order
from vlhmm.ops.row_logsumexp import factors_and_row_logsumexp, tiled_factors_and_row_logsumexp
from vlhmm.ops.state_rows import drawn as drawn_states
from vlhmm.support import blocked_support, uniform_support
from vlhmm.tables import Tables
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step

SETTINGS = TrainSettings(batch_size=3, window=6, state_dropout=0.5, schedule="constant", warmup=0.0)
SCALAR = {"parameterization": "scalar", "transition": "table", "init_scale": 1.0}
CASES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "kept": ("blocked", {"target_network": True}, {}),
    "block-factored kept": ("blocked", {"transition": "block-factored"}, {}),
    "block-factored scaled": ("blocked", {"transition": "block-factored", "out_scale": 0.5}, {}),
    "factored": ("blocked", {"embeddings": "factored"}, {}),
    "uniform": ("uniform", {}, {"dropout": "columns"}),
    "uniform, all states": ("uniform", {}, {"state_dropout": 0.0}),
    "columns": ("blocked", {}, {"dropout": "columns"}),
    "block-factored columns": ("blocked", {"transition": "block-factored"}, {"dropout": "columns"}),
    "scalar": ("blocked", SCALAR, {}),
    "scalar, all states": ("blocked", SCALAR, {"state_dropout": 0.0}),
    "scalar, unmasked": ("blocked", {**SCALAR, "emission": "unmasked"}, {}),
}


def small_model(case: str, words: int, blocks: int, states: int, precision: str) -> Model:
    kind, changes, _ = CASES[case]
    generator = torch.Generator().manual_seed(1)
    support = uniform_support(words, blocks * states, states, generator)
    if kind == "blocked":
        support = blocked_support(torch.randint(blocks, (words,), generator=generator), blocks, states)
    settings = ModelSettings(**{"states_per_block": states, "dim": 10, "precision": precision, **changes})
    return build(settings, support, 3, generator)


def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is float32 goes to the kernels, in the highest precision."""

    def normalized(out: Tensor, into: Tensor, live: Tensor | None, *, precision: Any) -> tuple[Tensor, Tensor, Tensor]:
        if out.dtype == torch.float64:
            return factors_and_row_logsumexp(out, into, live, precision=precision)
        return tiled_factors_and_row_logsumexp(out, into, live, precision="highest")

    def recursion(factors: BlockedFactors, precision: Any) -> BlockedRun:
        return blocked_recursion_by_kernels(factors, "highest")

    def kernels_take(tables: Tables) -> bool:
        return tables.dtype == torch.float32

    monkeypatch.setattr(residual_network, "_kernels_take", lambda embedding: embedding.dtype == torch.float32)
    monkeypatch.setattr(state_rows, "_kernels_take", lambda per_state, _: per_state.dtype == torch.float32)
    monkeypatch.setattr(heads, "factors_and_row_logsumexp", normalized)
    monkeypatch.setattr(heads.choice, "kernels_take", lambda out, *_: out.dtype == torch.float32)
    monkeypatch.setattr(table_softmax, "_kernels_take", lambda logits, *_: logits.dtype == torch.float32)
    monkeypatch.setattr(emission, "scattered_logits", lambda *given: logits_of_all_pairs(*given, "highest"))
    for op in (drawn_states, window_groups, group_order):
        monkeypatch.setattr(op, "_kernel_takes", lambda _: True)
    monkeypatch.setattr(score, "kernels_take", kernels_take)
    monkeypatch.setattr(blocked, "blocked_recursion", recursion)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled or interpreted, not both")
@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradients_of_a_step_equal_those_in_float64(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # The networks' kernels take no other, and on a CPU it is float32.
    model = small_model(case, 40, 3, 6, "tf32")
    as_on_a_gpu(monkeypatch)
    settings = replace(SETTINGS, **CASES[case][2])
    ours, exact = Step(copy.deepcopy(model), settings), Step(copy.deepcopy(model).double(), settings)
    # The second goes on from the first one's belief.
    for number, window in enumerate(torch.randint(40, (2, 3, 6), generator=torch.Generator().manual_seed(0))):
        for step in (ours, exact):
            step(window, 1e-3, fresh=number == 0)
        assert float(ours.loss) == pytest.approx(float(exact.loss), rel=1e-6)
        found, expected = (
            [parameter.grad.double() for parameter in step.model.parameters() if parameter.grad is not None]
            for step in (ours, exact)
        )
        # Some gradients are 0 but for rounding, so room is relative to the largest of all.
        room = 3e-6 * max(float(gradient.abs().max()) for gradient in expected)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=room)


class Sums(TorchDispatchMode):
    """The shapes of all sums of two tensors, which is how autograd adds gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in (torch.ops.aten.add.Tensor, torch.ops.aten.add_.Tensor):
            self.shapes.add(tuple(result.shape))
        return result


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled or interpreted, not both")
@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"target_network": True},
        {"embeddings": "factored", "target_network": True},
        {"transition": "block-factored"},
    ],
)
def test_no_gradient_of_features_or_embeddings_takes_a_pass_to_be_added(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(CASES, "kept", ("blocked", changes, {}))
    model = small_model("kept", 40, 3, 6, "tf32")
    as_on_a_gpu(monkeypatch)
    step = Step(model, replace(SETTINGS, batch_size=2))
    step(torch.zeros(2, 6, dtype=torch.long), 1e-3, fresh=True)
    with Sums() as sums:
        step(torch.ones(2, 6, dtype=torch.long), 1e-3, fresh=False)
    # Of the 9 states that are kept, and of these and the 6 that the two sequences come from.
    assert not {(9, 10), (15, 10)} & sums.shapes


@pytest.mark.gpu
@pytest.mark.parametrize(("precision", "room"), [("highest", 1e-5), ("tf32", 3e-4), ("bf16", 3e-3)])
@pytest.mark.parametrize("case", CASES)
def test_a_step_is_captured_and_learns_as_in_float64(case: str, precision: str, room: float) -> None:
    model = small_model(case, 301, 6, 20, precision).cuda()
    settings = replace(SETTINGS, batch_size=7, window=13, **CASES[case][2])
    graphs = Step(copy.deepcopy(model), settings)
    exact = Step(copy.deepcopy(model).double(), replace(settings, graphs=False))
    for number, window in enumerate(torch.randint(301, (8, 7, 13), generator=torch.Generator().manual_seed(0))):
        for step in (graphs, exact):
            step(window, 1e-3, fresh=number == 0)
        assert float(graphs.loss) == pytest.approx(float(exact.loss), rel=room)
        assert float(graphs.gradient_norm) == pytest.approx(float(exact.gradient_norm), rel=10 * room)
    assert graphs._gradients.has_graph()
    assert graphs._update.has_graph()


@pytest.mark.gpu
def test_a_step_gives_its_memory_back_at_once() -> None:
    step = Step(small_model("kept", 301, 6, 20, "bf16").cuda(), replace(SETTINGS, batch_size=7, window=13))
    for number, window in enumerate(torch.randint(301, (6, 7, 13), generator=torch.Generator().manual_seed(0))):
        step(window, 1e-3, fresh=number == 0)
    gone = weakref.ref(step)
    gc.disable()
    try:
        del step
        assert gone() is None
    finally:
        gc.enable()
