"""Text drawn from baselines: its distribution is the model's own."""

import math

import pytest
import torch
from small_baselines import KINDS, random_tokens, small

from vlhmm.baselines import NeuralScorer
from vlhmm.baselines.sampling import BaselineSampler

KIND = pytest.mark.parametrize("name", KINDS)


@KIND
def test_next_words_have_the_probabilities_that_the_scorer_gives_them(name):
    model = small(name, num_words=7)
    read = random_tokens(7, 3, 5)
    state = model.start_state(3)
    for position in range(5):
        features, after = model.advance(state)
        log_probs = model.next_logits(features).log_softmax(-1)
        for word in range(7):
            guess = torch.cat([read[:, :position], torch.full((3, 1), word)], dim=1)
            scored, _ = NeuralScorer(model).score_window(guess, torch.full((3,), position + 1), None)
            assert torch.allclose(log_probs[:, word], scored[:, -1], atol=1e-9)
        state = after(read[:, position])


@KIND
def test_log_probs_of_samples_are_those_of_the_scorer_after_their_prefix(name):
    model = small(name, num_words=7)
    prefixes = random_tokens(7, 4, 3)
    drawn = BaselineSampler(model, batch_size=4, length=6)(prefixes, seed=3)
    whole = torch.cat([prefixes, drawn.tokens], dim=1)
    scored, _ = NeuralScorer(model).score_window(whole, torch.full((4,), 9), None)
    assert torch.allclose(drawn.log_probs, scored[:, 3:].sum(1).double(), atol=1e-5)
    assert torch.allclose(drawn.position_log_probs.double(), scored[:, 3:].mean(0).double(), atol=1e-5)


@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
def test_words_are_as_frequent_as_their_probabilities_at_the_temperature(temperature):
    model = small("lstm", num_words=5).float()
    prefix = random_tokens(5, 1, 4).expand(20_000, 4)
    drawn = BaselineSampler(model, batch_size=20_000, length=1, temperature=temperature)(prefix, seed=0)
    state = model.start_state(1)
    for word in prefix[0]:
        state = model.advance(state)[1](word[None])
    wanted = (model.next_logits(model.advance(state)[0])[0] / temperature).softmax(-1)
    found = torch.bincount(drawn.tokens[:, 0], minlength=5) / 20_000
    assert torch.allclose(found, wanted, atol=5 * math.sqrt(0.25 / 20_000))


def test_a_batch_depends_on_prefixes_and_seed_alone():
    sampler = BaselineSampler(small("awd-lstm"), batch_size=3, length=5)
    prefixes = random_tokens(9, 3, 2)
    first = sampler(prefixes, seed=1)
    sampler(random_tokens(9, 3, 0), seed=2)
    again = sampler(prefixes, seed=1)
    assert torch.equal(first.tokens, again.tokens)
    assert torch.equal(first.log_probs, again.log_probs)
    assert not torch.equal(first.tokens, sampler(prefixes, seed=4).tokens)


def test_a_sampler_leaves_the_model_as_it_is():
    model = small("lstm")
    before = {name: value.clone() for name, value in model.state_dict().items()}
    BaselineSampler(model, batch_size=2, length=2)(random_tokens(9, 2, 0), seed=0)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(parameter.requires_grad for parameter in model.parameters())


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"batch_size": 0, "length": 1}, "batch_size is 0"),
        ({"batch_size": 1, "length": 0}, "length is 0"),
        ({"batch_size": 1, "length": 1, "temperature": 0.0}, "temperature is 0.0"),
        ({"batch_size": 1, "length": 1, "temperature": math.inf}, "temperature is inf"),
        ({"batch_size": 1 << 40, "length": 1}, "side by side"),
    ],
)
def test_settings_out_of_range_are_refused_with_their_value(settings, told):
    with pytest.raises(ValueError, match=told):
        BaselineSampler(small("lstm"), **settings)


def test_prefixes_of_another_number_are_refused():
    with pytest.raises(ValueError, match="3 prefixes, but 2"):
        BaselineSampler(small("lstm"), batch_size=2, length=1)(random_tokens(9, 3, 1), seed=0)


@pytest.mark.gpu
@pytest.mark.parametrize("name", KINDS)
def test_on_a_gpu_a_batch_is_the_same_from_a_graph_and_has_the_scorers_probabilities(name):
    model = small(name, num_words=40).float().cuda()
    sampler = BaselineSampler(model, batch_size=64, length=9)
    prefixes = random_tokens(40, 64, 3)
    first = sampler(prefixes, seed=1)
    sampler(random_tokens(40, 64, 1), seed=2)
    again = sampler(prefixes, seed=1)
    assert torch.equal(first.tokens, again.tokens)
    whole = torch.cat([prefixes.cuda(), first.tokens], dim=1)
    scored, _ = NeuralScorer(model).score_window(whole, torch.full((64,), 12), None)
    # Products of bf16.
    assert abs(float(first.log_probs.mean() - scored[:, 3:].sum(1).mean())) < 0.1
