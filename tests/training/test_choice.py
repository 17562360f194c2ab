"""The recipe where none is named: it follows device and amount of text, and can always be trained."""

import pytest

from vlhmm.training.choice import CPU_TOKENS, choose_recipe
from vlhmm.training.presets import preset


@pytest.mark.parametrize("num_tokens", [2, 30, 5_000, 300_000, 3_000_000, 10**9])
@pytest.mark.parametrize("vocab_size", [2, 12, 300, 30_000])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_text_gets_a_recipe_that_can_be_trained(device: str, vocab_size: int, num_tokens: int) -> None:
    recipe = choose_recipe(device, num_tokens, vocab_size).recipe
    settings = recipe.train
    assert 1 <= recipe.blocks.num_blocks <= vocab_size
    assert settings.batch_size * settings.window <= num_tokens
    assert settings.epochs >= 1


def test_a_cpu_gets_a_small_model_and_a_gpu_a_large_one() -> None:
    cpu, gpu = (choose_recipe(device, 3_000_000, 8_000) for device in ("cpu", "cuda"))
    assert (cpu.preset, gpu.preset) == ("cpu", "default")
    assert cpu.recipe.model == preset("cpu").model
    assert gpu.recipe == preset("default")
    assert "a CPU, 3,000,000 tokens" in cpu.reason


def test_a_cpu_reads_about_as_many_tokens_of_every_large_text() -> None:
    for num_tokens in (900_000, 3_000_000, 5_000_000, CPU_TOKENS):
        epochs = choose_recipe("cpu", num_tokens, 8_000).recipe.train.epochs
        assert 0.75 * CPU_TOKENS <= epochs * num_tokens <= 1.25 * CPU_TOKENS
    assert choose_recipe("cpu", 100 * CPU_TOKENS, 8_000).recipe.train.epochs == 1
    short = choose_recipe("cpu", 1_000, 300).recipe.train
    assert short.epochs * 1_000 < CPU_TOKENS


def test_only_a_small_text_gets_subword_dropout_and_more_states_with_more_state_dropout() -> None:
    recipes = [choose_recipe("cpu", tokens, 8_000).recipe for tokens in (1_000, 235_000, 700_000)]
    of_each = [(one.train.subword_dropout, one.model.states_per_block, one.train.state_dropout) for one in recipes]
    assert of_each[0] == of_each[1]
    assert of_each[2] == (0, preset("cpu").model.states_per_block, preset("cpu").train.state_dropout)
    assert all(small > large for small, large in zip(of_each[1], of_each[2], strict=True))
