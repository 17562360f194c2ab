"""Training on numbers too small for float32: eager steps do them again in a wider range, graphs count them and make way."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from graphs import graphs_on_cpu
from test_blocked_step_kernel import as_on_a_gpu
from torch import Tensor

import vlhmm
from vlhmm.models import Model, ModelSettings, build
from vlhmm.ops import recursion as dense_recursion
from vlhmm.ops.recursion.tilings import no_cooperative_kernels
from vlhmm.support import blocked_support
from vlhmm.training import step as step_module
from vlhmm.training.run_folder import read_log
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step

SETTINGS = TrainSettings(batch_size=3, window=6, state_dropout=0.0, schedule="constant", warmup=0.0)
MILD = torch.ones(3, 6, dtype=torch.int64)
LOST = MILD.clone()
LOST[1, 2], LOST[1, 3] = 0, 2
"""In sequence 1 two words that no state explains, nor two in a row, and then again those that tell nothing of the state."""


def parted(num_blocks: int, precision: str, away: float, device: str = "cpu") -> Model:
    """Each state leads to its like in every block. Words 0 and 2 are emitted by state 0 and by state 1 of their block, word 1 by both. All
    else has about the log probability `away`."""
    support = blocked_support(torch.arange(4) % num_blocks, num_blocks, 2)
    settings = ModelSettings(
        states_per_block=2, parameterization="scalar", transition="table", init_scale=1.0, precision=precision
    )
    model = build(settings, support, 3, torch.Generator().manual_seed(0))
    logits = dict(model.named_parameters())
    with torch.no_grad():
        logits["start.logits"].zero_()
        logits["transition.logits"].copy_(torch.tensor([[0.0, away], [away, 0.0]]).repeat(num_blocks, num_blocks))
        logits["emission.logits"].copy_(torch.tensor([[0.0, away], [0.0, 0.0], [away, 0.0], [away, away]]))
    return model.to(device)


def exact_loss(step: Step, window: Tensor) -> float:
    """Of the same window, from the same belief."""
    exact = Step(copy.deepcopy(step.model).double(), SETTINGS)
    exact._belief.token.copy_(step._belief.token)
    exact._belief.log_probs.copy_(step._belief.log_probs)
    exact(window, 0.0, fresh=False)
    return exact.read_loss()


@pytest.mark.parametrize("num_blocks", [1, 2])
def test_an_eager_step_does_them_again_and_counts_them(num_blocks: int) -> None:
    step = Step(parted(num_blocks, "highest", -120.0), SETTINGS)
    step(MILD, 0.0, fresh=True)
    step.read_loss()
    assert step.underflow.total == 0
    expected = exact_loss(step, LOST)
    step(LOST, 0.0, fresh=False)
    assert step.read_loss() == pytest.approx(expected, rel=1e-6)
    assert expected > 120 / LOST.numel()
    assert step.underflow.total == 1
    # Reading again changes nothing.
    step.read_loss()
    assert step.underflow.total == 1
    assert step.underflow.eagerly


def test_graphs_make_way_while_there_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    graphs_on_cpu(monkeypatch)
    monkeypatch.setattr(step_module, "can_be_captured", lambda tables, batch: True)
    step = Step(parted(2, "highest", -120.0), SETTINGS)
    replayed = []
    for number, window in enumerate([MILD] * 6 + [LOST] * 3 + [MILD] * 2 + [LOST] + [MILD] * 35):
        step(window, 0.0, fresh=number == 0)
        replayed.append(step._gradients.replayed)
        if number < 11 or number == 46:
            step.read_loss()
    # The first begins anew, three are eager by rule.
    expected = [False] * 4 + [True] * 3
    # As long as the last reading has found any; then one among 108 sequences, which are too few to matter.
    expected += [False] * 2 + [False] + [True] * 37
    assert replayed == expected
    assert step.underflow.total == 4
    assert not step.underflow.eagerly


def as_in_a_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels for float32, and nobody may look at what they find."""
    as_on_a_gpu(monkeypatch)
    monkeypatch.setattr(dense_recursion, "_kernels_take", lambda factors: factors.log_emission.dtype == torch.float32)
    monkeypatch.setattr(dense_recursion, "_in_capture", lambda device: True)
    monkeypatch.setattr(step_module, "in_capture", lambda device: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled or interpreted, not both")
@pytest.mark.parametrize("num_blocks", [1, 2])
def test_in_a_graph_they_are_counted_and_the_next_window_is_as_good_as_any(
    num_blocks: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nothing is left of the sum of a step, nothing would be possible in that stream any more."""
    step = Step(parted(num_blocks, "highest", -300.0), SETTINGS)
    if num_blocks == 1:
        monkeypatch.setattr("vlhmm.inference.score.kernels_take", lambda tables: False)
    step(MILD, 0.0, fresh=True)
    as_in_a_graph(monkeypatch)
    if num_blocks == 1:
        monkeypatch.setattr("vlhmm.inference.score.kernels_take", lambda tables: False)
    step(LOST, 0.0, fresh=False)
    assert step.token_log_probs[1].sum() < -100
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in step.parameters)
    torch.testing.assert_close(step._belief.log_probs[1], torch.full((2,), -math.log(2)))
    step._gradients.replayed = True
    assert math.isfinite(step.read_loss())
    assert step.underflow.total == 1
    assert step.underflow.eagerly
    step(MILD, 0.0, fresh=False)
    assert step.token_log_probs.isfinite().all()
    step.read_loss()
    assert step.underflow.total == 1


def test_a_training_tells_how_many(tmp_path: Path) -> None:
    """In its log, at its end, and after a resume."""
    words = "the cat the dog the cat the cat\n" * 20
    (tmp_path / "text.txt").write_text(words)
    corpus = vlhmm.load_corpus(tmp_path / "text.txt", tokenizer="words")
    size = corpus.tokenizer.vocab_size
    support = blocked_support(torch.zeros(size, dtype=torch.int64), 1, 3)
    settings = ModelSettings(states_per_block=3, parameterization="scalar", transition="table", init_scale=150.0)
    model = build(settings, support, corpus.tokenizer.eos_id, torch.Generator().manual_seed(1))
    train = TrainSettings(epochs=1, batch_size=2, window=8, learning_rate=1e-4, state_dropout=0.0, clip=0.0)
    first = vlhmm.train(model, corpus, train, out=tmp_path / "run", max_seconds=0.0)
    done = vlhmm.train(model, corpus, train, out=tmp_path / "run", resume=True)
    assert 0 < first.underflow_sequences < done.underflow_sequences <= 2 * done.step
    logged = [record["underflow_sequences"] for record in read_log(tmp_path / "run") if record["kind"] == "step"]
    assert logged[-1] == done.underflow_sequences


PATHS = {
    "blocked, bf16": (2, "bf16", True),
    "blocked, highest": (2, "highest", True),
    "dense, resident": (1, "bf16", True),
    "dense, persistent": (1, "tf32", True),
    "dense, a launch for each position": (1, "tf32", False),
    "dense, cuBLAS": (1, "bf16", False),
}


@pytest.mark.gpu
@pytest.mark.parametrize("away", [-120.0, -300.0])
@pytest.mark.parametrize(("num_blocks", "precision", "cooperative"), PATHS.values(), ids=PATHS)
def test_every_captured_step_counts_them_and_makes_way(
    num_blocks: int, precision: str, cooperative: bool, away: float
) -> None:
    with nullcontext() if cooperative else no_cooperative_kernels():
        step = Step(parted(num_blocks, precision, away, "cuda"), SETTINGS)
        for number in range(6):
            step(MILD, 0.0, fresh=number == 0)
        step.read_loss()
        assert step._gradients.replayed
        assert step.underflow.total == 0
        for _ in range(2):
            step(LOST, 0.0, fresh=False)
            assert step._gradients.replayed
            assert all(parameter.grad.isfinite().all() for parameter in step.parameters)
        assert math.isfinite(step.read_loss())
        # The second is lost anew: the first has not made the rest of the stream impossible.
        assert step.underflow.total == 2
        assert step.underflow.eagerly
        expected = exact_loss(step, LOST)
        step(LOST, 0.0, fresh=False)
        assert not step._gradients.replayed
        assert step.read_loss() == pytest.approx(expected, rel=1e-3)
        assert step.underflow.total == 3
        for eager in (True, False):
            step(MILD, 0.0, fresh=False)
            assert step._gradients.replayed == (not eager)
            step.read_loss()
        assert step.underflow.total == 3
