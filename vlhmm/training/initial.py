"""Training that starts from the weights of a trained model, as they are or in a larger model that is as good."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import torch

from vlhmm.cluster import Blocks, one_block
from vlhmm.data import Corpus
from vlhmm.data.checksums import sha256_of_file
from vlhmm.models import Model, ModelSettings, Reset, split_blocks, split_states
from vlhmm.tensor_file import FolderError
from vlhmm.training.checkpoint import MODEL, load_model
from vlhmm.training.presets import BlockSettings, Recipe

SPLIT_NOISE = 0.01
"""Of the spread of each parameter: what tells the parts of a state apart where no state dropout does."""


@dataclass(frozen=True)
class InitialWeights:
    """Where a training run takes its first weights from."""

    folder: Path
    """A folder that `vlhmm train` or `lm.save` has written."""
    split_states: int = 1
    """Each state becomes so many."""
    split_blocks: int = 1
    """The words of each block are put into so many blocks, each with states of its own; before states are split."""
    noise: float | None = None
    """Of the split, as a multiple of each parameter's spread; None: 0 where state dropout tells parts apart, else SPLIT_NOISE."""
    sha256: str = ""
    """Of the weights, once they have been read: a run that goes on needs the same ones."""

    def __post_init__(self) -> None:
        for name in ("split_states", "split_blocks"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 1")
        if self.noise is not None and not (math.isfinite(self.noise) and self.noise >= 0):
            raise ValueError(f"noise is {self.noise}, but must be finite and at least 0")

    @property
    def splits(self) -> bool:
        return self.split_states > 1 or self.split_blocks > 1

    def decided(self, recipe: Recipe) -> InitialWeights:
        """With the noise that the recipe asks for, and the SHA-256 of the weights."""
        drops = recipe.train.state_dropout > 0
        noise = self.noise if self.noise is not None else 0.0 if drops or not self.splits else SPLIT_NOISE
        found = self.sha256_now()
        if self.sha256 and found != self.sha256:
            raise FolderError(
                f"{self.folder / MODEL} has changed since the run was started from it: restore it, or start a new run"
            )
        return replace(self, noise=noise, sha256=found)

    def sha256_now(self) -> str:
        file = self.folder / MODEL
        if not file.is_file():
            raise FolderError(
                f"{self.folder} has no {MODEL}: name a folder that `vlhmm train` or `lm.save` has written, for the first weights"
            )
        return sha256_of_file(file)

    def to_dict(self) -> dict[str, Any]:
        """For the run's own folder."""
        return {**asdict(self), "folder": str(self.folder.absolute())}

    def told(self) -> dict[str, Any]:
        """For the record in the folder of the trained model."""
        return {**asdict(self), "folder": self.folder.name}


def initial_model(
    folder: str | Path,
    corpus: Corpus,
    *,
    split_states: int = 1,
    split_blocks: int = 1,
    noise: float = 0.0,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Model:
    """Load a trained model to train it further on a corpus, larger if asked, and then as good as it was.

    Args:
        folder: The folder of the model.
        corpus: The corpus; its tokens must be those of the model.
        split_states: Each state becomes so many, as by `vlhmm.models.split_states`.
        split_blocks: The words of each block are put into so many blocks, as by `vlhmm.models.split_blocks`.
        noise: What is added to each part of a state, as a multiple of the parameter's standard deviation; 0: the likelihood is
            preserved, and only state dropout tells parts apart.
        seed: Decides the noise.
        device: Where the model is placed.

    Returns:
        The model.

    Raises:
        ValueError: The folder holds no model, one of other tokens, or one that cannot be split.

    Example:
        >>> from pathlib import Path
        >>> corpus = vlhmm.load_corpus("animals.txt", tokenizer=vlhmm.load("demo-model").tokenizer)
        >>> model = vlhmm.initial_model("demo-model", corpus, split_states=2)
        >>> model.support.num_states
        96
        >>> settings = vlhmm.TrainSettings(epochs=1, batch_size=8, learning_rate=0.002, state_dropout=0.25)
        >>> vlhmm.train(model, corpus, settings).reason
        'finished'
    """
    saved = load_model(folder, device)
    if saved.tokenizer.hash != corpus.tokenizer.hash:
        raise FolderError(
            f"the model in {folder} reads {saved.tokenizer!r} ({saved.tokenizer.hash[:12]}), but the corpus is in "
            f"{corpus.tokenizer!r} ({corpus.tokenizer.hash[:12]}): read the corpus with the model's tokenizer, "
            f"{Path(folder) / 'tokenizer.json'}"
        )
    reset = saved.model.reset_token
    if reset is not None and reset != corpus.tokenizer.eos_id:
        raise FolderError(
            f"the model in {folder} resets after token {reset}, but EOS of the corpus is {corpus.tokenizer.eos_id}: it is "
            "of another kind of text"
        )
    model = saved.model
    generator = torch.Generator().manual_seed(seed)
    if split_blocks > 1:
        model = _split_blocks(model, split_blocks, noise=noise, generator=generator)
    if split_states > 1:
        model = _split_states(model, split_states, noise=noise, generator=generator)
    return model


# Imported under other names: arguments of `initial_model` have these.
_split_blocks, _split_states = split_blocks, split_states


def starting_model(initial: InitialWeights, recipe: Recipe, corpus: Corpus) -> Model:
    """The model that a run with this recipe starts from, on the CPU; `initial` must be decided."""
    assert initial.noise is not None
    return initial_model(
        initial.folder,
        corpus,
        split_states=initial.split_states,
        split_blocks=initial.split_blocks,
        noise=initial.noise,
        seed=recipe.train.seed,
    )


def with_model(recipe: Recipe, model: Model) -> Recipe:
    """The recipe with blocks and model settings of a model that is there."""
    support = model.support
    clustering = recipe.blocks.clustering
    if not support.partition:
        clustering = "uniform"
    elif support.num_groups == 1:
        clustering = "one"
    elif clustering in ("one", "uniform"):
        clustering = "brown"
    num_blocks = support.num_groups if support.partition else support.num_states // support.states_per_word
    reset: Reset = "carry" if model.reset_token is None else "eos"
    blocks = replace(recipe.blocks, clustering=clustering, num_blocks=num_blocks, reset=reset)
    return replace(recipe, blocks=blocks, model=model.settings)


def blocks_of(model: Model) -> Blocks:
    """Those that the model's words are in; one where they are in none."""
    support = model.support
    if not support.partition:
        return one_block(support.num_words)
    return Blocks(support.group_of_word.cpu().numpy(), support.num_groups)


def refuse_other_settings(initial: InitialWeights, asked: dict[str, Any]) -> None:
    """Refuses settings of model and blocks, asked for by name, that are not those of the folder's model once it is split."""
    model_settings, block_settings = ({item.name for item in fields(kind)} for kind in (ModelSettings, BlockSettings))
    found = load_model(initial.folder).model
    known = {**found.settings.to_dict(), "reset": "carry" if found.reset_token is None else "eos"}
    known["states_per_block"] *= initial.split_states
    for name, value in asked.items():
        if name in block_settings - known.keys():
            raise ValueError(
                f"{name} = {value!r} decides how words are put into blocks, but the blocks are those of the model in "
                f"{initial.folder}: leave it out"
            )
        if name in model_settings | {"reset"} and known[name] != value:
            more = "; --split-states N makes it larger" if name == "states_per_block" else ""
            raise ValueError(
                f"{name} = {value!r}, but the model in {initial.folder} has {known[name]!r}: leave it out{more}, or train from random "
                "weights"
            )
