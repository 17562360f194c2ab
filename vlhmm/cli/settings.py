"""The settings that options ask for: --preset, --config, --set and --seed, and what a resumed run does not change."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vlhmm.training.em import EMSettings
    from vlhmm.training.presets import Recipe

DEFAULT_PRESET, EM_PRESET = "default", "scalar"


class Method(StrEnum):
    gradient = "gradient"
    em = "em"


class Asked:
    """What the command line says about the recipe and, for Baum-Welch, its settings."""

    def __init__(
        self,
        preset: str | None,
        config: Path | None,
        changes: tuple[str, ...],
        seed: int | None,
        method: Method | None = None,
    ) -> None:
        self.preset, self.config = preset, config
        self.sections = {} if config is None else _read_toml(config)
        if method is Method.gradient and "em" in self.sections:
            raise ValueError(f"--method gradient, but {config} has settings under [em]: leave one of them out")
        self.by_em = method is Method.em or "em" in self.sections
        self.changes = dict(key_value(change) for change in changes)
        if seed is not None:
            self.changes["seed"] = str(seed)

    @property
    def leaves_preset_open(self) -> bool:
        """No preset is named, and none follows from the method."""
        return self.preset is None and not self.by_em

    def recipe(self, chosen: Recipe | None = None) -> Recipe:
        """The preset, changed by the file, changed by --set and --seed; `chosen` where the preset is left open."""
        from vlhmm.training.presets import preset

        if self.leaves_preset_open:
            recipe = chosen or preset(DEFAULT_PRESET)
        else:
            recipe = preset(self.preset or EM_PRESET)
        if self.by_em and self.preset in (None, EM_PRESET):
            # Counting leaves equal states equal.
            recipe = recipe.with_changes({"init_scale": "1.0"})
        sections = {name: settings for name, settings in self.sections.items() if name != "em"}
        return recipe.with_sections(sections).with_changes(self._recipe_changes())

    def em(self) -> EMSettings | None:
        """The settings of Baum-Welch, if that is the method."""
        from vlhmm.settings import parse_setting, settings_from
        from vlhmm.training.em import EMSettings

        if not self.by_em:
            return None
        typed = {
            name: parse_setting(EMSettings, name, text) for name, text in self.changes.items() if name in _em_names()
        }
        return settings_from(EMSettings, {**self.sections.get("em", {}), **typed})

    def _recipe_changes(self) -> dict[str, str]:
        """Those that are not Baum-Welch's own; the seed is both's."""
        if not self.by_em:
            return self.changes
        return {name: text for name, text in self.changes.items() if name == "seed" or name not in _em_names()}

    def named(self, recipe: Recipe) -> dict[str, Any]:
        """The settings of model and blocks that are given explicitly, with their values in the recipe."""
        sections = recipe.to_dict()
        names = {name for part in ("model", "blocks") for name in self.sections.get(part, {})} | self.changes.keys()
        known = {**sections["blocks"], **sections["model"]}
        return {name: known[name] for name in sorted(names & known.keys())}

    def unchanged(self, saved: Recipe, saved_em: EMSettings | None) -> tuple[Recipe, EMSettings | None]:
        """The settings of a run that goes on; refuses options that ask for others."""
        if self.by_em != (saved_em is not None):
            before, now = ("gradient", "em") if self.by_em else ("em", "gradient")
            raise ValueError(f"the run was started with --method {before}, not {now}: start a new run")
        same_base = self.preset is None and self.config is None
        asked = saved.with_changes(self._recipe_changes()) if same_base else self.recipe(saved)
        changed = _differences(saved.to_dict(), asked.to_dict())
        if saved_em is not None:
            changed += self._em_differences(saved_em)
        if changed:
            raise ValueError(
                f"the run was started with {'; '.join(changed)}: leave those options out, or start a new run"
            )
        return saved, saved_em

    def _em_differences(self, saved: EMSettings) -> list[str]:
        from dataclasses import asdict

        asked = self.em()
        assert asked is not None
        named = {*self.changes, *self.sections.get("em", {})}
        now = {name: value for name, value in asdict(asked).items() if name in named}
        return _differences({"em": asdict(saved)}, {"em": now})


def _differences(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    return [
        f"{name} = {before.get(section, {}).get(name)!r}, not {value!r}"
        for section, settings in now.items()
        for name, value in settings.items()
        if before.get(section, {}).get(name) != value
    ]


def _em_names() -> set[str]:
    from dataclasses import fields

    from vlhmm.training.em import EMSettings

    return {item.name for item in fields(EMSettings)}


def key_value(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise ValueError(f"--set {text!r} is no setting; write it as KEY=VALUE, for example --set epochs=3")
    return key.strip(), value.strip()


def _read_toml(path: Path) -> dict[str, dict[str, Any]]:
    import tomllib

    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    for section, settings in values.items():
        if not isinstance(settings, dict):
            raise ValueError(
                f"{path}: {section!r} stands outside [blocks], [model], [train], [em] and those of stages; put it under one"
            )
    return values
