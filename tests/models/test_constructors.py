"""Models by name: parameter counts of the papers, and initialisation by one generator."""

import copy
import math

import jaxtyping
import numpy as np
import pytest
import torch
from small_models import VARIANTS, Blocks

from vlhmm.models import Model, ModelSettings, build_blocked, linear_hmm, neural_hmm, scalar_hmm
from vlhmm.models.encoder import ResidualMLP
from vlhmm.models.heads import ScalarStart, TableHead, UnmaskedEmission


def uneven_blocks(num_words: int, num_blocks: int) -> Blocks:
    generator = np.random.default_rng(0)
    rest = generator.integers(0, num_blocks, num_words - num_blocks)
    return Blocks(generator.permutation(np.concatenate([np.arange(num_blocks), rest])), num_blocks)


@pytest.mark.parametrize(
    ("num_words", "states_per_block", "published"),
    [(10_000, 256, 11_355_410), (10_000, 128, 7_161_106), (33_278, 256, 17_337_856)],
)
def test_parameters_are_the_published_ones_without_the_row_for_padding(num_words, states_per_block, published):
    model = neural_hmm(uneven_blocks(num_words, 128), states_per_block)
    # The published models have one more output word, `<pad>`: an embedding of 256 and a bias.
    assert model.num_parameters == published - 257


@pytest.mark.parametrize(("target_network", "count"), [(False, 5_608_722), (True, 5_740_818)])
def test_block_embeddings_bring_the_paper_to_its_5_6_million(target_network, count):
    """Embeddings of 128 for 2^14 states and 128 blocks, four networks that compose, and those of the roles."""
    blocks = uneven_blocks(10_000, 128)
    model = neural_hmm(blocks, 128, embeddings="factored", target_network=target_network)
    assert model.num_parameters == count - 257


def test_the_scalar_model_of_the_paper_has_a_logit_for_every_pair_of_state_and_word():
    """432,308,224 with the row for padding, which is printed as 423M; no memory is taken for it here."""
    with torch.device("meta"):
        heads = ScalarStart(1 << 14), TableHead(1 << 14), UnmaskedEmission(1 << 14, 10_001)
    assert sum(parameter.numel() for head in heads for parameter in head.parameters()) == 432_308_224


def test_scalar_parameters_are_start_transition_and_the_words_own_emissions():
    model = scalar_hmm(uneven_blocks(100, 8), 4)
    assert model.num_parameters == 32 + 32 * 32 + 100 * 4


def test_linear_model_has_three_embeddings_and_no_networks():
    model = linear_hmm(uneven_blocks(100, 8), 4, 6, emission_bias=False)
    assert model.num_parameters == 3 * 32 * 6 + 100 * 6 + (6 + 1)


def test_paper_has_one_network_more_than_the_code():
    blocks = uneven_blocks(100, 8)
    code, paper = neural_hmm(blocks, 4, 6), neural_hmm(blocks, 4, 6, target_network=True)
    network = 2 * (6 * 6 + 6) + 2 * 6
    assert paper.num_parameters - code.num_parameters == network


def test_residual_network_is_the_one_of_the_appendix():
    network = ResidualMLP(3).double()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.normal_(generator=generator)
    x = torch.randn(4, 3, dtype=torch.float64, generator=generator)
    hidden = torch.clamp(x @ network.first.weight.T + network.first.bias, min=0)
    summed = torch.clamp(hidden @ network.second.weight.T + network.second.bias, min=0) + hidden
    centred = summed - summed.mean(1, keepdim=True)
    normed = centred / (centred.square().mean(1, keepdim=True) + network.norm.eps).sqrt()
    torch.testing.assert_close(network(x), normed * network.norm.weight + network.norm.bias)


