"""`vlhmm infill`: what may stand in the gaps of a text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from vlhmm.cli.options import AllowUnk, Json, ModelDir, seeded, texts_of, utf8
from vlhmm.cli.queries import MIN_SHOWN, between
from vlhmm.cli.show import line, print_json, print_table, table

if TYPE_CHECKING:
    from vlhmm.text.answers import Infilling


def register(app: typer.Typer) -> None:
    app.command(
        epilog='Examples:\n  vlhmm infill runs/demo "return the ___ of the file"\n'
        '  vlhmm infill runs/demo "if the ___{1,3} is closed" --num 10 --seed 1'
    )(infill)


def infill(
    folder: ModelDir,
    text: Annotated[
        str | None,
        typer.Argument(
            metavar="TEXT",
            show_default=False,
            callback=utf8,
            help="The text with ___ for a missing word, ___{1,4} for one to four tokens; default or `-`: stdin, one text a line.",
        ),
    ] = None,
    num: Annotated[int, typer.Option("--num", help="How many samples.")] = 5,
    top: Annotated[int, typer.Option("--top", help="How many tokens of each position.")] = 5,
    gap: Annotated[
        str | None,
        typer.Option(
            "--gap", metavar="A-B", show_default=False, help="How many tokens ___ stands for; default: one word."
        ),
    ] = None,
    max_gap_tokens: Annotated[
        int, typer.Option("--max-gap-tokens", metavar="N", help="Longest word in tokens, with a subword tokenizer.")
    ] = 8,
    eos: Annotated[bool, typer.Option("--eos", help="The text ends after its last word.")] = False,
    exclude: Annotated[
        list[str] | None,
        typer.Option(
            "--exclude", metavar="TOKEN", show_default=False, callback=utf8, help="Never fill this in; may be repeated."
        ),
    ] = None,
    allow_unk: AllowUnk = False,
    seed: Annotated[
        int | None, typer.Option("--seed", show_default=False, help="The same seed, the same samples.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What may stand in the gaps of a text, given the words on both sides."""
    from vlhmm.lm import load
    from vlhmm.text.pieces import split_at_gaps

    bounds = None if gap is None else _bounds(gap)
    lm = load(folder)
    generator = seeded(seed)
    for number, one in enumerate(texts_of(text)):
        filled = lm.infill(
            one,
            num=num,
            top=top,
            gap=bounds,
            max_gap_tokens=max_gap_tokens,
            eos=eos,
            exclude=exclude or (),
            unk=allow_unk,
            seed=generator,
        )
        if as_json:
            print_json(filled, text=one)
        else:
            between(number)
            plain = None if lm.tokenizer.word_level or bounds is not None else [*split_at_gaps(one, None)[1]]
            # Of gaps that stand for words, words are listed, else tokens by their names.
            words = plain is not None and None in plain
            _print_infilling(filled, str if words else lm.tokenizer.shown)


def _bounds(gap: str) -> tuple[int, int]:
    bounds = gap.split("-")
    if len(bounds) != 2 or not all(bound.isdecimal() for bound in bounds):
        raise ValueError(f"--gap is {gap!r}, but two numbers are needed: A-B, e.g. 1-4")
    return int(bounds[0]), int(bounds[1])


def _print_infilling(filled: Infilling, name: Callable[[str], str]) -> None:
    shown = table("gap", "how many tokens", "likeliest")
    for number, gap in enumerate(filled.gaps, start=1):
        lengths = Text(str(gap.lengths[0][0])) if len(gap.lengths) == 1 else _with_probs(gap.lengths)
        for position, tokens in enumerate(gap.tokens):
            shown.add_row(
                Text("" if position else str(number), "bold"),
                "" if position else lengths,
                _with_probs([(name(token), prob) for token, prob in tokens]),
            )
    print_table(shown)
    line()
    names = [f"gap {number}" for number in range(1, len(filled.gaps) + 1)]
    fillings = table("", "log p", *names, "text", right=("log p",))
    for label, one in [("best", filled.best), *(("sample", sample) for sample in filled.samples)]:
        style = "bold green" if label == "best" else "cyan"
        inside = [Text(tokens, style) for tokens in one.gaps]
        fillings.add_row(Text(label, "dim"), f"{one.log_prob:.2f}", *inside, " ".join(one.text.splitlines()))
    print_table(fillings)


def _with_probs(entries: Sequence[tuple[object, float]]) -> Text:
    """Things with their probabilities, the first in any case."""
    text = Text()
    for number, (thing, prob) in enumerate(entries):
        if number and prob < MIN_SHOWN:
            break
        text.append(f"{' ' if number else ''}{thing}")
        text.append(f" {prob:.2f}".replace("0.", "."), "dim")
    return text
