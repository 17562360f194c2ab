"""`vlhmm explore`: a page to look into a model with."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlhmm.cli import options
from vlhmm.cli.evaluation import Split, ValidSplit, read_source
from vlhmm.cli.options import DataDir, DeviceOption, Json, ModelDir, choose_device, texts_of, utf8
from vlhmm.cli.show import facts, print_json, watch

if TYPE_CHECKING:
    from vlhmm.control import Constraint
    from vlhmm.explorer import WrittenPage

Phrases = list[str] | None


def register(app: typer.Typer) -> None:
    app.command(
        epilog='Examples:\n  vlhmm explore runs/demo\n  vlhmm explore runs/demo "the file is not open" --out page.html\n'
        '  vlhmm explore runs/demo "return the name of the file" --must-contain file\n'
        "  vlhmm explore runs/ptb - --corpus ptb --tokens 50000 < sentences.txt"
    )(explore)


def explore(
    folder: ModelDir,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            show_default=False,
            callback=utf8,
            help="The text that is read token by token; `-`: stdin, one text a line; default: some lines of the corpus.",
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="FILE.html", help="The page; a file that exists is replaced.")
    ] = (Path("explorer.html")),
    corpus: Annotated[
        str | None,
        typer.Option(
            "--corpus",
            metavar="CORPUS|FILE",
            show_default=False,
            help="The text whose states are counted; default: the corpus it was trained on.",
        ),
    ] = None,
    split: ValidSplit = None,
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, metavar="N", help="Only the first N tokens of it.")
    ] = 10_000,
    top: Annotated[int, typer.Option("--top", min=1, max=10, help="How many states of each token.")] = 4,
    max_states: Annotated[
        int, typer.Option("--max-states", min=1, metavar="N", help="Only the N most used states are on the map.")
    ] = 4096,
    must_contain: Annotated[
        Phrases,
        typer.Option(
            "--must-contain", callback=utf8, help="Follow the probability that this phrase occurs; may be repeated."
        ),
    ] = None,
    exclude: Annotated[
        Phrases,
        typer.Option("--exclude", callback=utf8, help="The same of a phrase that must not occur; may be repeated."),
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option(
            "--regex", show_default=False, callback=utf8, help="The same of a regular expression for the whole text."
        ),
    ] = None,
    device: DeviceOption = options.Device.auto,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Write one HTML page for looking into a model: a map of its states, posteriors over texts, its training, its blocks."""
    from vlhmm.explorer import exploring, write_page
    from vlhmm.lm import load

    if out.suffix.lower() not in (".html", ".htm"):
        raise ValueError(f"--out {out} is no page's name: let it end in .html")
    constraint = _constraint(must_contain or [], exclude or [], regex)
    texts = None if text is None else list(texts_of(text))
    lm = load(folder, choose_device(device))
    source = None
    if corpus is not None or split is not None:
        source = read_source(lm, folder, corpus, split, Split.valid, data_dir)
    steps = exploring(
        lm,
        source,
        folder=folder,
        data_dir=data_dir,
        texts=texts,
        constraint=constraint,
        top=top,
        max_tokens=tokens,
        max_states=max_states,
    )
    written = write_page(watch(steps, "analysing texts"), out)
    if as_json:
        print_json(written)
    else:
        show_page(written)


def _constraint(must_contain: list[str], exclude: list[str], regex: str | None) -> Constraint | None:
    if not must_contain and not exclude and regex is None:
        return None
    from vlhmm import control
    from vlhmm.control.constraints import all_of

    wanted = [control.contains(phrase) for phrase in must_contain]
    wanted += [control.excludes(phrase) for phrase in exclude]
    wanted += [] if regex is None else [control.regex(regex)]
    return all_of(wanted)


def show_page(written: WrittenPage) -> None:
    shown = (
        f"{written.states_shown:,} of {written.num_states:,}, which emit {written.share_of_tokens:.1%} of the tokens"
    )
    facts(
        [
            ("page", f"{written.file}, {written.num_bytes / 1e6:.1f} MB: open it in a browser"),
            ("states", shown),
            ("text", f"{written.text}, {written.num_tokens:,} tokens"),
            ("read", f"{written.num_texts:,} text{'s' * (written.num_texts != 1)} token by token"),
        ]
    )
