"""AWD-LSTM: its regularisers act in training alone, its averages begin when validation is stuck."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_baselines import KINDS, random_tokens, small

from vlhmm.baselines import AWDLSTMSettings, NeuralScorer
from vlhmm.baselines.averaged_sgd import AveragedSGDStep
from vlhmm.baselines.awd_lstm import AWDLSTM, _locked_dropout
from vlhmm.baselines.layers import dropout, kept
from vlhmm.baselines.windows import MIN_LENGTH, RandomLengthWindows
from vlhmm.data import Tokens

SMALL = KINDS["awd-lstm"]
assert isinstance(SMALL, AWDLSTMSettings)


def small_awd() -> AWDLSTM:
    model = small("awd-lstm")
    assert isinstance(model, AWDLSTM)
    return model


def test_weights_are_dropped_within_and_whole_after() -> None:
    model = small_awd()
    weights = [layer.get_parameter("weight_hh_l0") for layer in model.lstms]
    before = [weight.detach().clone() for weight in weights]
    tokens = random_tokens(9, 3, 6)
    with model.dropped_weights(torch.Generator().manual_seed(0)):
        dropped = [weight == 0 for weight in weights]
        for weight, whole, zero in zip(weights, before, dropped, strict=True):
            # Units that only fill up have no weights to drop.
            assert 0.1 < float(zero[whole != 0].float().mean()) < 0.3
            torch.testing.assert_close(weight[~zero].detach(), whole[~zero] / 0.8)
        model(tokens, model.start_state(3), None).token_log_probs.sum().backward()
    for weight, whole, zero in zip(weights, before, dropped, strict=True):
        assert torch.equal(weight, whole)
        assert weight.grad is not None
        assert not weight.grad[zero].any()
        assert bool(weight.grad[~zero].any())


def test_units_that_fill_up_change_nothing_and_stay_nothing() -> None:
    model, tokens = small_awd(), random_tokens(9, 8, 12)
    num_units = SMALL.hidden_dim
    assert model.lstms[0].hidden_size == 16 > num_units == 14
    # The same network without them.
    plain = [torch.nn.LSTM(10, 14, batch_first=True), torch.nn.LSTM(14, 10, batch_first=True)]
    for number, (theirs, ours) in enumerate(zip(plain, model.lstms, strict=True)):
        theirs.double()
        units, inputs = theirs.hidden_size, theirs.input_size
        for name, parameter in theirs.named_parameters():
            padded = ours.get_parameter(name).detach().view(4, -1, *ours.get_parameter(name).shape[1:])
            kept_part = (
                padded[:, :units, : inputs if "ih" in name else units] if "weight" in name else padded[:, :units]
            )
            parameter.data = kept_part.reshape(parameter.shape).clone()
            bound = (14, 10)[number] ** -0.5
            assert 0.5 * bound < float(parameter.detach().abs().max()) <= bound
    model.settings = replace(
        SMALL, embedding_dropout=0.0, input_dropout=0.0, hidden_dropout=0.0, output_dropout=0.0, weight_dropout=0.0
    )
    words = torch.cat([torch.full((8, 1), -1), tokens[:, :-1]], dim=1)
    values = torch.nn.functional.embedding(words.clamp(min=0), model.embedding) * (words >= 0)[..., None]
    for layer in plain:
        values = layer(values)[0]
    logits = values @ model.embedding.T + model.bias
    expected = logits.log_softmax(-1).gather(2, tokens[..., None])[..., 0]
    torch.testing.assert_close(model(tokens, model.start_state(8), None).token_log_probs, expected)
    real = sum(parameter.numel() for layer in plain for parameter in layer.parameters())
    assert model.num_parameters == real + model.embedding.numel() + model.bias.numel()
    step = AveragedSGDStep(model, seed=0)
    for seed in range(3):
        step(random_tokens(9, 8, 12, seed=seed), seed == 0)
    for layer in model.lstms:
        for name, parameter in layer.named_parameters():
            assert not parameter[~model._real_parts()[f"layers.{model.lstms.index(layer)}.{name}"]].any()


def test_the_gradient_through_dropped_weights_is_the_chain_rule() -> None:
    model = small_awd()
    tokens = random_tokens(9, 2, 5)
    weight = model.lstms[1].get_parameter("weight_hh_l0")

    def loss() -> torch.Tensor:
        return model(tokens, model.start_state(2), None).token_log_probs.sum()

    with model.dropped_weights(torch.Generator().manual_seed(3)):
        loss().backward()
    assert weight.grad is not None
    gradient, weight.grad = weight.grad, None
    row, column = divmod(int(gradient.abs().argmax()), gradient.shape[1])
    values = []
    for change in (1e-4, -1e-4):
        with torch.no_grad():
            weight[row, column] += change
        with model.dropped_weights(torch.Generator().manual_seed(3)), torch.no_grad():
            values.append(float(loss()))
        with torch.no_grad():
            weight[row, column] -= change
    assert (values[0] - values[1]) / 2e-4 == pytest.approx(float(gradient[row, column]), rel=1e-5)


def test_without_noise_nothing_is_dropped() -> None:
    model, tokens = small_awd(), random_tokens(9, 2, 5)
    lengths = torch.tensor([5, 5])
    first, second = (NeuralScorer(model).score_window(tokens, lengths, None)[0] for _ in range(2))
    assert torch.equal(first, second)
    noise = torch.Generator().manual_seed(0)
    noisy = [model(tokens, model.start_state(2), noise).token_log_probs.detach() for _ in range(2)]
    assert not torch.equal(noisy[0], noisy[1])
    still = replace(SMALL, embedding_dropout=0.0, input_dropout=0.0, hidden_dropout=0.0, output_dropout=0.0)
    model.settings = still
    assert torch.equal(model(tokens, model.start_state(2), noise).token_log_probs.detach(), first)


def test_dropout_keeps_the_mean_and_locked_dropout_the_features() -> None:
    noise, values = torch.Generator().manual_seed(0), torch.ones(40, 50, 60)
    assert float(dropout(values, 0.3, noise).mean()) == pytest.approx(1, abs=0.01)
    assert set(kept(values, (100,), 0.5, noise).tolist()) == {0.0, 2.0}
    locked = _locked_dropout(values, 0.4, noise)
    assert torch.equal(locked, locked[:, :1].expand_as(locked))
    assert not torch.equal(locked[0], locked[1])
    assert dropout(values, 0.3, None) is values


def test_whole_words_are_dropped() -> None:
    model = small_awd()
    model.settings = replace(SMALL, embedding_dropout=0.5, input_dropout=0.0, hidden_dropout=0.0, output_dropout=0.0)
    # A word whose embedding is dropped leaves the same trace as any other that is: the scores after them come in two kinds.
    tokens = torch.stack([torch.arange(9), torch.zeros(9, dtype=torch.int64)], dim=1)
    scores = model(tokens, model.start_state(9), torch.Generator().manual_seed(2)).token_log_probs[:, 1]
    distinct, counts = torch.unique(scores.detach().round(decimals=10), return_counts=True)
    assert int(counts.max()) > 1
    assert len(distinct) == 9 - int(counts.max()) + 1


@torch.no_grad()
def test_penalties_are_those_of_the_paper() -> None:
    model, tokens = small_awd(), random_tokens(9, 2, 5)
    model.settings = replace(SMALL, activation_penalty=2.0, change_penalty=0.0)
    activation = model(tokens, model.start_state(2), None)
    model.settings = replace(SMALL, activation_penalty=0.0, change_penalty=3.0)
    change = model(tokens, model.start_state(2), None)
    # The outputs of the last layer: its hidden state after each word.
    state, outputs = model.start_state(2), []
    for position in range(5):
        state = model(tokens[:, position : position + 1], state, None).state
        outputs.append(state[-2][0])
    last = torch.stack(outputs, dim=1)
    assert float(activation.penalty) == pytest.approx(2 * float(last.square().mean()))
    assert float(change.penalty) == pytest.approx(3 * float((last[:, 1:] - last[:, :-1]).square().mean()))


def test_averaging_begins_when_validation_is_stuck() -> None:
    step = AveragedSGDStep(small_awd(), seed=0)
    step.settings = replace(SMALL, patience=2, average_after=0)
    for loss in (5.0, 4.0, 3.0, 3.5, 3.1):
        step.after_check(loss)
        assert step.averages is None
    # Worse than the best of more than two checks ago.
    step.after_check(3.05)
    assert step.averages is not None


def test_averaging_begins_by_plan_at_the_latest() -> None:
    step = AveragedSGDStep(small_awd(), seed=0)
    step.settings = replace(SMALL, patience=5, average_after=2)
    step.after_check(5.0)
    assert step.averages is None
    step.after_check(4.0)
    assert step.averages is not None


def test_the_average_is_the_mean_of_all_weights_since() -> None:
    model = small_awd()
    step = AveragedSGDStep(model, seed=0)
    step(random_tokens(9, 8, 12), True)
    step.settings = replace(SMALL, average_after=1)
    step.after_check(3.0)
    seen = []
    for seed in range(3):
        step(random_tokens(9, 8, 12, seed=seed), False)
        seen.append(model.embedding.detach().clone())
    own = model.embedding.detach().clone()
    with step.scored_weights():
        torch.testing.assert_close(model.embedding.detach(), torch.stack(seen).mean(0))
    assert torch.equal(model.embedding, own)


def test_short_windows_make_small_steps() -> None:
    moved = []
    for window in (12, 24):
        model = small_awd()
        step = AveragedSGDStep(model, seed=0)
        step.settings = replace(SMALL, window=window, weight_decay=0.0)
        before = model.embedding.detach().clone()
        step(random_tokens(9, 8, 12), True)
        moved.append(model.embedding.detach() - before)
    torch.testing.assert_close(moved[0], 2 * moved[1])


def test_windows_of_random_length_cover_the_text_in_order() -> None:
    text = Tokens(np.arange(1003), np.array([0, 1003], np.int64))
    for epoch in range(3):
        windows = RandomLengthWindows(text, batch_size=2, length=20, seed=0)
        parts = list(windows.windows(epoch, 0))
        assert len(parts) == windows.count(epoch)
        assert torch.equal(torch.cat(parts, 1), torch.arange(1002).view(2, 501))
        lengths = [part.shape[1] for part in parts]
        assert len(set(lengths)) > 3
        assert min(lengths[:-1]) >= MIN_LENGTH
        rest = list(windows.windows(epoch, 4))
        assert all(torch.equal(ours, theirs) for ours, theirs in zip(rest, parts[4:], strict=True))
    assert windows._ends(0) != windows._ends(1)
