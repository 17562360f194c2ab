"""`vlhmm generate`: texts drawn from a trained model, held to constraints if wanted."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlhmm.cli.options import AllowUnk, Json, ModelDir, seeded, utf8
from vlhmm.cli.show import line, print_json

if TYPE_CHECKING:
    from vlhmm.control import Constraint
    from vlhmm.text.answers import BestText, GeneratedText

Phrases = list[str] | None
CONSTRAINTS = "Constraints on the new text"
DRAWN_AT_ONCE = 1000
"""Texts: so many are printed before the next are drawn."""


def register(app: typer.Typer) -> None:
    app.command(
        epilog='Examples:\n  vlhmm generate runs/demo --prompt "return a" --num 5\n'
        "  vlhmm generate runs/demo --must-contain file --must-contain name --words 8-15 --num 5\n"
        '  vlhmm generate runs/demo --regex "if the (file|name) is .*" --best\n'
        "  vlhmm generate runs/demo --num 100 --seed 1 > sample.txt"
    )(generate)


def generate(
    folder: ModelDir,
    prompt: Annotated[
        str, typer.Option("--prompt", callback=utf8, help="What the texts begin with.", show_default=False)
    ] = "",
    num: Annotated[int, typer.Option("--num", help="How many texts.")] = 1,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="New tokens of a text at most.")] = 50,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Below 1: likelier tokens; above 1: more surprising ones.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", show_default=False, help="Only the K likeliest tokens.")
    ] = None,
    top_p: Annotated[
        float | None,
        typer.Option("--top-p", show_default=False, help="Only the likeliest tokens whose probabilities sum to P."),
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", show_default=False, help="The same seed, the same texts.")
    ] = None,
    best: Annotated[
        bool, typer.Option("--best", help="No sampling: the one text that is likeliest together with its states.")
    ] = False,
    must_contain: Annotated[
        Phrases,
        typer.Option(
            "--must-contain",
            callback=utf8,
            help="A phrase that must occur; may be repeated.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    exclude: Annotated[
        Phrases,
        typer.Option(
            "--exclude",
            callback=utf8,
            help="A phrase that must not occur; may be repeated.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    starts_with: Annotated[
        str | None,
        typer.Option(
            "--starts-with",
            show_default=False,
            callback=utf8,
            help="How the new text begins.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    ends_with: Annotated[
        str | None,
        typer.Option(
            "--ends-with", show_default=False, callback=utf8, help="How the text ends.", rich_help_panel=CONSTRAINTS
        ),
    ] = None,
    regex: Annotated[
        str | None,
        typer.Option(
            "--regex",
            show_default=False,
            callback=utf8,
            help="A regular expression that all of the new text matches.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    json_schema: Annotated[
        Path | None,
        typer.Option(
            "--json-schema",
            metavar="FILE",
            show_default=False,
            help="The new text is JSON that satisfies the schema in this file.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    choice: Annotated[
        Phrases,
        typer.Option(
            "--choice",
            callback=utf8,
            help="What the new text may be; repeated for each.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option(
            "--words", metavar="A-B", show_default=False, help="New words: 8-15, 8- or 8.", rich_help_panel=CONSTRAINTS
        ),
    ] = None,
    length: Annotated[
        str | None,
        typer.Option(
            "--length",
            metavar="A-B",
            show_default=False,
            help="New tokens: 8-15, 8- or 8.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    ignore_case: Annotated[
        bool, typer.Option("--ignore-case", help="Match phrases in any case.", rich_help_panel=CONSTRAINTS)
    ] = False,
    allow_unk: AllowUnk = False,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit",
            metavar="SECONDS",
            show_default=False,
            help="Refuse constraints that take longer to compile (default: 2); inf: no limit.",
            rich_help_panel=CONSTRAINTS,
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw texts from the model, one a line.

    With constraints they are exact samples of p(text | constraints) at temperature 1; the constraints hold at any temperature.
    """
    from vlhmm import control
    from vlhmm.data.json_file import read_text

    wanted: list[Constraint] = []
    wanted += [control.contains(phrase, ignore_case=ignore_case) for phrase in must_contain or []]
    wanted += [control.excludes(phrase, ignore_case=ignore_case) for phrase in exclude or []]
    if starts_with is not None:
        wanted.append(control.starts_with(starts_with, ignore_case=ignore_case))
    if ends_with is not None:
        wanted.append(control.ends_with(ends_with, ignore_case=ignore_case))
    if regex is not None:
        wanted.append(control.regex(regex))
    if json_schema is not None:
        wanted.append(control.json_schema(read_text(json_schema)))
    if choice:
        wanted.append(control.choice(choice))
    wanted += _range("--words", words, control.words) + _range("--length", length, control.length)
    if best and (num != 1 or temperature != 1.0 or top_k is not None or top_p is not None or seed is not None):
        raise ValueError(
            "--best is one text and draws nothing: leave out --num, --seed, --temperature, --top-k, --top-p"
        )

    from vlhmm.control.constraints import all_of
    from vlhmm.control.time_limit import TIME_LIMIT
    from vlhmm.lm import load
    from vlhmm.text.answers import GeneratedText

    lm = load(folder)
    constraint = all_of(wanted) if wanted else None
    seconds = TIME_LIMIT if time_limit is None else time_limit
    if best:
        found = lm.best_text(prompt, max_tokens=max_tokens, constraint=constraint, unk=allow_unk, time_limit=seconds)
        _print(found, as_json)
        return
    generator = seeded(seed)
    # At least once: it also says what is wrong with --num.
    for first in range(0, max(num, 1), DRAWN_AT_ONCE):
        texts = lm.generate(
            prompt,
            max_tokens=max_tokens,
            num=min(num - first, DRAWN_AT_ONCE),
            temperature=temperature,
            top_k=top_k,
            top_p=top_p,
            constraint=constraint,
            unk=allow_unk,
            seed=generator,
            time_limit=seconds,
        )
        for text in texts:
            _print(GeneratedText(text), as_json)


def _range(option: str, text: str | None, make: Callable[[int, int | None], Constraint]) -> list[Constraint]:
    """`8-15`, `8-` or `8`."""
    if text is None:
        return []
    numbers = re.fullmatch(r"(\d+)(?:(-)(\d+)?)?", text.strip())
    if numbers is None:
        raise ValueError(f"{option} is {text!r}, but it must be a range such as 8-15, 8- or 8")
    first, dash, last = numbers.groups()
    at_most = int(first) if dash is None else None if last is None else int(last)
    return [make(int(first), at_most)]


def _print(made: GeneratedText | BestText, as_json: bool) -> None:
    if as_json:
        print_json(made)
    else:
        # One text a line, whatever it holds.
        line(" ".join(made.text.splitlines()))
