"""The emission floor: each state's emission mixed with an even one over its words; still an HMM."""

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_models import ANY_SUPPORT, OVERLAPPING, PARTITIONS, VARIANTS
from tiny import tiny_corpus

import vlhmm
from vlhmm.distillation.lvd.estimate import check_free
from vlhmm.inference.gather import Batch
from vlhmm.inference.score import score
from vlhmm.models import Model, ModelSettings, build, scalar_hmm
from vlhmm.support import Support
from vlhmm.training.em import EMSettings, em
from vlhmm.training.gradient import train
from vlhmm.training.settings import TrainSettings

SUPPORTS = {**PARTITIONS, **OVERLAPPING}
CASES = [(variant, kind) for variant in VARIANTS for kind in PARTITIONS]
CASES += [(variant, kind) for variant in ANY_SUPPORT for kind in OVERLAPPING]


def model_of(variant: str, support: Support, floor: float) -> Model:
    settings = replace(VARIANTS[variant], states_per_block=support.states_per_word, emission_floor=floor)
    return build(settings, support, generator=torch.Generator().manual_seed(3)).double()


def by_state(model: Model) -> torch.Tensor:
    """p(x | z) of all pairs (z, x)."""
    support, tables = model.support, model.tables()
    table = torch.zeros(support.num_states, support.num_words, dtype=torch.float64)
    words = torch.arange(support.num_words)
    table[support.states_of(words), words[:, None]] = tables.log_emission.exp().detach()
    return table


@pytest.mark.parametrize(("variant", "kind"), CASES)
def test_each_state_gives_a_part_evenly_to_its_words(variant: str, kind: str) -> None:
    support = SUPPORTS[kind]
    plain, floored = (by_state(model_of(variant, support, floor)) for floor in (0.0, 0.3))
    can_emit = plain > 0
    even = can_emit / can_emit.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(floored, 0.7 * plain + 0.3 * even)
    emitting = can_emit.any(1)
    torch.testing.assert_close(floored[emitting].sum(1), torch.ones(int(emitting.sum()), dtype=torch.float64))


def test_the_states_left_by_dropout_have_the_emissions_they_had() -> None:
    support = PARTITIONS["blocked"]
    model = model_of("neural softmax", support, 0.2)
    kept = model.kept_after_dropout(0.5, torch.Generator().manual_seed(1))
    assert kept is not None
    columns = kept.states[support.group_of_word] % support.states_per_word
    torch.testing.assert_close(model.tables(kept).log_emission, model.tables().log_emission.gather(1, columns))


@pytest.mark.parametrize("variant", ["linear softmax", "scalar"])
def test_emissions_of_a_text_alone_are_those_of_all_words(variant: str) -> None:
    support = PARTITIONS["dense"]
    model = model_of(variant, support, 0.2)
    tokens = torch.tensor([[3, 0, 5, 3], [1, 1, 2, 4]])
    alone, _ = model.window_tables(None, None)
    torch.testing.assert_close(alone.emissions_of(tokens), model.tables().log_emission[tokens])
    batch = Batch(tokens, torch.tensor([4, 4]), full=True)
    torch.testing.assert_close(
        score(alone, batch).token_log_probs, score(model.tables(), batch).token_log_probs, rtol=1e-10, atol=1e-10
    )


def test_the_gradient_is_that_of_finite_differences() -> None:
    model = model_of("linear softmax", PARTITIONS["blocked"], 0.2)
    parameter = model.emission.words.weight  # type: ignore[union-attr]

    def emissions(weight: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            parameter.copy_(weight)
        return model.tables().log_emission

    weight = parameter.detach().clone()
    direction = torch.randn(weight.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    cotangent = torch.randn(emissions(weight).shape, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    (gradient,) = torch.autograd.grad(emissions(weight), parameter, cotangent)
    ahead, behind = (emissions(weight + step * direction).detach() for step in (1e-6, -1e-6))
    expected = ((ahead - behind) * cotangent).sum() / 2e-6
    assert (gradient * direction).sum().item() == pytest.approx(expected.item(), rel=1e-6)


def test_words_never_seen_stay_possible() -> None:
    """However long training goes on."""
    corpus = tiny_corpus(60)
    settings = TrainSettings(learning_rate=0.3, epochs=30, batch_size=4, window=8, checks_per_epoch=1)
    lowest = []
    for floor in (0.0, 0.1):
        model = scalar_hmm(vlhmm.cluster.one_block(corpus.tokenizer.vocab_size), 3)
        model.settings = replace(model.settings, emission_floor=floor)
        train(model, corpus, settings)
        lowest.append(model.tables().log_emission.min().item())
    floor_of_word = math.log(0.1 / corpus.tokenizer.vocab_size)
    assert lowest[0] < floor_of_word - 1 < floor_of_word <= lowest[1] + 1e-6


def test_a_floor_survives_saving_and_counting_refuses_it(tmp_path: Path) -> None:
    corpus = tiny_corpus(60)
    settings = ModelSettings("scalar", transition="table", states_per_block=3, emission_floor=0.1)
    model = build(settings, vlhmm.tables.dense_support(corpus.tokenizer.vocab_size, 3))
    vlhmm.LanguageModel(model, corpus.tokenizer, {}).save(tmp_path)
    loaded = vlhmm.load(tmp_path).model
    torch.testing.assert_close(loaded.tables().log_emission, model.tables().log_emission)
    with pytest.raises(ValueError, match=r"emission_floor is 0\.1"):
        em(model, corpus, EMSettings(iterations=1, batch_size=4, window=8))
    with pytest.raises(ValueError, match=r"emission_floor is 0\.1"):
        check_free(model)
