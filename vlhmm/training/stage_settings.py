"""The stages before the training on a text alone: a teacher, the text that it writes, and that text mixed with the real one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from vlhmm.settings import nearest, parse_setting, settings_from
from vlhmm.training.baseline_settings import BASELINES, AWDLSTMSettings, BaselineSettings, kind_of
from vlhmm.training.settings import TrainSettings

PRETRAINED = "pretrained"


@dataclass(frozen=True)
class PretrainedSettings:
    """A teacher that is trained already."""

    model: str = ""
    """A folder that a trained baseline is in, or a causal language model of Hugging Face whose tokens are those of the corpus."""

    def __post_init__(self) -> None:
        if not self.model:
            raise ValueError("teacher.model is empty: name the folder of a trained baseline, or a language model")


Teacher = BaselineSettings | PretrainedSettings
TEACHERS: dict[str, type[Teacher]] = {**BASELINES, PRETRAINED: PretrainedSettings}


@dataclass(frozen=True)
class SampledText:
    """Text that the teacher writes, and how it is mixed with the real text."""

    tokens: int = 100_000_000
    """Tokens to draw, at least; whole batches are drawn."""
    length: int = 128
    """Tokens of a sample."""
    prefix: int = 64
    """Tokens of real training text that a sample continues, and that are no part of it; 0: samples begin without any."""
    temperature: float = 1.0
    """Of the teacher's distribution."""
    batch_size: int = 8192
    """Samples drawn side by side."""
    real_copies: int = 4
    """How often the real text stands among the samples, in stretches as long as a sample, in random order with them."""
    context: int = 0
    """The last tokens of its prefix that a sample's text begins with: `context` of the training then leaves them unscored."""
    per_prefix: int = 1
    """Samples drawn after each prefix, which is read once for all of them."""

    def __post_init__(self) -> None:
        for name in ("tokens", "length", "batch_size", "per_prefix"):
            if getattr(self, name) < 1:
                raise ValueError(f"samples.{name} is {getattr(self, name)}, but must be at least 1")
        for name in ("prefix", "real_copies"):
            if getattr(self, name) < 0:
                raise ValueError(f"samples.{name} is {getattr(self, name)}, but must be at least 0")
        if not 0 <= self.context <= self.prefix:
            raise ValueError(
                f"samples.context is {self.context}, but must be at least 0 and at most samples.prefix, {self.prefix}"
            )
        if not (self.temperature > 0 and math.isfinite(self.temperature)):
            raise ValueError(f"samples.temperature is {self.temperature}, but must be finite and above 0")


@dataclass(frozen=True)
class Stages:
    """What a recipe has beside blocks, model and training where a teacher writes text first."""

    teacher: Teacher = field(default_factory=AWDLSTMSettings)
    samples: SampledText = field(default_factory=SampledText)
    finetune: TrainSettings = field(default_factory=TrainSettings)
    """The training on the real text alone, after that on the mixture."""

    @classmethod
    def from_dict(cls, values: Mapping[str, Mapping[str, Any]]) -> Stages:
        """From sections `teacher`, `samples` and `finetune`."""
        return cls(
            teacher_from(values.get("teacher", {})),
            settings_from(SampledText, values.get("samples", {})),
            settings_from(TrainSettings, values.get("finetune", {})),
        )

    def to_dict(self) -> dict[str, dict[str, Any]]:
        return {
            "teacher": teacher_values(self.teacher),
            "samples": asdict(self.samples),
            "finetune": asdict(self.finetune),
        }


STAGES = tuple(item.name for item in fields(Stages))


def teacher_from(values: Mapping[str, Any]) -> Teacher:
    """From a section that says `kind`, and settings of that kind."""
    kind = values.get("kind", "awd-lstm")
    if kind not in TEACHERS:
        raise ValueError(f"teacher.kind is {kind!r}; {nearest(str(kind), TEACHERS)}")
    made: Teacher = settings_from(TEACHERS[kind], {name: value for name, value in values.items() if name != "kind"})
    return made


def teacher_values(teacher: Teacher) -> dict[str, Any]:
    kind = PRETRAINED if isinstance(teacher, PretrainedSettings) else kind_of(teacher)
    return {"kind": kind, **asdict(teacher)}


def merged_sections(
    sections: Mapping[str, Mapping[str, Any]], changes: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Sections with others over them; a teacher of another kind begins from that kind's own defaults."""
    merged = {name: dict(values) for name, values in sections.items()}
    for name, values in changes.items():
        before = merged.get(name, {})
        if name == "teacher" and values.get("kind", before.get("kind")) != before.get("kind"):
            before = {}
        merged[name] = {**before, **values}
    return merged


def parse_stage_setting(section: str, name: str, text: str, kind: str) -> Any:
    """The value of `section.name` as a person types it; `kind`: that of the teacher."""
    if (section, name) == ("teacher", "kind"):
        return text
    if section == "teacher" and kind not in TEACHERS:
        raise ValueError(f"teacher.kind is {kind!r}; {nearest(kind, TEACHERS)}")
    of_section: dict[str, type[Any]] = {
        "teacher": TEACHERS.get(kind, AWDLSTMSettings),
        "samples": SampledText,
        "finetune": TrainSettings,
    }
    known = [item.name for item in fields(of_section[section])]
    if name not in known:
        raise ValueError(f"unknown setting '{section}.{name}'; {nearest(name, known)}")
    return parse_setting(of_section[section], name, text)
