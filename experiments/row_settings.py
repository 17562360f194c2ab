"""The settings of a row: an HMM of this package, its initialisation and training, or a baseline. The names are those of table files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from vlhmm.distillation.lvd import LVDSettings
from vlhmm.settings import nearest, parse_setting, settings_from
from vlhmm.training.baseline_settings import BASELINES as TEACHERS
from vlhmm.training.baseline_settings import (
    AWDLSTMSettings,
    BaselineSettings,
    BuysHMMSettings,
    FeedForwardSettings,
    LSTMSettings,
)
from vlhmm.training.em import EMSettings
from vlhmm.training.presets import Recipe, preset
from vlhmm.training.stage_settings import STAGES, Stages

DECODER = "decoder"


@dataclass(frozen=True)
class KneserNeySettings:
    order: int = 5
    """Contexts are the order - 1 words before."""
    fallback: bool = False
    """Fixed discounts where the text is too small to estimate them."""


@dataclass(frozen=True)
class TeacherSettings:
    """A language model, and what it gives an HMM before the HMM is trained on p(x)."""

    name: str = DECODER
    """decoder: one that is trained here, on the table's whole training text; else one of Hugging Face, as for `vlhmm distill`."""
    tokens: int = 20_000_000
    """decoder: those it is trained on; 0: it is not trained."""
    dim: int = 256
    """decoder."""
    layers: int = 4
    """decoder."""
    heads: int = 4
    """decoder."""
    learning_rate: float = 2e-3
    """decoder."""
    seed: int = 0
    """decoder."""
    lvd: bool = True
    """Latent variable distillation: its vectors, clustered, are the states of the first part of training."""
    body: bool = False
    """Its layers, to an HMM of parameterization transformer, which then has their size."""
    centred: bool = False
    """body: the layer behind it takes off what it makes of all states alike."""
    centroids: bool = False
    """The centroids of its vectors' clusters, as embeddings of states."""
    output: bool = False
    """Its output matrix, as embeddings of words."""

    def __post_init__(self) -> None:
        if not (self.lvd or self.body or self.centroids or self.output):
            raise ValueError("the teacher gives nothing: set lvd, body, centroids or output to true")
        if self.centred and not self.body:
            raise ValueError("centred is said of the body, which the teacher does not give: set body = true")

    @property
    def needs_clusters(self) -> bool:
        return self.lvd or self.centroids


@dataclass(frozen=True)
class RestartSettings:
    number: int = 4
    """Random starts, each trained on a part of its own of the text, so that all together cost one training."""

    def __post_init__(self) -> None:
        if self.number < 1:
            raise ValueError(f"number is {self.number}, but must be at least 1")


@dataclass(frozen=True)
class TaughtHMM:
    """An HMM that begins from what a teacher gives it."""

    recipe: Recipe = field(default_factory=Recipe)
    teacher: TeacherSettings = field(default_factory=TeacherSettings)
    lvd: LVDSettings = field(default_factory=LVDSettings)


@dataclass(frozen=True)
class BaumWelchHMM:
    """A scalar HMM trained by Baum-Welch; batches and windows are those of `em`."""

    recipe: Recipe = field(default_factory=Recipe)
    em: EMSettings = field(default_factory=EMSettings)


@dataclass(frozen=True)
class RestartedHMM:
    """The best on validation of several random starts."""

    recipe: Recipe = field(default_factory=Recipe)
    restarts: RestartSettings = field(default_factory=RestartSettings)


HMMSettings = Recipe | TaughtHMM | BaumWelchHMM | RestartedHMM
RowSettings = HMMSettings | KneserNeySettings | BaselineSettings

HMMS: dict[str, type[Any]] = {
    "hmm": Recipe,
    "taught-hmm": TaughtHMM,
    "baum-welch": BaumWelchHMM,
    "restarts": RestartedHMM,
}
SECTIONS: dict[str, tuple[type[Any], type[Any]]] = {
    "teacher": (TaughtHMM, TeacherSettings),
    "lvd": (TaughtHMM, LVDSettings),
    "em": (BaumWelchHMM, EMSettings),
    "restarts": (RestartedHMM, RestartSettings),
}
"""What a row may have beside a recipe: the kind of row that makes it, and the settings in it."""
BASELINES: dict[str, type[Any]] = {
    "kneser-ney": KneserNeySettings,
    "feedforward": FeedForwardSettings,
    "lstm": LSTMSettings,
    "awd-lstm": AWDLSTMSettings,
    "buys-hmm": BuysHMMSettings,
}


def recipe_settings(preset_name: str) -> Recipe:
    return preset(preset_name)


def with_sections(recipe: Recipe, sections: Mapping[str, Mapping[str, Any]]) -> HMMSettings:
    """The recipe trained as its sections say: by a teacher, by Baum-Welch or from several starts; without any, as it is."""
    if not sections:
        return recipe
    kinds = {SECTIONS[name][0] for name in sections}
    if len(kinds) > 1:
        raise ValueError(f"{' and '.join(sections)} do not go together: a row is trained one way")
    made: HMMSettings = kinds.pop()(
        recipe, **{name: settings_from(SECTIONS[name][1], values) for name, values in sections.items()}
    )
    return made


