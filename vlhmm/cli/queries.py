"""`vlhmm score | next | posterior | viterbi`: questions to a trained model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from vlhmm.cli.options import AllowUnk, Json, ModelDir, TextOrStdin, check_picture, texts_of, utf8
from vlhmm.cli.ranks import answered, first_rank
from vlhmm.cli.show import BAR_WIDTH, bar, console, line, print_json, print_table, table

if TYPE_CHECKING:
    from vlhmm.text.answers import BestPath, Explanation, NamedState, NextTokens, Score

Naming = Callable[[str], str]
"""A token's name in the vocabulary to how it is shown: `Tokenizer.shown`."""
FULL_BAR_NATS = 12.0
"""The surprise at which a bar is full: a token of probability 6e-6."""
MIN_SHOWN = 0.005
"""Words of a state that are rarer would show as 0.00."""
NEIGHBOURS_WIDTH = 110
"""Narrower terminals have no room for the states before and after."""
WHOLE_WIDTH = 60
"""Narrower ones have no room for bars and blocks beside words."""
PLOTTED_STATES = 4
"""States of each word in a picture."""
STATE_COLOURS = ("bright_green", "green", "yellow", "bright_black")
"""For probabilities of at least 1/2, 1/4, 1/10, and less."""


def register(app: typer.Typer) -> None:
    app.command(
        epilog='Examples:\n  vlhmm score runs/demo "return the name of the file"\n'
        "  cat sentences.txt | vlhmm score runs/demo --json | jq .perplexity"
    )(score)
    app.command("next", epilog='Example:\n  vlhmm next runs/demo "return the name of the" --top 5')(next_tokens)
    app.command(
        epilog='Examples:\n  vlhmm posterior runs/demo "the file is not open" --top 3\n'
        '  vlhmm posterior runs/demo "the file is not open" --plot states.png'
    )(posterior)
    app.command(epilog='Example:\n  vlhmm viterbi runs/demo "the file is not open" --k 5')(viterbi)


def score(
    folder: ModelDir,
    text: TextOrStdin = None,
    eos: Annotated[bool, typer.Option("--eos", help="Score the end of the line too.")] = False,
    as_json: Json = False,
) -> None:
    """How surprised the model is by each token of a text."""
    from vlhmm.lm import load

    lm = load(folder)
    answers = answered(lambda: texts_of(text), lambda one: lm.score(one, eos=eos))
    for number, (one, scored) in enumerate(answers):
        if as_json:
            print_json(scored, text=one)
        else:
            between(number)
            _print_score(scored, lm.tokenizer.shown)


def _print_score(scored: Score, name: Naming) -> None:
    shown = table("token", "log p", "", right=("log p",))
    for token in scored.tokens:
        shown.add_row(name(token.token), f"{token.log_prob:.2f}", _surprise_bar(token.log_prob))
    print_table(shown)
    line()
    line(f"log p {scored.log_prob:.2f} nats, {len(scored.tokens)} tokens, perplexity {scored.perplexity:,.1f}")


def _surprise_bar(log_prob: float, width: int = BAR_WIDTH) -> Text:
    surprise = -log_prob / FULL_BAR_NATS
    return bar(surprise, "green" if surprise < 0.25 else "yellow" if surprise < 0.6 else "red", width)


def next_tokens(
    folder: ModelDir,
    text: Annotated[
        str,
        typer.Argument(
            metavar="TEXT", show_default=False, callback=utf8, help="The text so far; `-`: stdin, a text a line."
        ),
    ] = "",
    top: Annotated[int, typer.Option("--top", help="How many tokens.")] = 10,
    allow_unk: AllowUnk = False,
    as_json: Json = False,
) -> None:
    """The most likely next tokens."""
    from vlhmm.lm import load
    from vlhmm.text.answers import NextTokens

    lm = load(folder)
    answers = answered(lambda: texts_of(text), lambda one: NextTokens(lm.next_tokens(one, top, unk=allow_unk)))
    for number, (one, best) in enumerate(answers):
        if as_json:
            print_json(best, text=one)
        else:
            between(number)
            _print_next(best, lm.tokenizer.shown)


def _print_next(best: NextTokens, name: Naming) -> None:
    shown = table("token", "p", "", right=("p",))
    for token, prob in best.tokens:
        shown.add_row(name(token), f"{prob:.4f}", bar(prob / best.tokens[0][1]))
    print_table(shown)


