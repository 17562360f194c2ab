"""`vlhmm train`: what the options ask for, and what is shown of a run."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlhmm.cli import options
from vlhmm.cli.options import Changes, DataDir, DeviceOption, Json, choose_device, read_corpus
from vlhmm.cli.show import (
    command_line,
    facts,
    line,
    message,
    print_json,
    print_table,
    program,
    size,
    table,
)
from vlhmm.reports.sources import corpus_label

if TYPE_CHECKING:
    import torch

    from vlhmm.cluster import Blocks
    from vlhmm.data import Corpus
    from vlhmm.models import Model
    from vlhmm.training.em import EMSettings
    from vlhmm.training.presets import Recipe

DEFAULT_PRESET, EM_PRESET = "default", "scalar"


class Method(StrEnum):
    gradient = "gradient"
    em = "em"


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:\n  vlhmm train pydocs --out runs/first --preset demo --set epochs=3\n"
        "  vlhmm train ptb --out runs/ptb --set states_per_block=512 --device cuda\n"
        "  vlhmm train pydocs --out runs/em --method em --set states_per_block=64 --set iterations=10\n"
        "  vlhmm train --out runs/ptb --resume"
    )(train)


def train(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the run.")],
    corpus_name: Annotated[
        str | None,
        typer.Argument(
            metavar="CORPUS",
            show_default=False,
            help="pydocs, ptb, wikitext-2, a folder made by `vlhmm prepare`, or text files of your own.",
        ),
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            "--preset",
            metavar="NAME",
            help="demo (for a CPU), default (for a GPU; taken if none is named), linear, scalar, chiu2020-ptb, ...",
        ),
    ] = None,
    method: Annotated[
        Method | None,
        typer.Option(
            "--method",
            show_default=False,
            help="gradient (the default), or em: Baum-Welch, for free tables (--preset scalar); --set batches_per_step=N in mini-batches.",
        ),
    ] = None,
    changes: Changes = None,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE.toml", help="Settings under blocks, model and train or em.")
    ] = None,
    blocks_file: Annotated[
        Path | None, typer.Option("--blocks", metavar="FILE", help="Blocks that `vlhmm cluster` wrote.")
    ] = None,
    seed: Annotated[int | None, typer.Option("--seed", metavar="N", help="Decides everything random.")] = None,
    device: DeviceOption = options.Device.auto,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", min=0, metavar="S", help="Stop after S.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in DIR, with its settings.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be done; write nothing.")] = False,
    tensorboard: Annotated[bool, typer.Option("--tensorboard", help="Write events for TensorBoard too.")] = False,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Train a model on a corpus; it can be stopped at any time and resumed."""
    from vlhmm.cli.run import Plan, read_plan, train_and_report

    chosen_device = choose_device(device)
    if out.is_file():
        raise ValueError(f"--out {out} is a file: name a folder")
    saved = read_plan(out) if resume else None
    if method is None and saved is not None and saved.em is not None:
        method = Method.em
    asked = Asked(preset, config, tuple(changes or ()), seed, method)
    if resume and saved is None:
        message(f"{out} holds no run yet: beginning one")
    source = corpus_name or (saved.source if saved else None)
    if source is None:
        raise ValueError("no CORPUS: name one, pydocs for example; only --resume can do without")
    if data_dir is None and saved is not None:
        data_dir = saved.data_dir
    recipe, em = (asked.recipe(), asked.em()) if saved is None else asked.unchanged(saved.recipe, saved.em)
    if em is not None and recipe.model.parameterization != "scalar":
        raise ValueError(
            f"--method em counts uses of free tables, but the model is {recipe.model.parameterization!r}: "
            "use --preset scalar, or --method gradient"
        )
    corpus = read_corpus(source, data_dir)
    if dry_run:
        _show_plan(recipe, em, corpus, blocks_file, chosen_device, as_json)
        return 0
    status, results = train_and_report(
        Plan(recipe, source, data_dir, em),
        corpus,
        out,
        blocks_file=blocks_file,
        device=chosen_device,
        resume=resume,
        max_seconds=max_seconds,
        tensorboard=tensorboard,
        command=command_line(),
    )
    if as_json:
        print_json(results)
    elif status == 0:
        _show_results(results, out)
    return status


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

    def recipe(self) -> Recipe:
        """The preset, changed by the file, changed by --set and --seed."""
        from vlhmm.training.presets import Recipe, preset

        recipe = preset(self.preset or (EM_PRESET if self.by_em else DEFAULT_PRESET))
        if self.by_em and self.preset in (None, EM_PRESET):
            # Counting leaves equal states equal.
            recipe = recipe.with_changes({"init_scale": "1.0"})
        values = recipe.to_dict()
        for section, settings in self.sections.items():
            if section != "em":
                values[section] = {**values.get(section, {}), **settings}
        return Recipe.from_dict(values).with_changes(self._recipe_changes())

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

    def unchanged(self, saved: Recipe, saved_em: EMSettings | None) -> tuple[Recipe, EMSettings | None]:
        """The settings of a run that goes on; refuses options that ask for others."""
        if self.by_em != (saved_em is not None):
            before, now = ("gradient", "em") if self.by_em else ("em", "gradient")
            raise ValueError(f"the run was begun with --method {before}, not {now}: begin a new run")
        same_base = self.preset is None and self.config is None
        asked = saved.with_changes(self._recipe_changes()) if same_base else self.recipe()
        changed = _differences(saved.to_dict(), asked.to_dict())
        if saved_em is not None:
            changed += self._em_differences(saved_em)
        if changed:
            raise ValueError(
                f"the run was begun with {'; '.join(changed)}: leave those options out, or begin a new run"
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
        f"{name} = {before[section][name]!r}, not {value!r}"
        for section, settings in now.items()
        for name, value in settings.items()
        if before[section][name] != value
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
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{path} is not TOML: {error}") from error
    for section, settings in values.items():
        if not isinstance(settings, dict):
            raise ValueError(
                f"{path}: {section!r} stands outside [blocks], [model], [train] and [em]; put it under one"
            )
    return values


def _show_plan(
    recipe: Recipe,
    em: EMSettings | None,
    corpus: Corpus,
    blocks_file: Path | None,
    device: torch.device,
    as_json: bool,
) -> None:
    from dataclasses import asdict

    from vlhmm.cli.run import estimated_bytes, training_steps
    from vlhmm.memory import available_bytes
    from vlhmm.training.em import em_steps

    blocks = _sketch_blocks(recipe, corpus, blocks_file)
    model = recipe.make_model(corpus, blocks)
    steps = training_steps(recipe, corpus) if em is None else em_steps(em, corpus)
    needed = estimated_bytes(recipe, model)
    sections = recipe.to_dict()
    if em is not None:
        del sections["train"]
        sections["em"] = asdict(em)
    numbers: dict[str, Any] = {
        "corpus": {"name": corpus.name, "hash": corpus.hash, "note": corpus.note},
        "tokens": len(corpus.train),
        "vocab_size": corpus.tokenizer.vocab_size,
        "num_blocks": blocks.num_blocks,
        "num_states": model.support.num_states,
        "num_parameters": model.num_parameters,
        "steps": steps,
        "estimated_bytes": needed,
        "available_bytes": available_bytes(device),
        "device": str(device),
        "recipe": sections,
    }
    if as_json:
        print_json(numbers)
        return
    for section, settings in sections.items():
        shown = table(f"[{section}]", "")
        for name, value in settings.items():
            shown.add_row(f"  {name}", str(value).lower() if isinstance(value, bool) else str(value))
        print_table(shown)
    line()
    facts(
        [
            *_size_facts(corpus, blocks, model, steps, recipe, em),
            ("memory", f"about {size(needed)} while training, of {size(available_bytes(device))} free on {device}"),
            ("written", "nothing, this was a dry run"),
        ]
    )


def _sketch_blocks(recipe: Recipe, corpus: Corpus, blocks_file: Path | None) -> Blocks:
    """Blocks of the right number without clustering: the size of a model depends on nothing else."""
    import numpy as np

    from vlhmm.cluster import Blocks, random_blocks

    if blocks_file is not None:
        return Blocks.load(blocks_file, corpus.tokenizer.tokens())
    if recipe.blocks.clustering == "brown":
        return random_blocks(corpus.tokenizer.vocab_size, recipe.blocks.num_blocks, np.random.default_rng(0))
    return recipe.make_blocks(corpus)


def _size_facts(
    corpus: Corpus, blocks: Blocks, model: Model, steps: int, recipe: Recipe, em: EMSettings | None
) -> list[tuple[str, str]]:
    settings = em or recipe.train
    passes = f"{recipe.train.epochs} epochs" if em is None else f"{em.iterations} iterations of Baum-Welch"
    return [
        ("corpus", f"{corpus_label(corpus)}, {len(corpus.train):,} tokens"),
        ("states", f"{model.support.num_states:,} in {blocks.num_blocks:,} blocks"),
        ("parameters", f"{model.num_parameters:,}"),
        ("steps", f"{steps:,} of {settings.batch_size} x {settings.window} tokens, {passes}"),
    ]


def _show_results(results: dict[str, Any], out: Path) -> None:
    shown = table("perplexity", "valid", "test", right=("valid", "test"))
    for name, scores in results["perplexity"].items():
        shown.add_row(name, f"{scores['valid']:,.1f}", f"{scores['test']:,.1f}")
    print_table(shown)
    line()
    rows = [("protocol", results["test"]["protocol"]), ("model", str(out))]
    if results["learning_curve"]:
        rows.append(("curve", results["learning_curve"]))
    if results["stopped"] == "time":
        rows.append(("go on", f"{program()} train --out {out} --resume"))
    rows.append(("look", f"{program()} info {out}"))
    facts(rows)
