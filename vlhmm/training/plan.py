"""What a training run is going to do: the plan that its folder remembers, and its size before anything is trained."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vlhmm.cluster import Blocks, random_blocks
from vlhmm.data import Corpus, Tokenizer, Tokens
from vlhmm.data.atomic import atomic_write
from vlhmm.data.corpus import MANIFEST, NAMES
from vlhmm.data.json_file import read_json_object
from vlhmm.data.windows import Epoch
from vlhmm.memory import available_bytes
from vlhmm.models import Model
from vlhmm.settings import settings_from
from vlhmm.training.baseline_settings import kind_of
from vlhmm.training.checkpoint import TOKENIZER
from vlhmm.training.em import EMSettings, em_steps
from vlhmm.training.initial import InitialWeights, starting_model, with_model
from vlhmm.training.presets import Recipe
from vlhmm.training.settings import TrainSettings
from vlhmm.training.stage_settings import PretrainedSettings

RECIPE = "recipe.json"
TILE_COPIES = 8
"""What a training step holds of each transition tile at its peak: logits, probabilities, gradients; as measured."""


@dataclass(frozen=True)
class Plan:
    """What a run folder remembers, so that it can be resumed by name alone."""

    recipe: Recipe
    source: str
    """The corpus by its name or path."""
    data_dir: Path | None
    em: EMSettings | None = None
    """Baum-Welch instead of gradient ascent: the recipe's `train` is not read, but for the seed."""
    initial: InitialWeights | None = None
    """A trained model to start from, whose blocks and model settings then are the recipe's; None: random weights."""

    def save(self, folder: Path) -> None:
        # Absolute paths: the run may be resumed from another working directory.
        source = str(Path(self.source).absolute()) if Path(self.source).exists() else self.source
        values = {
            "corpus": source,
            "data_dir": None if self.data_dir is None else str(self.data_dir.absolute()),
            "recipe": self.recipe.to_dict(),
            "em": None if self.em is None else asdict(self.em),
            "initial": None if self.initial is None else self.initial.to_dict(),
        }
        atomic_write(folder / RECIPE, json.dumps(values, indent=2).encode())


def read_plan(folder: Path) -> Plan | None:
    """What `Plan.save` wrote; None if the run never got so far."""
    path = folder / RECIPE
    if not path.exists():
        return None
    try:
        values = read_json_object(path)
        data_dir = values["data_dir"]
        recipe = Recipe.from_dict(values["recipe"])
        em, initial = values.get("em"), values.get("initial")
        return Plan(
            recipe,
            values["corpus"],
            None if data_dir is None else Path(data_dir),
            None if em is None else settings_from(EMSettings, em),
            None if initial is None else InitialWeights(**{**initial, "folder": Path(initial["folder"])}),
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): it was edited or is of another version") from error


def kept_tokenizer(folder: Path, source: str) -> Tokenizer | None:
    """The tokenizer that a run in `folder` made of the text `source`; None where the corpus has its own."""
    file = folder / TOKENIZER
    own = source in NAMES or (Path(source) / MANIFEST).is_file()
    return None if own or not file.is_file() else Tokenizer.load(file)


def training_steps(recipe: Recipe, corpus: Corpus) -> int:
    """Of the training on the text alone; refused where the text is too short for one."""
    settings = recipe.train if recipe.stages is None else recipe.stages.finetune
    epoch = epoch_of(corpus.train, settings)
    epoch.check()
    return settings.epochs * epoch.num_windows


def epoch_of(tokens: Tokens, settings: TrainSettings, number: int = 0) -> Epoch:
    return Epoch(tokens, settings.windows, settings.batch_size, settings.window, settings.seed, number)


@dataclass(frozen=True)
class PlannedStage:
    """What a stage is going to do."""

    name: str
    tokens: int
    """Drawn, or read in training."""
    what: str


def planned_stages(recipe: Recipe, corpus: Corpus) -> list[PlannedStage]:
    """The stages of a recipe in their order; empty where it has none."""
    stages = recipe.stages
    if stages is None:
        return []
    real, samples, teacher = len(corpus.train), stages.samples, stages.teacher
    with_context = samples.tokens * (samples.context + samples.length) // samples.length
    mixed = with_context + samples.real_copies * real
    if isinstance(teacher, PretrainedSettings):
        first = PlannedStage("teacher", 0, f"{teacher.model}, which is trained already")
    else:
        first = PlannedStage("teacher", teacher.epochs * real, f"{kind_of(teacher)}, {teacher.epochs} epochs")
    how = f"{samples.length} tokens after {samples.prefix} real ones, {samples.batch_size:,} side by side"
    how += f", the last {samples.context} of these kept" if samples.context else ""
    return [
        first,
        PlannedStage("samples", samples.tokens, f"{how}, temperature {samples.temperature:g}"),
        PlannedStage(
            "mixture",
            recipe.train.epochs * mixed,
            _passes(recipe.train, f"with {samples.real_copies} times the real text"),
        ),
        PlannedStage("finetuning", stages.finetune.epochs * real, _passes(stages.finetune, "on the real text")),
    ]


