"""`vlhmm inspect`: what a model does inside, on a text."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlhmm.cli import options
from vlhmm.cli.evaluation import SourceArgument, Split, ValidSplit, read_source
from vlhmm.cli.options import DataDir, DeviceOption, Json, ModelDir, check_picture, choose_device
from vlhmm.cli.show import bar, facts, line, print_json, print_table, table, watch

if TYPE_CHECKING:
    from vlhmm.inspection import Inspection, Memory
    from vlhmm.inspection.summary import Range
    from vlhmm.lm import LanguageModel

SHOWN_BLOCKS, BLOCK_WORDS = 8, 5
NEXT_WORDS = 4
MIN_SHOWN = 0.005
"""Words that are rarer would show as 0.00."""


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:\n  vlhmm inspect runs/demo\n  vlhmm inspect runs/demo letters.txt --memory 16\n"
        "  vlhmm inspect runs/ptb ptb --tokens 5000 --plot inside.png"
    )(inspect)


def inspect(
    folder: ModelDir,
    source: SourceArgument = None,
    split: ValidSplit = None,
    tokens: Annotated[
        int | None,
        typer.Option("--tokens", min=2, metavar="N", help="Only the first N tokens; default: all of the text."),
    ] = None,
    memory: Annotated[
        int,
        typer.Option("--memory", min=0, metavar="N", help="The longest context whose perplexity is measured; 0: none."),
    ] = 64,
    top: Annotated[int, typer.Option("--top", min=0, help="How many of the most used states.")] = 12,
    streams: Annotated[
        int, typer.Option("--streams", min=1, help="1: exact; more: faster on a GPU, each warmed up around its part.")
    ] = 1,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png", show_default=False, help="Draw it all as one picture.")
    ] = None,
    device: DeviceOption = options.Device.auto,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """States that a text uses, how sure they are, what they emit and where they lead, and how far back they remember."""
    from vlhmm.distributed import world
    from vlhmm.lm import load
    from vlhmm.reports import first_tokens, inspecting_source

    check_picture(plot)
    lm = load(folder, choose_device(device))
    text = read_source(lm, folder, source, split, Split.valid, data_dir)
    if tokens is not None:
        text = first_tokens(text, tokens)
    found = watch(inspecting_source(lm, text, streams=streams, memory=memory, top=top, here=world()), "reading")
    if plot is not None and world().is_first:
        from vlhmm.inspection.figure import inspection_figure

        inspection_figure(found, plot, f"{folder.name}: {text.label}, perplexity {found.perplexity:,.1f}")
    if as_json:
        print_json(found, text=text.label, streams=streams)
        return
    _show(found, lm, text.label, len(text.tokens))
    if plot is not None:
        line()
        facts([("picture", str(plot))])


def _show(found: Inspection, lm: LanguageModel, label: str, num_tokens: int) -> None:
    reading, usage = found.reading, found.usage
    states_per_word = lm.model.support.states_per_word
    needed = ", ".join(f"{count:,} emit {share:.0%}" for share, count in usage.states_for.items())
    facts(
        [
            ("text", f"{label}: {num_tokens:,} tokens, perplexity {found.perplexity:,.2f}"),
            ("states", f"{usage.num_states:,}; {needed} of the tokens"),
            (
                "",
                f"as spread out as {usage.effective:,.0f} equally used ones; {usage.at_least_one_token:,} emit a token or more",
            ),
            (
                "entropy",
                f"{float(reading.filtered_entropy.mean()):.2f} nats of a token's state given what came before, "
                f"{float(reading.smoothed_entropy.mean()):.2f} given the whole text; "
                f"{math.log(states_per_word):.2f} if its {states_per_word:,} states were equally likely",
            ),
        ]
    )
    if found.memory is not None:
        line()
        _show_memory(found.memory)
    for name, ranges in (("place in line", found.by_line_position), ("training count", found.by_frequency)):
        if ranges:
            line()
            _show_ranges(name, ranges)
    if len(found.blocks) > 1:
        line()
        _show_blocks(found, lm)
    if found.states:
        line()
        _show_states(found, lm)


def _show_memory(memory: Memory) -> None:
    lengths = [0, *(2**power for power in range(memory.longest.bit_length()))]
    shown = table("tokens known", "perplexity", "", right=("tokens known", "perplexity"))
    highest = memory.perplexity[0]
    for length in lengths:
        value = memory.perplexity[length]
        shown.add_row(f"{length}", f"{value:,.2f}", bar(value / highest))
    shown.add_row("all", f"{memory.unlimited:,.2f}", bar(memory.unlimited / highest))
    print_table(shown)
    line(f"of the {memory.num_tokens:,} tokens that have at least {memory.longest:,} before them", style="dim")


def _show_ranges(name: str, ranges: list[Range]) -> None:
    shown = table(name, "tokens", "perplexity", "of all nats", right=("tokens", "perplexity", "of all nats"))
    for one in ranges:
        shown.add_row(one.label, f"{one.num_tokens:,}", f"{one.perplexity:,.1f}", f"{one.share_of_nats:.1%}")
    print_table(shown)


def _show_blocks(found: Inspection, lm: LanguageModel) -> None:
    numbers = ("block", "words", "tokens", "states", "as if equal", "for 90 %")
    shown = table(*numbers, "most frequent", right=numbers)
    for one in found.blocks[:SHOWN_BLOCKS]:
        words = (lm.model.support.group_of_word == one.block).nonzero()[:BLOCK_WORDS, 0].tolist()
        shown.add_row(
            str(one.block),
            f"{one.num_words:,}",
            f"{one.usage.num_tokens:,.0f}",
            f"{one.usage.num_states:,}",
            f"{one.usage.effective:,.1f}",
            f"{one.usage.states_for[0.9]:,}",
            # Tokenizers number frequent words first.
            " ".join(lm.tokenizer.shown(lm.tokenizer.token(word)) for word in words),
        )
    print_table(shown)


def _show_states(found: Inspection, lm: LanguageModel) -> None:
    shown = table("state", "block", "tokens", "emits", "leads to", right=("state", "block", "tokens"))
    for one in found.states:
        shown.add_row(
            str(one.state.state),
            str(one.state.block),
            f"{one.num_tokens:,.1f}",
            _words(one.state.words, lm),
            _words(one.next_words[:NEXT_WORDS], lm),
        )
    print_table(shown)


def _words(words: list[tuple[str, float]], lm: LanguageModel) -> str:
    return " ".join(f"{lm.tokenizer.shown(word)} {prob:.2f}" for word, prob in words if prob >= MIN_SHOWN)
