"""The presets of Lee & Berg-Kirkpatrick: sizes, forms and a way to disk and back."""

import math
from pathlib import Path

import pytest
import torch
from tiny import tiny_corpus

import vlhmm
from vlhmm.hmm import HMM
from vlhmm.models import Model, ModelSettings, build
from vlhmm.support import dense_support
from vlhmm.training.presets import PRESETS, preset

NAMES = [name for name in PRESETS if name.startswith("lee2025-")]
Z, X, D = 6, 11, 8


def model_of(name: str, **changes: int) -> Model:
    changes = {"states_per_block": Z, "dim": D, **changes}
    settings = preset(name).with_changes({key: str(value) for key, value in changes.items()}).model
    return build(settings, dense_support(X, settings.states_per_block)).double()


@pytest.mark.parametrize("name", NAMES)
def test_all_sentences_of_a_preset_sum_to_one(name: str) -> None:
    sentences = torch.cartesian_prod(*[torch.arange(X)] * 3)
    total = HMM(model_of(name).tables()).log_prob(sentences).exp().sum()
    torch.testing.assert_close(total, torch.ones_like(total))


@pytest.mark.parametrize("name", NAMES)
def test_the_likelihood_teaches_every_parameter_of_a_preset(name: str) -> None:
    model = model_of(name)
    words = torch.randint(X, (20, 5), generator=torch.Generator().manual_seed(0))
    HMM(model.tables()).log_prob(words).sum().backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert parameter.grad.isfinite().all(), parameter_name
        # What all states share cancels in the softmax of the start.
        if parameter_name != "start.score.bias":
            assert (parameter.grad != 0).any(), parameter_name


def psi_mlp_parameters(dim: int, num_states: int, num_words: int) -> int:
    network = 2 * (dim * dim + dim) + 2 * dim
    return (num_states + num_words) * dim + 3 * network + dim + 1


@pytest.mark.parametrize("dim", [8, 128])
def test_psi_mlp_has_embeddings_three_networks_and_a_start(dim: int) -> None:
    assert model_of("lee2025-psi-mlp", dim=dim).num_parameters == psi_mlp_parameters(dim, Z, X)


@pytest.mark.parametrize(("dim", "bits"), [(8, 18.0), (128, 22.0), (1024, 25.2), (4096, 27.8)])
def test_capacity_is_the_width(dim: int, bits: float) -> None:
    """At 512 states and 32,000 words, as in Figure 2."""
    assert math.log2(psi_mlp_parameters(dim, 512, 32_000)) == pytest.approx(bits, abs=0.05)


FACTORED = {"a": 2 * Z * D, "b": Z * D + X * D, "pi": D + 1}
FREE = {"a": Z * Z, "b": X * Z, "pi": Z}


@pytest.mark.parametrize(
    ("name", "matrices"),
    [
        ("lee2025-scalar", ""),
        ("lee2025-factored-a", "a"),
        ("lee2025-factored-b", "b"),
        ("lee2025-factored-a-b", "a b"),
        ("lee2025-factored-a-pi", "a pi"),
        ("lee2025-b", "a b pi"),
    ],
)
def test_each_matrix_is_factored_or_free(name: str, matrices: str) -> None:
    expected = sum((FACTORED if matrix in matrices.split() else FREE)[matrix] for matrix in FREE)
    assert model_of(name).num_parameters == expected


@pytest.mark.parametrize(("name", "others"), [("lee2025-factored-pi", ["a", "b"]), ("lee2025-factored-b-pi", ["a"])])
def test_a_start_whose_transition_is_free_has_embeddings_of_its_own(name: str, others: list[str]) -> None:
    rest = sum((FREE if matrix in others else FACTORED)[matrix] for matrix in ("a", "b"))
    assert model_of(name).num_parameters == Z * D + D + 1 + rest


def test_ablation_a_has_one_embedding_and_symmetric_transition_logits() -> None:
    model = model_of("lee2025-a")
    assert model.num_parameters == Z * D + X * D + D + 1
    transition = model.tables().transition
    logits = transition.log_rows(torch.arange(Z)) + transition.log_normalizer[:, None]
    torch.testing.assert_close(logits, logits.T)
    assert (logits.diagonal() > 0).all()


