"""`vlhmm demo`: from nothing to a model one can look into, in two minutes."""

from __future__ import annotations

import time
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from vlhmm.cli import options
from vlhmm.cli.options import DeviceOption, Json, choose_device, read_corpus
from vlhmm.cli.show import (
    command_line,
    duration,
    facts,
    line,
    message,
    print_json,
    print_table,
    program,
    table,
    watch,
)

if TYPE_CHECKING:
    from vlhmm.data import Corpus
    from vlhmm.reports import RunResults

NUM_SENTENCES, SENTENCE_TOKENS = 10, 40
PAGE = "explorer.html"
SHOWN_WORDS = (6, 12)
"""The sentence with its states has at least and at most so many words."""


def register(app: typer.Typer) -> None:
    app.command(epilog="Examples:\n  vlhmm demo\n  vlhmm demo --data letters.txt --out runs/letters")(demo)


def demo(
    data: Annotated[
        str, typer.Option("--data", metavar="CORPUS", help="The text; pydocs is Python's own documentation.")
    ] = "pydocs",
    out: Annotated[Path, typer.Option("--out", help="The folder; a number is added where it exists already.")] = Path(
        "runs/demo"
    ),
    changes: Annotated[
        list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="One setting of the preset; repeat it.")
    ] = None,
    device: DeviceOption = options.Device.auto,
    as_json: Json = False,
) -> int:
    """Train on Python's own documentation, and look at the result."""
    from vlhmm.cli.running import exit_status, watch_run
    from vlhmm.cli.settings import Asked
    from vlhmm.reports import Plan, training_run

    begun = time.monotonic()
    recipe = Asked("demo", None, tuple(changes or ()), None).recipe()
    folder = _fresh(out)
    corpus = read_corpus(data, None)
    plan = Plan(recipe, data, None)
    events = training_run(plan, corpus, folder, device=choose_device(device), command=command_line())
    results = watch_run(events, plan, folder)
    if status := exit_status(results, folder):
        return status
    if as_json:
        print_json(results, folder=str(folder))
        return 0
    _show_perplexity(results, corpus)
    _show_model(folder, corpus)
    _show_next_steps(folder, results)
    _write_page(folder)
    message(f"all in {duration(time.monotonic() - begun)}")
    return 0


def _fresh(out: Path) -> Path:
    """`out`, or the first of out-2, out-3, ... that does not exist."""
    names = (out if number == 1 else out.with_name(f"{out.name}-{number}") for number in count(1))
    return next(name for name in names if not name.exists())


def _heading(text: str) -> None:
    line()
    line(text, style="bold")


def _show_perplexity(results: RunResults, corpus: Corpus) -> None:
    from vlhmm.reports import HeldOutText
    from vlhmm.reports.sources import corpus_label

    assert isinstance(results.figures, HeldOutText)
    _heading(f"Perplexity on text the model has not seen: {corpus_label(corpus)}")
    shown = table("model", "valid", "test", right=("valid", "test"))
    for name, scores in results.figures.perplexity.items():
        label = f"HMM, {results.num_states:,} states" if name == "HMM" else name
        style = "bold green" if name == "HMM" else ""
        shown.add_row(Text(label, style), Text(f"{scores['valid']:,.1f}", style), Text(f"{scores['test']:,.1f}", style))
    print_table(shown)


def _show_model(folder: Path, corpus: Corpus) -> None:
    from vlhmm.cli.queries import print_path
    from vlhmm.lm import load

    lm = load(folder)
    _heading("Ten sentences from the model")
    texts = lm.generate(num=NUM_SENTENCES, max_tokens=SENTENCE_TOKENS, seed=0)
    facts([(str(number), " ".join(text.splitlines())) for number, text in enumerate(texts, 1)])
    _heading("A sentence of the test text, and the words of the states it most likely came from")
    print_path(lm.viterbi(_sentence(corpus)), lm.tokenizer.shown)


def _sentence(corpus: Corpus) -> str:
    """The first line of the test text that is neither short nor long and has no unknown word."""
    tokenizer = corpus.tokenizer
    words: list[int] = []
    for token in corpus.test.ids[:].tolist():
        if token != tokenizer.eos_id:
            words.append(token)
            continue
        if SHOWN_WORDS[0] <= len(words) <= SHOWN_WORDS[1] and tokenizer.unk_id not in words:
            return tokenizer.decode(words)
        words = []
    return tokenizer.decode(corpus.test.ids[: SHOWN_WORDS[1]].tolist())


def _write_page(folder: Path) -> None:
    from vlhmm.explorer import exploring, write_page
    from vlhmm.lm import load

    data = watch(exploring(load(folder), folder=folder), "analysing texts")
    _heading("A page to look into the model with")
    line(write_page(data, folder / PAGE).file)


def _show_next_steps(folder: Path, results: RunResults) -> None:
    from vlhmm.cli.running import export_hint

    _heading("Saved")
    saved = [("model and training run", str(folder)), ("to ship the model alone", export_hint(folder))]
    if results.learning_curve:
        saved.append(("learning curve", results.learning_curve))
    facts(saved)
    _heading("What to type next")
    for command in (
        f'score {folder} "return the name of the file"',
        f'next {folder} "return the name of the"',
        f'posterior {folder} "the file is not open"',
        f'generate {folder} --prompt "return a" --num 5',
        f"info {folder}",
        f'explore {folder} "return the name of the file" --must-contain file',
    ):
        line(f"  {program()} {command}")