def _passes(settings: TrainSettings, over: str) -> str:
    return f"{settings.epochs} epoch{'s' * (settings.epochs != 1)} {over}, {settings.batch_size} x {settings.window} tokens a step"


@dataclass(frozen=True)
class Forecast:
    """The size of a run before it is begun."""

    corpus: Corpus
    tokens: int
    """Of the training text."""
    vocab_size: int
    num_blocks: int
    num_states: int
    num_parameters: int
    steps: int
    estimated_bytes: int
    """What training holds in memory, about."""
    available_bytes: int
    device: str
    recipe: dict[str, dict[str, Any]]
    """Every setting, by section."""
    stages: list[PlannedStage]
    """Where a teacher writes text first; `steps` are those of the last of them."""
    initial: InitialWeights | None = None
    """The trained model that the run starts from; None: random weights."""


def forecast(plan: Plan, corpus: Corpus, device: torch.device, *, blocks_file: Path | None = None) -> Forecast:
    """Compute the size of a run before it is begun. Nothing is clustered, trained or written.

    Args:
        plan: What the run is to do.
        corpus: The corpus of the plan.
        device: Where it is to run.
        blocks_file: Blocks that `Blocks.save` wrote; None: those of the recipe.

    Returns:
        Numbers of states, parameters and steps, memory that is needed and free, and every setting.

    Raises:
        ValueError: The settings do not fit the corpus.

    Example:
        >>> from pathlib import Path
        >>> from vlhmm.training.plan import Plan, forecast
        >>> from vlhmm.training.presets import preset
        >>> _ = Path("animals.txt").write_text(50 * "the cat sees a bird\\nthe dog sees a fish\\n")
        >>> recipe = preset("demo").with_changes({"num_blocks": "4", "batch_size": "2", "epochs": "3"})
        >>> sizes = forecast(Plan(recipe, "animals.txt", None), vlhmm.load_corpus("animals.txt", tokenizer="words"), torch.device("cpu"))
        >>> sizes.num_states == 4 * recipe.model.states_per_block, sizes.tokens
        (True, 540)
    """
    em, initial = plan.em, None if plan.initial is None else plan.initial.decided(plan.recipe)
    recipe, model, num_blocks = sketched_model(plan, corpus, blocks_file)
    sections = recipe.to_dict()
    if em is not None:
        del sections["train"]
        sections["em"] = asdict(em)
    return Forecast(
        corpus=corpus,
        tokens=len(corpus.train),
        vocab_size=corpus.tokenizer.vocab_size,
        num_blocks=num_blocks,
        num_states=model.support.num_states,
        num_parameters=model.num_parameters,
        steps=training_steps(recipe, corpus) if em is None else em_steps(em, corpus),
        estimated_bytes=_estimated_bytes(recipe, model),
        available_bytes=available_bytes(device),
        device=str(device),
        recipe=sections,
        stages=planned_stages(recipe, corpus),
        initial=initial,
    )


def sketched_model(plan: Plan, corpus: Corpus, blocks_file: Path | None) -> tuple[Recipe, Model, int]:
    """The recipe, a model of its size, and how many blocks it has."""
    recipe, initial = plan.recipe, plan.initial
    if initial is None:
        blocks = _sketch_blocks(recipe, corpus, blocks_file)
        return recipe, recipe.make_model(corpus, blocks), blocks.num_blocks
    model = starting_model(initial.decided(recipe), recipe, corpus)
    return with_model(recipe, model), model, model.support.num_groups


def _sketch_blocks(recipe: Recipe, corpus: Corpus, blocks_file: Path | None) -> Blocks:
    """Blocks of the right number without clustering: the size of a model depends on nothing else."""
    if blocks_file is not None:
        return Blocks.load(blocks_file, corpus.tokenizer.tokens())
    if recipe.blocks.clustering == "brown":
        return random_blocks(corpus.tokenizer.vocab_size, recipe.blocks.num_blocks, np.random.default_rng(0))
    return recipe.make_blocks(corpus)


def _estimated_bytes(recipe: Recipe, model: Model) -> int:
    """Weights with all that belongs to them, and the transition tiles of one window: a rough figure, without the program."""
    settings, support = recipe.train, model.support
    # Weights, gradient, two moments of Adam, the best weights so far; the average of weights.
    weights = model.num_parameters * (5 + bool(settings.ema))
    kept = support.states_per_word - int(support.states_per_word * settings.state_dropout)
    tiles = min(settings.batch_size * settings.window, support.num_groups**2)
    return 4 * (weights + TILE_COPIES * tiles * kept**2)
