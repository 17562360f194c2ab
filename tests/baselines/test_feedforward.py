"""The feed-forward model: the last words and nothing else."""

import torch
import torch.nn.functional as F
from small_baselines import random_tokens, small

from vlhmm.baselines.feedforward import FeedForward


def model_and_tokens() -> tuple[FeedForward, torch.Tensor]:
    model = small("feedforward")
    assert isinstance(model, FeedForward)
    return model, random_tokens(9, 1, 10)


def log_probs(model: FeedForward, tokens: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model(tokens, model.start_state(len(tokens)), None).token_log_probs[0]


def test_only_the_last_words_count() -> None:
    model, tokens = model_and_tokens()
    changed = tokens.clone()
    changed[0, 2] = (tokens[0, 2] + 1) % 9
    differs = (log_probs(model, tokens) - log_probs(model, changed)).abs() > 1e-9
    # Order 4: position 2 itself and the three after it.
    assert differs.tolist() == [False, False, True, True, True, True, False, False, False, False]


def test_the_oldest_word_comes_first_and_missing_ones_are_zero() -> None:
    model, tokens = model_and_tokens()
    ours = log_probs(model, tokens)
    for position in range(10):
        before = [
            model.embedding[tokens[0, i]] if i >= 0 else torch.zeros(12).double() for i in range(position - 3, position)
        ]
        hidden = F.relu(model.hidden(F.relu(model.context(torch.cat(before)))))
        expected = F.log_softmax(model.embedding @ hidden, dim=0)[tokens[0, position]]
        torch.testing.assert_close(ours[position], expected.detach(), rtol=1e-12, atol=1e-12)


def test_the_first_word_of_a_sentence_sees_the_one_before() -> None:
    model, tokens = model_and_tokens()
    # 0 stands for EOS at position 4: it is a word like any other, and those before it still count.
    tokens[0, 4] = 0
    changed = tokens.clone()
    changed[0, 3] = (tokens[0, 3] + 1) % 9
    assert abs(float(log_probs(model, tokens)[5] - log_probs(model, changed)[5])) > 1e-9
