"""Every step of training as a graph, played by the work itself where there is no GPU: buffers are filled and read in the right
order, so the weights are those of eager steps to the bit."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from graphs import WorkAgain, graphs_on_cpu
from tiny import tiny_corpus
from torch import Tensor

from vlhmm import Corpus
from vlhmm.baselines.adam import AdamStep
from vlhmm.baselines.averaged_sgd import AveragedSGDStep
from vlhmm.baselines.awd_lstm import AWDLSTM
from vlhmm.baselines.lstm import LSTM
from vlhmm.distillation.decoder import DecoderSettings, DecoderTraining
from vlhmm.distillation.decoder.training import DecoderTask
from vlhmm.models import ModelSettings, build
from vlhmm.support import blocked_support
from vlhmm.training import step as step_module
from vlhmm.training.baseline_settings import AWDLSTMSettings, LSTMSettings
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step

WORDS, ROWS, WINDOW = 20, 3, 5


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return tiny_corpus()


def windows(num: int, width: int = WINDOW) -> list[Tensor]:
    return list(torch.randint(WORDS, (num, ROWS, width), generator=torch.Generator().manual_seed(0)))


def weights(model: torch.nn.Module) -> list[Tensor]:
    return [value.detach().clone() for value in model.state_dict().values()]


def in_both_ways(
    run: Callable[[], torch.nn.Module], monkeypatch: pytest.MonkeyPatch, replays: list[int]
) -> list[WorkAgain]:
    """What `run` trains has the same weights with graphs as without, and graphs were replayed so often."""
    eager = weights(run())
    made = graphs_on_cpu(monkeypatch)
    for ours, theirs in zip(weights(run()), eager, strict=True):
        assert torch.equal(ours, theirs)
    assert [graph.replays for graph in made] == replays
    return made


def hmm_step(**changes: object) -> Step:
    generator = torch.Generator().manual_seed(0)
    support = blocked_support(torch.arange(WORDS) % 4, 4, 6)
    model = build(ModelSettings(states_per_block=6, dim=8), support, 3, generator)
    settings = TrainSettings(
        batch_size=ROWS, window=WINDOW, state_dropout=0.5, ema=0.9, schedule="constant", warmup=0.0
    )
    return Step(model, replace(settings, **changes))  # type: ignore[arg-type]


@pytest.fixture
def all_static(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU no step is: it looks for underflow, which a graph could not."""
    monkeypatch.setattr(step_module, "can_be_captured", lambda tables, batch: True)


@pytest.mark.usefixtures("all_static")
def test_the_steady_step_is_two_graphs_and_windows_that_begin_a_stream_are_eager(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run() -> torch.nn.Module:
        step = hmm_step()
        for number, window in enumerate(windows(12)):
            step(window, 0.01, fresh=number % 6 == 0)
        return step.averaged

    # Eager: the first, three of the next five, and the seventh, which begins anew.
    gradients, update = in_both_ways(run, monkeypatch, [2 + 5, 2 + 5])
    assert gradients.generator is not None
    assert update.in_memory_of is None


@pytest.mark.usefixtures("all_static")
def test_independent_windows_are_captured_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> torch.nn.Module:
        step = hmm_step(windows="independent")
        for window in windows(6):
            step(window, 0.01, fresh=True)
        return step.model

    in_both_ways(run, monkeypatch, [3, 3])


@pytest.mark.usefixtures("all_static")
def test_another_dropout_or_objective_is_captured_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> torch.nn.Module:
        step = hmm_step(windows="independent", state_dropout=0.0)
        label = step.model.support.states_of_group[:, 0]
        for number, window in enumerate(windows(15)):
            if number == 10:
                step.set_dropout(0.5)
            given = (lambda tokens: label[tokens % 4]) if number < 5 else None
            step(window, 0.01, fresh=True, label=given)
        return step.model

    in_both_ways(run, monkeypatch, [2] * 6)


def test_a_step_that_must_ask_the_device_stays_eager(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> torch.nn.Module:
        step = hmm_step()
        for number, window in enumerate(windows(8)):
            step(window, 0.01, fresh=number == 0)
        return step.model

    in_both_ways(run, monkeypatch, [])


@pytest.mark.usefixtures("all_static")
def test_a_step_resumed_goes_on_to_the_same_bits_in_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> torch.nn.Module:
        step = hmm_step()
        for number, window in enumerate(windows(12)):
            if number == 6:
                saved = {name: value.clone() for name, value in step.state().items()}
                step = hmm_step()
                step.restore(saved, 6, 0.5)
            step(window, 0.01, fresh=number == 0)
        return step.model

    in_both_ways(run, monkeypatch, [2, 2, 3, 3])


@pytest.mark.usefixtures("all_static")
def test_gradients_are_reduced_between_the_two_graphs(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place, in the memory that the second reads."""

    def doubled(parameters: list[torch.nn.Parameter]) -> None:
        for parameter in parameters:
            assert parameter.grad is not None
            parameter.grad.mul_(2)

    def run() -> torch.nn.Module:
        step = hmm_step(clip=0.0)
        for number, window in enumerate(windows(8)):
            step(window, 0.01, fresh=number == 0)
        return step.model

    alone = weights(run())
    monkeypatch.setattr(step_module, "reduce_gradients", doubled)
    reduced = weights(run())
    assert not all(torch.equal(ours, theirs) for ours, theirs in zip(reduced, alone, strict=True))
    in_both_ways(run, monkeypatch, [4, 4])


def test_a_baselines_step_is_one_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = LSTMSettings(dim=8, dropout=0.3, batch_size=ROWS, window=WINDOW)

    def run() -> torch.nn.Module:
        step = AdamStep(LSTM(settings, WORDS, torch.Generator().manual_seed(0)), 1)
        for number, window in enumerate(windows(8)):
            step(window, fresh=number == 0)
        return step.model

    (graph,) = in_both_ways(run, monkeypatch, [5])
    assert graph.generator is not None


def test_each_length_of_a_window_is_a_graph_in_common_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = AWDLSTMSettings(embedding_dim=8, hidden_dim=8, num_layers=2, batch_size=ROWS, window=10)
    texts = [*windows(3), *windows(3, 4), *windows(2), *windows(1, 6), *windows(1, 4)]

    def run() -> torch.nn.Module:
        step = AveragedSGDStep(AWDLSTM(settings, WORDS, torch.Generator().manual_seed(0)), 1)
        for number, window in enumerate(texts):
            step(window, fresh=number == 0)
        return step.model

    first, second = in_both_ways(run, monkeypatch, [2 + 2, 2 + 1])
    assert second.in_memory_of is first


def test_a_decoders_step_is_one_graph(corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    training = DecoderTraining(tokens=1_024, batch_size=8, window=16, checks=1)

    def run() -> torch.nn.Module:
        task = DecoderTask(corpus, DecoderSettings(dim=8, layers=1, heads=1), training, torch.device("cpu"))
        for tokens in task.batches():
            task.make_step(tokens)
            if task.finished():
                break
        assert np.isfinite(task.loss())
        return task.decoder

    in_both_ways(run, monkeypatch, [5])
