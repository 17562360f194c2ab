"""`vlhmm eval`: perplexity, and how it was counted."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlhmm.cli import options
from vlhmm.cli.options import DataDir, DeviceOption, Json, ModelDir, choose_device, stdin_lines
from vlhmm.cli.show import facts, message, print_json, watch

if TYPE_CHECKING:
    from vlhmm.lm import LanguageModel
    from vlhmm.reports import Source, TextEvaluation


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CORPUS|FILE",
        show_default=False,
        help="A corpus, a text file, or `-` for stdin; default: the corpus it was trained on.",
    ),
]
ValidSplit = Annotated[
    Split | None,
    typer.Option("--split", show_default=False, help="Which part of a corpus (default: valid); a file has none."),
]


def register(app: typer.Typer) -> None:
    app.command(
        "eval",
        epilog="Examples:\n  vlhmm eval runs/demo\n  vlhmm eval runs/demo letters.txt --json\n"
        "  zcat news.gz | vlhmm eval runs/demo -",
    )(evaluate_text)


def evaluate_text(
    folder: ModelDir,
    source: SourceArgument = None,
    split: Annotated[
        Split | None,
        typer.Option("--split", show_default=False, help="Which part of a corpus (default: test); a file has none."),
    ] = None,
    streams: Annotated[
        int, typer.Option("--streams", min=1, help="1: exact; more: faster, each warmed up on the text before it.")
    ] = 1,
    device: DeviceOption = options.Device.auto,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Perplexity of a text, with everything that was counted."""
    from vlhmm.distributed import world
    from vlhmm.lm import load
    from vlhmm.reports import evaluating_source

    lm = load(folder, choose_device(device))
    text = read_source(lm, folder, source, split, Split.test, data_dir)
    found = watch(evaluating_source(lm, text, streams=streams, here=world()), "scoring")
    if as_json:
        print_json(found)
    else:
        _print_evaluation(found, by_words=lm.tokenizer.word_level)


def read_source(
    lm: LanguageModel, folder: Path, source: str | None, split: Split | None, default: Split, data_dir: Path | None
) -> Source:
    """The text that the options name; what a person should know of it goes to stderr."""
    from vlhmm.cli.ranks import lines_of_all
    from vlhmm.reports import sources

    text = sources.read_source(
        lm,
        folder,
        source,
        split=None if split is None else split.value,
        default=default.value,
        data_dir=data_dir,
        lines=lines_of_all(stdin_lines()) if source == "-" else None,
    )
    for note in text.notes:
        message(note)
    return text


def _print_evaluation(found: TextEvaluation, *, by_words: bool) -> None:
    evaluation = found.evaluation
    rows = [("text", found.source.label), ("perplexity", f"{evaluation.perplexity:,.2f} per token")]
    if not by_words and evaluation.word_perplexity is not None:
        rows.append(("", f"{evaluation.word_perplexity:,.2f} per word"))
    if evaluation.bits_per_byte is not None:
        rows.append(("", f"{found.byte_perplexity:,.3f} per byte, {evaluation.bits_per_byte:.4f} bits per byte"))
    rows += [
        ("log p", f"{evaluation.log_prob:,.1f} nats"),
        ("tokens", f"{evaluation.num_tokens:,} scored"),
        ("unknown", f"{evaluation.num_unknown:,} tokens, {evaluation.unknown_rate:.2%}"),
        ("protocol", evaluation.protocol),
        ("compare", ", ".join(f"{name} {perplexity:,.1f}" for name, perplexity in found.baselines.items())),
    ]
    facts(rows)
