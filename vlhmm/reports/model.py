"""What a model folder holds: the model, how it was trained, some of its states."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vlhmm.data.json_file import read_json_object
from vlhmm.lm import LanguageModel
from vlhmm.text.answers import NamedState
from vlhmm.training.run_folder import RESULTS, read_log

SAMPLE_BLOCKS, SAMPLE_WORDS, STATE_WORDS = 6, 5, 4


@dataclass(frozen=True)
class RunSummary:
    """What results.json says of a run."""

    stopped: str | None
    train_seconds: float | None
    device: str | None
    seed: int | None
    command: str | None
    perplexity: dict[str, dict[str, float]] | None
    """Of the held-out text, by model and split."""
    bits_per_byte: dict[str, dict[str, float | None]] | None
    """The same in bits per byte; None: an older run, or one on samples."""
    comparison: str | None
    """Whether it is better than Kneser-Ney, in a sentence."""


@dataclass(frozen=True)
class TrainingSummary:
    """How a training run went, by its log."""

    step: int
    num_steps: int
    tokens: int
    best_valid_perplexity: float
    best_step: int
    first_valid_perplexity: float
    """At the first check."""
    run: RunSummary | None
    """None: the run did not end in order."""


@dataclass(frozen=True)
class BlockSample:
    """A block of words, and one of its states."""

    block: int
    num_words: int
    frequent: list[str]
    """Its most frequent words."""
    state: NamedState


@dataclass(frozen=True)
class ModelInformation:
    """What a model is, how it was trained, some of its states."""

    num_states: int
    num_blocks: int
    states_per_word: int
    num_parameters: int
    vocab_size: int
    tokenizer_hash: str
    reset_token: int | None
    model: dict[str, Any]
    """Its settings."""
    about: dict[str, Any]
    """How it was made."""
    training: TrainingSummary | None
    """None: there is no log of a training run."""
    samples: list[BlockSample]


def model_information(lm: LanguageModel, folder: str | Path | None = None) -> ModelInformation:
    """Describe a model.

    Args:
        lm: The model.
        folder: Its folder, which may contain the record of its training; None: that part is left out.

    Returns:
        Sizes, settings, the course of training, and some blocks with a state each.

    Example:
        >>> from vlhmm.reports import model_information
        >>> found = model_information(vlhmm.load("demo-model"), "demo-model")
        >>> found.num_states, found.num_blocks, found.training.step == found.training.num_steps
        (48, 6, True)
    """
    support = lm.model.support
    return ModelInformation(
        num_states=support.num_states,
        num_blocks=support.num_groups,
        states_per_word=support.states_per_word,
        num_parameters=lm.model.num_parameters,
        vocab_size=lm.tokenizer.vocab_size,
        tokenizer_hash=lm.tokenizer.hash,
        reset_token=lm.model.reset_token,
        model=lm.model.settings.to_dict(),
        about=lm.about,
        training=None if folder is None else training_summary(Path(folder)),
        samples=_block_samples(lm),
    )


def training_summary(folder: Path) -> TrainingSummary | None:
    """The course of the run in a folder; None where no check is in its log."""
    checks = [record for record in read_log(folder) if record["kind"] == "check"]
    if not checks:
        return None
    last, best = checks[-1], min(checks, key=lambda record: float(record["valid_perplexity"]))
    run = None
    if (folder / RESULTS).exists():
        results = read_json_object(folder / RESULTS)
        names = ("stopped", "train_seconds", "device", "seed", "command", "perplexity", "bits_per_byte", "comparison")
        run = RunSummary(**{name: results.get(name) for name in names})
    return TrainingSummary(
        step=last["step"],
        num_steps=last["num_steps"],
        tokens=last["tokens"],
        best_valid_perplexity=best["valid_perplexity"],
        best_step=best["step"],
        first_valid_perplexity=checks[0]["valid_perplexity"],
        run=run,
    )


def _block_samples(lm: LanguageModel) -> list[BlockSample]:
    """A few blocks, spread over all, each with one of its states."""
    support = lm.model.support
    step = max(1, support.num_groups // SAMPLE_BLOCKS)
    samples = []
    for block in list(range(0, support.num_groups, step))[:SAMPLE_BLOCKS]:
        words = (support.group_of_word == block).nonzero().flatten().tolist()
        state = int(support.states_of_group[block, support.states_per_word // 2])
        # Tokenizers number frequent words first.
        frequent = [lm.tokenizer.token(word) for word in words[:SAMPLE_WORDS]]
        samples.append(BlockSample(block, len(words), frequent, lm.name_state(state, top=STATE_WORDS)))
    return samples