def test_ablation_b_is_a_product_of_embeddings() -> None:
    model = model_of("lee2025-b")
    encoder, tables = model.encoder, model.tables()
    into, left, emit = encoder.embedding.weight, encoder.out_embedding.weight, encoder.emit_embedding.weight  # type: ignore[union-attr]
    rows = (left @ into.T).log_softmax(1)
    torch.testing.assert_close(tables.transition.log_rows(torch.arange(Z)), rows)
    torch.testing.assert_close(tables.log_emission, (emit @ model.emission.words.weight.T).log_softmax(1).T)
    torch.testing.assert_close(tables.log_start, model.start.score(left).squeeze(1).log_softmax(0))


def test_monolithic_networks_share_all_but_their_last_layer() -> None:
    psi, iota = (model_of(f"lee2025-{kind}-mlp").num_parameters for kind in ("psi", "iota"))
    # Two of the three first layers are saved; the last ones are as wide together as apart.
    assert psi - iota == 2 * (D * D + D)
    psi, iota = (model_of(f"lee2025-{kind}-trf").num_parameters for kind in ("psi", "iota"))
    settings = preset("lee2025-psi-trf").model
    hidden = 8 * round(D / 3)
    decoder = settings.decoder_layers * (4 * D * D + 3 * D * hidden + 2 * D) + D
    assert psi - iota == 2 * decoder - (3 * D * D + 3 * D)


@pytest.mark.parametrize("name", NAMES)
def test_a_preset_comes_back_from_disk(name: str, tmp_path: Path) -> None:
    corpus = tiny_corpus(100)
    recipe = preset(name).with_changes({"states_per_block": "4", "dim": "8"})
    model = recipe.make_model(corpus, recipe.make_blocks(corpus))
    lm = vlhmm.LanguageModel(model, corpus.tokenizer)
    lm.save(tmp_path / "model")
    again = vlhmm.load(tmp_path / "model")
    assert again.model.settings == model.settings
    assert list(again.model.state_dict()) == list(model.state_dict())
    assert all(torch.equal(value, again.model.state_dict()[key]) for key, value in model.state_dict().items())
    assert again.perplexity(corpus.test) == lm.perplexity(corpus.test)


@pytest.mark.parametrize("name", NAMES)
def test_training_is_that_of_table_5(name: str) -> None:
    recipe = preset(name)
    train = recipe.train
    assert (recipe.blocks.clustering, recipe.blocks.reset, recipe.model.states_per_block) == ("one", "carry", 512)
    assert (train.batch_size, train.window, train.windows, train.epochs) == (200, 64, "independent", 1)
    assert (train.schedule, train.warmup, train.final_rate) == ("cosine", 0.0512, 0.1)
    assert (train.beta1, train.beta2, train.weight_decay, train.state_dropout) == (0.9, 0.95, 0.1, 0.0)


def test_normal_initialisation_and_scales_are_as_said() -> None:
    settings = ModelSettings("linear", 300, 40, initialisation="normal", embedding_scale=0.5, word_scale=0.1)
    model = build(settings, dense_support(400, 300))
    assert model.encoder.embedding.weight.std().item() == pytest.approx(0.5, rel=0.03)  # type: ignore[union-attr]
    assert model.emission.words.weight.std().item() == pytest.approx(0.1, rel=0.03)  # type: ignore[union-attr]
    assert model.emission.words.bias.abs().max().item() <= 1 / math.sqrt(40)  # type: ignore[union-attr]
    scalar = build(
        ModelSettings("scalar", 300, transition="table", initialisation="normal", init_scale=2.0),
        dense_support(400, 300),
    )
    for head in (scalar.start, scalar.transition, scalar.emission):
        assert head.logits.std().item() == pytest.approx(2.0, rel=0.12)  # type: ignore[union-attr]


def test_settings_written_before_these_were_known_make_the_same_model() -> None:
    old = {
        "parameterization": "neural",
        "states_per_block": 4,
        "dim": 6,
        "transition": "block-factored",
        "target_network": False,
        "embeddings": "split",
        "out_scale": 0.25,
        "emission": "blocked",
        "emission_bias": True,
        "initialisation": "paper",
        "precision": "bf16",
        "init_scale": 0.01,
    }
    names = dict(build(ModelSettings.from_dict(old), dense_support(5, 4)).named_parameters())
    networks = [f"{role}_network.{part}" for role in ("start", "out", "emit") for part in ("first", "second", "norm")]
    weights = ["embedding", "out_embedding", "emit_embedding", *networks]
    assert {name for name in names if name.startswith("encoder.") and name.endswith("weight")} == {
        f"encoder.{name}.weight" for name in weights
    }
