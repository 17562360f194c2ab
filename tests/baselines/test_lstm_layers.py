"""The LSTM: what PyTorch's own two layers compute, its two ways to begin, and its two ways through the text."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from small_baselines import KINDS, random_tokens
from tiny import tiny_corpus
from torch import nn

from vlhmm.baselines import LSTMSettings, train_baseline
from vlhmm.baselines.adam import AdamStep
from vlhmm.baselines.layers import dropout
from vlhmm.baselines.lstm import LSTM
from vlhmm.baselines.windows import WindowsInOrder
from vlhmm.training.trainer import StepEvent

X = 9


class Plain(nn.Module):
    """One module for all layers, tied weights, and windows that begin with the last word of the window before."""

    def __init__(self, ours: LSTM) -> None:
        super().__init__()
        dim, num_layers = ours.settings.dim, ours.settings.num_layers
        self.embedding = nn.Embedding(X, dim)
        self.lstm = nn.LSTM(dim, dim, num_layers, batch_first=True)
        self.double()
        with torch.no_grad():
            self.embedding.weight.copy_(ours.embedding)
            for index, layer in enumerate(ours.layers):
                for name, parameter in layer.named_parameters():
                    getattr(self.lstm, name.replace("l0", f"l{index}")).copy_(parameter)

    def losses(
        self, text: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor] | None
    ) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        hidden, state = self.lstm(self.embedding(text[:, :-1]), state)
        logits = hidden @ self.embedding.weight.T
        return F.cross_entropy(logits.transpose(1, 2), text[:, 1:], reduction="none"), state


def test_two_windows_are_trained_as_by_plain_pytorch() -> None:
    """State is carried but not its gradient; the word before a window is its first input; the tied weights have both gradients."""
    settings = LSTMSettings(dim=12, dropout=0.0, batch_size=3, window=5, clip=0.5, learning_rate=0.03)
    ours = LSTM(settings, X, torch.Generator().manual_seed(0)).double()
    plain = Plain(ours)
    text = random_tokens(X, 3, 11)
    stepper = AdamStep(ours, 0)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=0.03, weight_decay=0.0)
    # Ours reads the first word after nothing; both begin alike once it is known.
    state = ours.start_state(3)
    stepper._carry((text[:, 0], state[1], state[2]))
    plain_state = None
    for begin in (0, 5):
        stepper(text[:, begin + 1 : begin + 6], fresh=False)
        losses, plain_state = plain.losses(text[:, begin : begin + 6], plain_state)
        plain_state = (plain_state[0].detach(), plain_state[1].detach())
        optimizer.zero_grad()
        loss = losses.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
        assert float(stepper.loss) == pytest.approx(loss.item(), rel=1e-6)
        torch.testing.assert_close(ours.embedding, plain.embedding.weight, rtol=1e-8, atol=1e-10)
        torch.testing.assert_close(ours.layers[1].weight_hh_l0, plain.lstm.weight_hh_l1, rtol=1e-8, atol=1e-10)


def test_dropout_is_drawn_anew_for_every_word_and_call() -> None:
    noise = torch.Generator().manual_seed(0)
    first, second = (dropout(torch.ones(4, 50, 20), 0.3, noise) for _ in range(2))
    assert not torch.equal(first, second)
    assert not torch.equal(first[:, 0], first[:, 1])
    assert sorted(first.unique().tolist()) == pytest.approx([0.0, 1 / 0.7])
    assert float((first == 0).float().mean()) == pytest.approx(0.3, abs=0.03)


@torch.no_grad()
def test_initialised_as_the_code_weights_are_pytorchs() -> None:
    settings = LSTMSettings(dim=64, initialisation="code")
    model, same, other = (LSTM(settings, 500, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1))
    assert float(model.embedding.std()) == pytest.approx(1, rel=0.02)
    for ours, theirs in zip(model.layers.parameters(), nn.LSTM(64, 64, 2).parameters(), strict=True):
        assert float(ours.abs().max()) <= 64**-0.5
        assert float(ours.std()) == pytest.approx(float(theirs.std()), rel=0.2)
    for ours, again, differs in zip(model.parameters(), same.parameters(), other.parameters(), strict=True):
        assert torch.equal(ours, again)
        assert not torch.equal(ours, differs)


def test_text_in_its_order_is_read_from_beginning_to_end() -> None:
    tokens = tiny_corpus().train
    text = WindowsInOrder(tokens, 4, 7)
    windows = list(text.windows(3, 0))
    assert len(windows) == text.count(3)
    streams = torch.cat(windows, dim=1)
    assert streams.shape[1] > (len(tokens) - 4 * 7) // 4 - 1
    assert streams.flatten().tolist() == tokens.ids[: streams.numel()].tolist()
    assert all(torch.equal(a, b) for a, b in zip(text.windows(0, 2), windows[2:], strict=True))


def test_without_shuffling_epochs_see_the_same_windows() -> None:
    corpus = tiny_corpus()
    settings = KINDS["lstm"]
    assert isinstance(settings, LSTMSettings)
    still = replace(settings, dropout=0.0, learning_rate=1e-12, min_rate=0.0, epochs=2)

    def losses(shuffle: bool) -> list[float]:
        events = train_baseline(replace(still, shuffle=shuffle), corpus)
        return [event.loss for event in events if isinstance(event, StepEvent)]

    for shuffle in (False, True):
        every = losses(shuffle)
        half = len(every) // 2
        assert half > 3
        repeated = every[:half] == pytest.approx(every[half:], rel=1e-5)
        assert repeated is not shuffle
