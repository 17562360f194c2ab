"""A model of which states or blocks were split gives every text the probability that it had."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models.small_models import ANY_SUPPORT, OVERLAPPING, PARTITIONS, VARIANTS, small_model

import vlhmm
from vlhmm.models import Model, ModelSettings, build, split_blocks, split_states
from vlhmm.support import Support

READS_ALL_STATES = [name for name, settings in VARIANTS.items() if settings.parameterization == "transformer"]
FREE = ["scalar"]
"""Start and transition have a free logit for each entry."""


def some_text(support: Support, reset_token: int | None = None) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    words = torch.randint(support.num_words, (3, 7), generator=generator).tolist()
    return [*words, [0], [support.num_words - 1, *([reset_token or 0] * 2), 1 % support.num_words]]


def assert_as_likely(one: Model, other: Model, text: list[list[int]]) -> None:
    found, expected = (vlhmm.HMM(model.tables()).log_prob(text).detach() for model in (one, other))
    torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("variant", [name for name in VARIANTS if name not in READS_ALL_STATES])
def test_split_states_leave_every_text_as_likely(variant: str) -> None:
    supports = {**PARTITIONS, **(OVERLAPPING if variant in ANY_SUPPORT else {})}
    for support in supports.values():
        model = small_model(variant, support, reset_token=1)
        before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
        grown = split_states(model, 3)
        assert grown.support.num_states == 3 * support.num_states
        assert grown.support.partition == support.partition
        assert grown.settings.states_per_block == 3 * support.states_per_word
        assert_as_likely(grown, model, some_text(support, 1))
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("variant", ["neural block-factored", "scalar"])
def test_parts_have_equal_shares_of_their_state(variant: str) -> None:
    model = small_model(variant, PARTITIONS["blocked"])
    grown = split_states(model, 2)
    small, large = vlhmm.HMM(model.tables()), vlhmm.HMM(grown.tables())
    expected = (small.transition / 2).repeat_interleave(2, 0).repeat_interleave(2, 1)
    torch.testing.assert_close(large.transition, expected)
    torch.testing.assert_close(large.emission, small.emission.repeat_interleave(2, 0))
    torch.testing.assert_close(large.start, (small.start / 2).repeat_interleave(2))


@pytest.mark.parametrize("support", ["dense", "blocked", "blocked, one without words", "cloned"])
@pytest.mark.parametrize("variant", FREE)
def test_split_blocks_leave_every_text_as_likely(variant: str, support: str) -> None:
    whole = PARTITIONS[support]
    model = small_model(variant, whole, reset_token=1)
    for parts in (2, 3):
        grown = split_blocks(model, parts)
        words = torch.bincount(whole.group_of_word, minlength=whole.num_groups)
        assert grown.support.num_groups == int(words.clamp(min=1, max=parts).sum())
        assert_as_likely(grown, model, some_text(whole, 1))


@pytest.mark.parametrize("log_weight", [-50.0, -700.0, -1000.0, -1e5])
@pytest.mark.parametrize("parts_of_words", [[0, 1, 1, 0], [1, 0, 0, 0], None])
def test_words_beneath_every_float_stay_as_likely(log_weight: float, parts_of_words: list[int] | None) -> None:
    """Alone in their part, beside a likely word, and beside another that is as rare."""
    model = vlhmm.scalar_hmm(vlhmm.Blocks(np.array([0, 0, 0, 1]), num_blocks=2), states_per_block=2).double()
    with torch.no_grad():
        dict(model.named_parameters())["emission.logits"][[0, 1]] = torch.tensor(
            [[log_weight], [log_weight - 2]]
        ).double()
    parts = None if parts_of_words is None else torch.tensor(parts_of_words)
    text = [[0, 1], [0, 3, 1], [1, 1, 0], [2, 0, 3]]
    assert bool(vlhmm.HMM(model.tables()).log_prob(text).isfinite().all())
    assert_as_likely(split_blocks(model, 2, part_of_word=parts), model, text)
    assert_as_likely(split_states(model, 2), model, text)


@pytest.mark.parametrize(
    "settings",
    [{"parameterization": "neural", "dim": 4}, {"parameterization": "linear", "dim": 4, "embeddings": "factored"}],
)
def test_split_blocks_with_factored_emission_and_free_start_and_transition(settings: dict[str, object]) -> None:
    support = PARTITIONS["blocked"]
    values = {**settings, "transition": "table", "start": "free", "states_per_block": support.states_per_word}
    model = build(ModelSettings.from_dict(values), support).double()
    part_of_word = torch.tensor([1, 0, 0, 0, 1, 0, 1, 1, 0])
    grown = split_blocks(model, 2, part_of_word=part_of_word)
    same = [grown.group_of_word[first] == grown.group_of_word[second] for first, second in ((0, 4), (0, 2), (1, 7))]
    assert [bool(each) for each in same] == [True, False, False]
    assert_as_likely(grown, model, some_text(support))


def test_a_part_that_its_state_never_emits_is_never_entered() -> None:
    model = small_model("scalar", PARTITIONS["dense"])
    with torch.no_grad():
        model.emission.logits[::2, 0] = -torch.inf
    grown = split_blocks(model, 2)
    assert float(vlhmm.HMM(grown.tables().detach()).start[0]) == 0
    assert_as_likely(grown, model, some_text(model.support))


def test_equal_parts_stay_equal_without_dropout_and_part_with_it_or_with_noise() -> None:
    model = small_model("neural block-factored", PARTITIONS["blocked"])
    grown = split_states(model, 2)
    vlhmm.HMM(grown.tables()).log_prob([[0, 2, 1, 3, 2]]).sum().backward()
    gradient = grown.encoder.embedding.weight.grad
    torch.testing.assert_close(gradient[::2], gradient[1::2])
    grown.zero_grad()
    kept = grown.kept_after_dropout(0.5, torch.Generator().manual_seed(0))
    vlhmm.HMM(grown.tables(kept)).log_prob([[0, 2, 1, 3, 2]]).sum().backward()
    gradient = grown.encoder.embedding.weight.grad
    assert not torch.allclose(gradient[::2], gradient[1::2])
    noisy = split_states(model, 2, noise=0.01)
    moved = (noisy.encoder.embedding.weight - grown.encoder.embedding.weight).detach()
    spread = model.encoder.embedding.weight.detach().std()
    assert 0.005 < float(moved.std() / spread) < 0.02
    again = split_states(model, 2, noise=0.01)
    assert torch.equal(again.encoder.embedding.weight, noisy.encoder.embedding.weight)


@pytest.mark.parametrize(
    ("variant", "split", "message"),
    [
        ("transformer", lambda model: split_states(model, 2), "reads the embeddings of all states as one sequence"),
        ("neural block-factored", lambda model: split_blocks(model, 2), "transition 'block-factored'.*features"),
        ("neural, free transition", lambda model: split_blocks(model, 2), "start 'entered'.*use start \"free\""),
        ("scalar", lambda model: split_states(model, 1), "1 parts: at least 2"),
        ("scalar", lambda model: split_blocks(model, 2, noise=-1.0), "noise is -1.0"),
        ("scalar", lambda model: split_blocks(model, 2, part_of_word=torch.tensor([2])), "9 words a part from 0 to 1"),
    ],
)
def test_what_cannot_be_split_at_equal_likelihood_is_refused(variant, split, message) -> None:
    with pytest.raises(ValueError, match=message):
        split(small_model(variant, PARTITIONS["blocked"]))


def test_blocks_with_a_floor_or_without_a_partition_are_refused() -> None:
    with pytest.raises(ValueError, match="in no blocks"):
        split_blocks(small_model("scalar", OVERLAPPING["uniform"]), 2)
    model = small_model("scalar", PARTITIONS["blocked"])
    model.settings = replace(model.settings, emission_floor=0.1)
    with pytest.raises(ValueError, match=r"emission_floor 0\.1"):
        split_blocks(model, 2)
