import pytest
from tiny import tiny_corpus

from vlhmm.evaluate import HMMScorer, evaluate
from vlhmm.training.gradient import train
from vlhmm.training.presets import PRESETS, Recipe, preset


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_survives_a_round_trip(name: str) -> None:
    assert Recipe.from_dict(preset(name).to_dict()) == preset(name)


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_builds_a_model(name: str) -> None:
    corpus = tiny_corpus(100)
    recipe = preset(name).with_changes({"num_blocks": "5", "states_per_block": "4", "dim": "8"})
    model = recipe.make_model(corpus, recipe.make_blocks(corpus))
    assert model.support.num_words == corpus.tokenizer.vocab_size
    assert (model.reset_token is None) == (recipe.blocks.reset == "carry")


@pytest.mark.parametrize("clustering", ["one", "cloned", "uniform"])
def test_every_kind_of_support_trains(clustering: str) -> None:
    corpus = tiny_corpus(100)
    changes = {
        "clustering": clustering,
        "num_blocks": "3",
        "states_per_block": "4",
        "dim": "8",
        "transition": "softmax",
    }
    training = {"dropout": "columns", "epochs": "2", "batch_size": "4", "window": "8", "checks_per_epoch": "1"}
    recipe = preset("default").with_changes({**changes, **training})
    model = recipe.make_model(corpus, recipe.make_blocks(corpus))
    assert model.support.partition == (clustering != "uniform")
    before = evaluate(HMMScorer(model.tables().detach()), corpus.valid).perplexity
    assert train(model, corpus, recipe.train).best_perplexity < before


def test_refinement_can_be_left_out() -> None:
    corpus = tiny_corpus(100)
    refined = preset("default").with_changes({"num_blocks": "5"})
    plain = refined.with_changes({"refine": "false"})
    found, first = (recipe.make_blocks(corpus).information for recipe in (refined, plain))
    assert found is not None
    assert first is not None
    assert found >= first
    assert [name for name in PRESETS if not preset(name).blocks.refine] == [
        name for name in PRESETS if name.startswith("chiu2020")
    ]


@pytest.mark.parametrize(
    ("name", "rate", "patience", "target_network", "initialisation"),
    [
        ("chiu2020-ptb", 1e-2, 8, True, "paper"),
        ("chiu2020-wt2", 1e-3, 8, True, "paper"),
        ("chiu2020-ptb-code", 1e-2, 4, False, "code"),
        ("chiu2020-wt2-code", 1e-2, 4, False, "code"),
    ],
)
def test_the_paper_and_its_code_are_presets(
    name: str, rate: float, patience: int, target_network: bool, initialisation: str
) -> None:
    recipe = preset(name)
    train, model = recipe.train, recipe.model
    assert (recipe.blocks.num_blocks, model.states_per_block, model.dim) == (128, 256, 256)
    assert (train.learning_rate, train.patience, train.decay, train.epochs) == (rate, patience, 4.0, 50)
    assert (train.batch_size, train.window, train.state_dropout, train.clip) == (16, 32, 0.5, 5.0)
    assert (train.schedule, train.warmup, train.weight_decay, train.checks_per_epoch) == ("plateau", 0.0, 0.0, 4)
    assert (model.target_network, model.initialisation, recipe.blocks.reset) == (target_network, initialisation, "eos")


def test_settings_are_set_by_name_as_typed() -> None:
    recipe = preset("default").with_changes(
        {"dim": "64", "learning_rate": "3e-3", "target_network": "true", "reset": "eos", "num_blocks": "32"}
    )
    assert (recipe.model.dim, recipe.train.learning_rate) == (64, 3e-3)
    assert (recipe.model.target_network, recipe.blocks.reset, recipe.blocks.num_blocks) == (True, "eos", 32)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("learningrate", "1", "did you mean 'learning_rate'"),
        ("dim", "many", "dim is 'many'"),
        ("dim", "0", "dim is 0"),
        ("transition", "sofmax", "did you mean 'softmax'"),
        ("target_network", "1", "true or false"),
    ],
)
def test_bad_settings_are_refused(name: str, text: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        preset("default").with_changes({name: text})


def test_unknown_presets_and_sections_are_refused() -> None:
    with pytest.raises(ValueError, match="did you mean 'default'"):
        preset("defalt")
    with pytest.raises(ValueError, match="unknown section 'modle'"):
        Recipe.from_dict({"modle": {}})
