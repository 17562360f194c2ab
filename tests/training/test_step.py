"""A step of training: dropout that changes between epochs or drops columns, and what an unused start costs."""

import copy
import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

if not torch.cuda.is_available():
    # Must be known before triton is first imported.
    os.environ.setdefault("TRITON_INTERPRET", "1")

from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.inference.gather import Batch
from vlhmm.inference.score import score
from vlhmm.models import ModelSettings, build, split_frozen
from vlhmm.ops import parameter_update
from vlhmm.support import uniform_support
from vlhmm.training.checkpoint import read_tensors
from vlhmm.training.gradient import train, training
from vlhmm.training.run_folder import RunFolder
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step
from vlhmm.training.trainer import StepEvent

QUICK = TrainSettings(epochs=3, batch_size=4, window=16, checks_per_epoch=2, ema=0.9, weight_decay=0.01)
ANNEALED = replace(QUICK, state_dropout=0.7, state_dropout_end=0.0)
COLUMNS = replace(QUICK, dropout="columns", state_dropout=0.5)


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return tiny_corpus(60)


def test_dropout_goes_from_one_rate_to_the_other_in_few_steps() -> None:
    settings = TrainSettings(epochs=10, state_dropout=0.75, state_dropout_end=0.25)
    rates = [settings.dropout_in(epoch) for epoch in range(10)]
    assert rates == [0.75, 0.75, 0.625, 0.625, 0.5, 0.5, 0.375, 0.375, 0.25, 0.25]
    assert [ANNEALED.dropout_in(epoch) for epoch in range(3)] == [0.7, 0.35, 0.0]
    assert {QUICK.dropout_in(epoch) for epoch in range(3)} == {0.5}
    assert TrainSettings(epochs=1, state_dropout_end=0.25).dropout_in(0) == 0.5


@pytest.mark.parametrize("end", [1.0, -0.5, float("nan")])
def test_a_last_rate_outside_its_range_is_refused(end: float) -> None:
    with pytest.raises(ValueError, match="state_dropout_end is"):
        TrainSettings(state_dropout_end=end)


def test_each_stage_keeps_its_number_of_states(corpus: vlhmm.Corpus) -> None:
    step = Step(tiny_model(corpus), ANNEALED)
    kept = []
    for epoch in range(3):
        step.set_dropout(ANNEALED.dropout_in(epoch))
        for number, window in enumerate(torch.randint(corpus.tokenizer.vocab_size, (2, 4, 16))):
            step(window, 0.01, fresh=number == 0)
            assert torch.isfinite(step.loss)
        state = step.state()
        kept.append(state["kept"].shape[1] if "kept" in state else None)
        assert state["belief.log_probs"].shape == (4, kept[-1] or 6)
    assert kept == [2, 4, None]