def posterior(
    folder: ModelDir,
    text: TextOrStdin = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many states of each token.")] = 3,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png", show_default=False, help="Draw the states against the words."),
    ] = None,
    as_json: Json = False,
) -> None:
    """How surprising each token is, the states it most likely came from, and the states before and after these."""
    from vlhmm.lm import load
    from vlhmm.plot import trellis

    check_picture(plot)
    lm = load(folder)

    def texts() -> Iterable[str]:
        found = texts_of(text) if plot is None else list(texts_of(text))
        if isinstance(found, list) and len(found) > 1:
            raise ValueError(f"--plot draws 1 text, but stdin has {len(found)}: give one text for {plot}")
        return found

    for number, (one, explanation) in enumerate(answered(texts, lambda one: lm.explain(one, top))):
        if as_json:
            print_json(explanation, text=one)
        else:
            between(number)
            _print_explanation(explanation, lm.tokenizer.shown)
        if plot is not None and first_rank():
            trellis(lm.explain(one, PLOTTED_STATES, PLOTTED_STATES), plot, lm.tokenizer.shown)
            if not as_json:
                line(f"picture  {plot}")


def _print_explanation(explanation: Explanation, name: Naming) -> None:
    width = console().width
    neighbours = ("before it", "after it") if width >= NEIGHBOURS_WIDTH else ()
    wide = width >= WHOLE_WIDTH
    columns = ("token", "nats", *([""] * wide), "p", "state", *(["block"] * wide), "its words", *neighbours)
    shown = table(*columns, right=("nats", "p", "state", "block"))
    for token in explanation.tokens:
        for rank, one in enumerate(token.states):
            colour = STATE_COLOURS[next((i for i, least in enumerate((0.5, 0.25, 0.1)) if one.prob >= least), 3)]
            first = rank == 0
            shown.add_row(
                Text(name(token.token) if first else "", "bold"),
                f"{token.surprisal:.2f}" if first else "",
                *([_surprise_bar(token.log_prob, width=8) if first else ""] * wide),
                Text(f"{one.prob:.3f}", colour),
                Text(str(one.state.state), colour),
                *([str(one.state.block)] * wide),
                _state_words(one.state, token.token, name, most=3),
                *(_neighbour(states, name) for states in (one.previous, one.next) if neighbours),
            )
    print_table(shown)
    line()
    scored = explanation.score
    line(
        f"log p {scored.log_prob:.2f} nats, {len(scored.tokens)} tokens, perplexity {scored.perplexity:,.1f}; "
        f"entropy of the state path {explanation.path_entropy:.2f} nats"
    )


def _neighbour(states: list[tuple[NamedState, float]], name: Naming) -> Text:
    """The likeliest neighbour: its number, its likeliest word, and how likely it is."""
    if not states:
        return Text()
    state, prob = states[0]
    text = Text(f"{state.state} ")
    text.append(" ".join(name(word) for word, _ in state.words[:1]))
    return text.append(f" {prob:.2f}".replace("0.", "."), "dim")


def viterbi(
    folder: ModelDir,
    text: TextOrStdin = None,
    k: Annotated[int, typer.Option("--k", help="How many paths, 1 to 100.")] = 1,
    as_json: Json = False,
) -> None:
    """The most likely paths of states. With --json one object a path."""
    from vlhmm.lm import load

    lm = load(folder)
    for number, (one, paths) in enumerate(answered(lambda: texts_of(text), lambda one: lm.viterbi(one, k))):
        if as_json:
            for rank, path in enumerate(paths, start=1):
                print_json(path, text=one, rank=rank)
            continue
        between(number)
        print_path(paths[0], lm.tokenizer.shown)
        line()
        line(f"log p(text, states) {paths[0].log_prob:.2f} nats")
        if k > 1:
            line()
            _print_paths(paths, lm.score(one).log_prob)


def _print_paths(paths: list[BestPath], log_prob: float) -> None:
    """Each path's states; those that differ from the best path's set off."""
    numbers = ("path", "log p", "p given text")
    shown = table(*numbers, "states, token by token", right=numbers)
    width = max(len(str(state.state)) for path in paths for state in path.states)
    for rank, path in enumerate(paths, start=1):
        # As many lines as it takes: a state's number cut short is none.
        states = Text(no_wrap=False)
        for state, best in zip(path.states, paths[0].states, strict=True):
            states.append(f"{state.state:>{width}} ", "green" if state == best else "bold yellow")
        shown.add_row(str(rank), f"{path.log_prob:.2f}", f"{math.exp(path.log_prob - log_prob):.2g}", states)
    print_table(shown)


def print_path(path: BestPath, name: Naming) -> None:
    shown = table("token", "state", "block", "its words", right=("state", "block"))
    for token, state in zip(path.tokens, path.states, strict=True):
        shown.add_row(
            Text(name(token), "bold"),
            Text(str(state.state), "green"),
            str(state.block),
            _state_words(state, token, name),
        )
    print_table(shown)


def _state_words(state: NamedState, token: str, name: Naming, most: int | None = None) -> Text:
    """The words of a state, the token itself among them set off."""
    text = Text()
    for number, (word, prob) in enumerate(state.words[:most]):
        if number and prob < MIN_SHOWN:
            break
        text.append(" " if number else "")
        text.append(name(word), "bold cyan" if word == token else "")
        text.append(f" {prob:.2f}".replace("0.", "."), "dim")
    return text


def between(number: int) -> None:
    if number:
        line()