def seeded(settings: ModelSettings, seed: int) -> Model:
    generator = torch.Generator().manual_seed(seed)
    return build_blocked(settings, uneven_blocks(40, 4), generator=generator)


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_generator_alone_decides_the_initial_values(variant):
    settings = ModelSettings.from_dict({**VARIANTS[variant].to_dict(), "states_per_block": 8})
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = seeded(settings, 3).state_dict()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    again, other = seeded(settings, 3).state_dict(), seeded(settings, 4).state_dict()
    assert list(first) == list(again)
    assert all(torch.equal(first[name], again[name]) for name in first)
    changed = [name for name in first if not torch.equal(first[name], other[name])]
    assert any("embedding" in name or "logits" in name for name in changed)


def test_initial_values_have_the_spread_that_is_said():
    blocks = uneven_blocks(2000, 4)
    code = neural_hmm(blocks, 256, 64)
    embedding, words = code.encoder.embedding.weight, code.emission.words.weight
    assert embedding.std().item() == pytest.approx(1, abs=0.02)
    assert words.abs().max().item() == pytest.approx(1 / 8, rel=1e-3)
    assert words.std().item() == pytest.approx(1 / 8 / math.sqrt(3), rel=0.02)
    assert code.emission.words.bias.abs().max().item() == pytest.approx(1 / 8, rel=0.02)

    paper = neural_hmm(blocks, 256, 64, initialisation="paper")
    embedding, words = paper.encoder.embedding.weight, paper.emission.words.weight
    for weight in (embedding, words, paper.encoder.start_network.second.weight):
        assert weight.std().item() == pytest.approx(math.sqrt(2 / 64), rel=0.03)
        assert weight.abs().max().item() <= math.sqrt(6 / 64)
    assert (paper.emission.words.bias == 0).all()
    assert (paper.encoder.start_network.norm.weight == 1).all()

    scalar = scalar_hmm(blocks, 64, emission="unmasked")
    for head in (scalar.start, scalar.transition, scalar.emission):
        assert head.logits.abs().max().item() == pytest.approx(0.01, rel=0.05)


def test_reset_is_one_declared_convention():
    blocks = uneven_blocks(20, 2)
    assert neural_hmm(blocks, 3, 4, eos_id=7).tables().reset_token is None
    assert neural_hmm(blocks, 3, 4, eos_id=7, reset="eos").tables().reset_token == 7
    with pytest.raises(ValueError, match="eos_id is None"):
        linear_hmm(blocks, 3, 4, reset="eos")


def test_unknown_reset_is_refused():
    # A caller's types are not checked outside the test run.
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        with pytest.raises(ValueError, match="reset is 'never'"):
            neural_hmm(uneven_blocks(20, 2), 3, 4, reset="never")
    finally:
        jaxtyping.config.update("jaxtyping_disable", False)


def test_unknown_settings_are_refused():
    with pytest.raises(ValueError, match="did you mean 'out_scale'"):
        neural_hmm(uneven_blocks(20, 2), 3, 4, outscale=0.25)


def test_a_loaded_state_gives_the_tables_it_was_saved_from():
    """Its support comes with it, even where the words of the blocks were others."""
    saved = neural_hmm(
        uneven_blocks(30, 3), 4, 6, transition="block-factored", generator=torch.Generator().manual_seed(5)
    )
    loaded = neural_hmm(Blocks(np.arange(30) % 3, 3), 4, 6, transition="block-factored")
    loaded.load_state_dict(saved.state_dict())
    expected, tables = saved.tables(), loaded.tables()
    assert torch.equal(tables.support.group_of_word, expected.support.group_of_word)
    assert torch.equal(tables.log_emission, expected.log_emission)
    assert torch.equal(tables.log_start, expected.log_start)
    assert torch.equal(tables.transition.log_block, expected.transition.log_block)


def test_a_copied_model_is_independent():
    model = neural_hmm(uneven_blocks(30, 3), 4, 6)
    before = model.tables().log_emission
    copied = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in copied.parameters():
            parameter.add_(torch.linspace(-1, 1, parameter.numel()).view_as(parameter))
    assert torch.equal(model.tables().log_emission, before)
    assert not torch.equal(copied.tables().log_emission, before)