@pytest.mark.parametrize("small", [0, 40, 1 << 18])
def test_the_average_moves_towards_every_parameter_by_its_weight(
    corpus: vlhmm.Corpus, small: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However large the tensors that are averaged together."""
    monkeypatch.setattr("vlhmm.training.update.SMALL", small)
    step = Step(tiny_model(corpus), QUICK)
    for number, window in enumerate(torch.randint(corpus.tokenizer.vocab_size, (3, 4, 16))):
        before = [average.clone() for average in step.averaged.parameters()]
        step(window, 0.01, fresh=number == 0)
        kept = min(QUICK.ema, (2 + number) / (11 + number))
        for average, last, parameter in zip(step.averaged.parameters(), before, step.model.parameters(), strict=True):
            torch.testing.assert_close(average, kept * last + (1 - kept) * parameter, rtol=1e-5, atol=1e-6)


@pytest.mark.skipif(torch.cuda.is_available(), reason="kernels are compiled or interpreted, not both")
def test_steps_updated_by_kernels_are_those_of_torch(corpus: vlhmm.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    """State of the same names, and frozen embeddings that rest."""
    pytest.importorskip("triton")
    settings = replace(QUICK, freeze_embeddings=0.5, frozen="states", weight_decay=0.1, clip=0.5)
    plain, ours = Step(tiny_model(corpus), settings), Step(tiny_model(corpus), settings)
    for number, window in enumerate(torch.randint(corpus.tokenizer.vocab_size, (3, 4, 16))):
        plain(window, 0.01, fresh=number == 0, frozen=number == 2)
        with monkeypatch.context() as patch:
            patch.setattr(parameter_update, "kernels_take", lambda _: True)
            ours(window, 0.01, fresh=number == 0, frozen=number == 2)
    found, expected = ours.state(), plain.state()
    assert sorted(found) == sorted(expected)
    assert float(ours.gradient_norm) == pytest.approx(float(plain.gradient_norm), rel=1e-5)
    for name, theirs in expected.items():
        assert found[name].dtype == theirs.dtype, name
        torch.testing.assert_close(found[name], theirs, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize(("settings", "half_epochs"), [(ANNEALED, 2), (ANNEALED, 3), (COLUMNS, 3)])
def test_a_resumed_run_ends_with_the_same_bits(
    corpus: vlhmm.Corpus, tmp_path: Path, settings: TrainSettings, half_epochs: int
) -> None:
    whole, resumed = tiny_model(corpus), tiny_model(corpus)
    num_steps = train(whole, corpus, settings, out=tmp_path / "whole").num_steps
    per_epoch = num_steps // settings.epochs
    saved = half_epochs // 2 * per_epoch + round(half_epochs % 2 * per_epoch / 2)
    # Gone at the step after a check, like a process that was killed.
    for event in training(tiny_model(corpus), corpus, settings, out=tmp_path / "parts"):
        if isinstance(event, StepEvent) and event.step == saved + 1:
            break
    assert RunFolder(tmp_path / "parts", resume=True).load_state()[1]["step"] == saved
    train(resumed, corpus, settings, out=tmp_path / "parts", resume=True)
    for name, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[name]), name
    ours, theirs = (read_tensors(tmp_path / part / "training.safetensors")[0] for part in ("whole", "parts"))
    assert all(torch.equal(value, theirs[name]) for name, value in ours.items())


@pytest.mark.parametrize("transition", ["softmax", "block-factored"])
def test_dropout_by_columns_trains_a_partition(corpus: vlhmm.Corpus, transition: str) -> None:
    model = tiny_model(corpus, transition=transition)
    assert train(model, corpus, COLUMNS, epochs=4).best_perplexity < 0.5 * corpus.tokenizer.vocab_size


def test_dropout_by_columns_trains_without_a_partition(corpus: vlhmm.Corpus) -> None:
    generator = torch.Generator().manual_seed(0)
    support = uniform_support(corpus.tokenizer.vocab_size, 30, 6, generator)
    model = build(ModelSettings(states_per_block=6, dim=16), support, generator=generator)
    with pytest.raises(ValueError, match="dropout by columns"):
        train(model, corpus, QUICK)
    assert train(model, corpus, COLUMNS, epochs=4).best_perplexity < 0.5 * corpus.tokenizer.vocab_size


@pytest.mark.parametrize(("reset", "used"), [("carry", False), ("eos", True)])
def test_a_start_that_no_window_begins_from_has_gradient_zero(corpus: vlhmm.Corpus, reset: str, used: bool) -> None:
    step = Step(tiny_model(corpus, reset=reset), QUICK)
    window = torch.full((4, 16), corpus.tokenizer.eos_id)
    for fresh in (True, False):
        step(window, 0.0, fresh=fresh)
        grads = {name: parameter.grad for name, parameter in step.model.named_parameters()}
        assert all(grad is not None for grad in grads.values())
        start = grads["encoder.start_network.first.weight"]
        assert bool((start != 0).any()) == (fresh or used)


@pytest.mark.parametrize("settings", [QUICK, COLUMNS, replace(QUICK, state_dropout=0.0)])
def test_the_gradient_is_that_of_the_carried_windows(corpus: vlhmm.Corpus, settings: TrainSettings) -> None:
    """Two steps at rate 0, and the same by hand: tables, boundary, likelihood."""
    model = tiny_model(corpus).double()
    step = Step(model, replace(settings, ema=0.0, clip=0.0))
    windows = torch.randint(corpus.tokenizer.vocab_size, (2, 4, 16), generator=torch.Generator().manual_seed(0))
    for number, window in enumerate(windows):
        step(window, 0.0, fresh=number == 0)
    found = {name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None}

    generator = torch.Generator().manual_seed(settings.seed)
    draw = model.columns_after_dropout if settings.dropout == "columns" else model.kept_after_dropout
    first, second = draw(settings.state_dropout, generator), draw(settings.state_dropout, generator)
    belief = vlhmm.HMM(model.tables(first).detach()).filter(windows[0]).belief
    tables = model.tables(second)
    if settings is QUICK:
        previous = type(first)(first.states[model.group_of_word[windows[0, :, -1]]])
        entering = model.boundary(previous, second).log_rows(torch.arange(previous.states.numel())).view(4, 3, -1)
    else:
        entering = tables.transition.log_rows(tables.support.states_of(windows[0, :, -1]).flatten()).view(4, 6, -1)
    rows = tables.transition.log_rows(torch.arange(tables.num_states)).exp()
    total = torch.zeros((), dtype=torch.float64)
    for sequence, probs, matrix in zip(windows[1], belief.probs, entering.exp(), strict=True):
        state = probs @ matrix
        for token in sequence:
            states = tables.support.states_of(token)
            joint = state[states] * tables.log_emission[token].exp()
            state = joint @ rows[states]
        total = total + joint.sum().log()
    model.zero_grad()
    (-total / windows[1].numel()).backward()
    assert float(step.loss) == pytest.approx(float(-total.detach() / windows[1].numel()), rel=1e-6)
    for name, parameter in model.named_parameters():
        expected = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        torch.testing.assert_close(found[name], expected, rtol=1e-7, atol=1e-12, msg=name)


def test_frozen_embeddings_move_only_after_their_part_of_training(corpus: vlhmm.Corpus) -> None:
    settings = replace(QUICK, freeze_embeddings=0.5, frozen="states", weight_decay=0.1)
    model = tiny_model(corpus)
    held, others = split_frozen(model, "states")
    before = [parameter.detach().clone() for parameter in (*held, *others)]
    moved = []
    for event in training(model, corpus, settings):
        if isinstance(event, StepEvent):
            moved.append(any(not torch.equal(now, old) for now, old in zip(held, before, strict=False)))
            last = event
    assert moved.index(True) == -(-last.num_steps // 2)
    assert all(moved[moved.index(True) :])
    assert any(not torch.equal(now, old) for now, old in zip(others, before[len(held) :], strict=True))


def test_context_is_read_but_not_scored(corpus: vlhmm.Corpus) -> None:
    settings = replace(QUICK, windows="independent", context=5, state_dropout=0.0, clip=0.0)
    model = tiny_model(corpus)
    window = torch.randint(corpus.tokenizer.vocab_size, (4, 16))
    step = Step(copy.deepcopy(model), settings)
    step(window, 0.0, fresh=True)

    def log_probs(tokens: torch.Tensor) -> torch.Tensor:
        batch = Batch(tokens, torch.full((4,), tokens.shape[1]), full=True)
        return score(model.tables(), batch).token_log_probs.sum()

    loss = -(log_probs(window) - log_probs(window[:, :5])) / (4 * 11)
    loss.backward()
    torch.testing.assert_close(step.loss, loss.detach())
    for mine, other in zip(model.parameters(), step.model.parameters(), strict=True):
        expected = torch.zeros_like(mine) if mine.grad is None else mine.grad
        torch.testing.assert_close(other.grad, expected, rtol=1e-4, atol=1e-7)


@pytest.mark.parametrize("context", [-1, 16])
def test_context_leaves_something_to_score(context: int) -> None:
    with pytest.raises(ValueError, match=f"context is {context}, but must be at least 0 and below window, 16"):
        replace(QUICK, windows="independent", context=context)
    with pytest.raises(ValueError, match="needs windows = 'independent', not 'carried'"):
        replace(QUICK, context=1)
