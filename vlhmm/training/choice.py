"""The recipe where none is named: chosen by the device and the amount of text."""

from __future__ import annotations

from dataclasses import dataclass

from vlhmm.training.presets import Recipe, preset

CPU_TOKENS = 12_000_000
"""What a CPU reads in training, at most: 5 minutes on two cores."""
MAX_CPU_EPOCHS = 12
"""With more passes over a smaller text the model only memorizes it."""
SMALL_TEXT = 400_000
"""Tokens up to which more states, of which more are dropped, use the time better than more passes."""
SMALL_TEXT_CHANGES = {
    "states_per_block": "64",
    "state_dropout": "0.7",
    "subword_dropout": "0.1",
    "learning_rate": "0.015",
    "weight_decay": "0.6",
}
SMALL_TEXT_TOKENS = 6_700_000
"""What these read in the same time."""
MAX_SMALL_TEXT_EPOCHS = 28
MIN_STEPS = 16
"""Of an epoch: a small text is read in smaller batches."""
WORDS_OF_BLOCK = 8
"""A block has at least so many words, in the mean."""


@dataclass(frozen=True)
class Choice:
    """A preset, with what the amount of text changes of it."""

    preset: str
    reason: str
    """In words that a person can follow."""
    recipe: Recipe


def choose_recipe(device_type: str, num_tokens: int, vocab_size: int) -> Choice:
    """Choose the recipe of a run for which none is named.

    Args:
        device_type: "cpu" or "cuda".
        num_tokens: Tokens of the training text.
        vocab_size: Size of the vocabulary.

    Returns:
        Preset, reason and recipe. A CPU gets a small model and as many passes over the text as take about 5 minutes on two cores,
        a GPU the preset "default".

    Example:
        >>> from vlhmm.training.choice import choose_recipe
        >>> choice = choose_recipe("cpu", 1_000_000, 8000)
        >>> choice.preset, choice.recipe.train.epochs
        ('cpu', 12)
        >>> choose_recipe("cuda", 1_000_000, 8000).preset
        'default'
    """
    text = f"{num_tokens:,} tokens of {vocab_size:,} kinds"
    if device_type != "cpu":
        recipe = preset("default")
        return Choice("default", f"a GPU, {text}", _fitted(recipe, num_tokens, vocab_size))
    recipe = preset("cpu")
    if num_tokens <= SMALL_TEXT:
        recipe = recipe.with_changes(SMALL_TEXT_CHANGES)
        passes = min(MAX_SMALL_TEXT_EPOCHS, SMALL_TEXT_TOKENS // num_tokens)
    else:
        passes = min(MAX_CPU_EPOCHS, CPU_TOKENS // num_tokens)
    recipe = recipe.with_changes({"epochs": str(max(1, passes))})
    return Choice("cpu", f"a CPU, {text}", _fitted(recipe, num_tokens, vocab_size))


def _fitted(recipe: Recipe, num_tokens: int, vocab_size: int) -> Recipe:
    """With smaller batches and fewer blocks where there is little text."""
    batch, window = recipe.train.batch_size, recipe.train.window
    while batch > 1 and num_tokens < MIN_STEPS * batch * window:
        batch //= 2
    while window > 1 and num_tokens < batch * window:
        window //= 2
    blocks = max(1, min(recipe.blocks.num_blocks, vocab_size // WORDS_OF_BLOCK))
    return recipe.with_changes({"batch_size": str(batch), "window": str(window), "num_blocks": str(blocks)})