def baseline_settings(name: str) -> RowSettings:
    if name not in BASELINES:
        raise ValueError(f"no baseline {name!r}; {nearest(name, BASELINES)}")
    made: RowSettings = BASELINES[name]()
    return made


def recipe_of(settings: RowSettings) -> Recipe | None:
    """That of an HMM of this package."""
    if isinstance(settings, Recipe):
        return settings
    return settings.recipe if isinstance(settings, TaughtHMM | BaumWelchHMM | RestartedHMM) else None


def with_recipe(settings: RowSettings, recipe: Recipe) -> RowSettings:
    if isinstance(settings, TaughtHMM | BaumWelchHMM | RestartedHMM):
        return replace(settings, recipe=recipe)
    return recipe


def kind_of(settings: RowSettings) -> str:
    """hmm or another way to train one, or the baseline's name."""
    return next(name for name, kind in (HMMS | BASELINES).items() if type(settings) is kind)


def sections_of(settings: RowSettings) -> dict[str, Any]:
    """The records beside the recipe."""
    if isinstance(settings, Recipe) or recipe_of(settings) is None:
        return {}
    return {item.name: getattr(settings, item.name) for item in fields(settings) if item.name != "recipe"}


def knows(settings: RowSettings, name: str) -> bool:
    """Whether the row has a setting of this name; those beside the recipe are `section.name`."""
    section, dot, setting = name.partition(".")
    recipe = recipe_of(settings)
    if dot and isinstance(settings, Recipe) and settings.stages is not None:
        return setting in settings.stages.to_dict().get(section, {})
    if dot:
        record = sections_of(settings).get(section)
        return record is not None and any(item.name == setting for item in fields(record))
    if recipe is not None:
        return any(name in values for section, values in recipe.to_dict().items() if section not in STAGES)
    return any(item.name == name for item in fields(settings))


def changed(settings: RowSettings, changes: Mapping[str, str]) -> RowSettings:
    """With settings as a person types them."""
    if "seed" in changes:
        raise ValueError("the seed is no setting of a row: give it with --seed")
    recipe = recipe_of(settings)
    if recipe is not None:
        staged = isinstance(settings, Recipe)
        own = {
            name: text
            for name, text in changes.items()
            if "." not in name or (staged and name.partition(".")[0] in STAGES)
        }
        return _with_changed_sections(with_recipe(settings, recipe.with_changes(own)), changes)
    kind = type(settings)
    for name in changes:
        if not knows(settings, name):
            raise ValueError(f"unknown setting {name!r}; {nearest(name, [item.name for item in fields(kind)])}")
    typed = {name: parse_setting(kind, name, text) for name, text in changes.items()}
    made: RowSettings = settings_from(kind, {**asdict(settings), **typed})
    return made


def _with_changed_sections(settings: RowSettings, changes: Mapping[str, str]) -> RowSettings:
    for name, record in sections_of(settings).items():
        own = {key.removeprefix(f"{name}."): text for key, text in changes.items() if key.startswith(f"{name}.")}
        typed = {key: parse_setting(type(record), key, text) for key, text in own.items()}
        settings = replace(settings, **{name: settings_from(type(record), {**asdict(record), **typed})})
    return settings


def with_seed(settings: RowSettings, seed: int) -> RowSettings:
    """A recipe says its seed itself; baselines are told."""
    recipe = recipe_of(settings)
    if recipe is None:
        return settings
    stages = recipe.stages
    if stages is not None:
        stages = replace(stages, finetune=replace(stages.finetune, seed=seed))
    settings = with_recipe(settings, replace(recipe, train=replace(recipe.train, seed=seed), stages=stages))
    return replace(settings, em=replace(settings.em, seed=seed)) if isinstance(settings, BaumWelchHMM) else settings


def as_values(settings: RowSettings) -> dict[str, Any]:
    """All settings in sections, without the seed of the row."""
    recipe = recipe_of(settings)
    if recipe is None:
        return {"baseline": asdict(settings)}
    values: dict[str, Any] = recipe.to_dict()
    values |= {name: asdict(record) for name, record in sections_of(settings).items()}
    for section in ("train", "em", "finetune"):
        values.get(section, {}).pop("seed", None)
    return values


def default_values(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What `as_values` gives for settings of which nothing was changed; of stages where `settings` have them."""
    made = (HMMS | BASELINES)[kind]()
    if kind == "hmm" and "finetune" in settings:
        kind_of_teacher = settings["teacher"]["kind"]
        # A pretrained one has no defaults. The kind itself always counts.
        own = {"kind": kind_of_teacher} if kind_of_teacher in TEACHERS else {}
        made = replace(made, stages=Stages.from_dict({"teacher": own}))
    values = as_values(made)
    values.get("teacher", {}).pop("kind", None)
    return values
