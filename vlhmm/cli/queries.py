"""`vlhmm score | next | posterior | viterbi | generate`: questions to a trained model."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text

from vlhmm.cli.options import Json, ModelDir, TextOrStdin, texts_of
from vlhmm.cli.show import bar, line, print_json, print_table, table

if TYPE_CHECKING:
    from vlhmm.lm import BestPath, NamedState, Score, TokenPosterior

FULL_BAR_NATS = 12.0
"""The surprise at which a bar is full: a token of probability 6e-6."""
LEAST_SHOWN = 0.005
"""Words of a state that are rarer would show as 0.00."""
STATE_COLOURS = ("bright_green", "green", "yellow", "bright_black")
"""For probabilities of at least 1/2, 1/4, 1/10, and less."""


def register(app: typer.Typer) -> None:
    app.command(
        epilog='Examples:\n  vlhmm score runs/demo "return the name of the file"\n'
        "  cat sentences.txt | vlhmm score runs/demo --json | jq .perplexity"
    )(score)
    app.command("next", epilog='Example:\n  vlhmm next runs/demo "return the name of the" --top 5')(next_tokens)
    app.command(epilog='Example:\n  vlhmm posterior runs/demo "the file is not open" --top 3')(posterior)
    app.command(epilog='Example:\n  vlhmm viterbi runs/demo "the file is not open"')(viterbi)
    app.command(
        epilog='Examples:\n  vlhmm generate runs/demo --prompt "return a" --num 5\n'
        "  vlhmm generate runs/demo --num 100 --seed 1 > sample.txt"
    )(generate)


def score(
    folder: ModelDir,
    text: TextOrStdin = None,
    eos: Annotated[bool, typer.Option("--eos", help="Score the end of the line too.")] = False,
    as_json: Json = False,
) -> None:
    """How surprised the model is by each token of a text."""
    from vlhmm.lm import load

    lm = load(folder)
    for number, one in enumerate(texts_of(text)):
        scored = lm.score(one, eos=eos)
        if as_json:
            print_json(
                {
                    "text": one,
                    "log_prob": scored.log_prob,
                    "perplexity": scored.perplexity,
                    "tokens": [{"token": token.token, "log_prob": token.log_prob} for token in scored.tokens],
                }
            )
        else:
            _between(number)
            _print_score(scored)


def _print_score(scored: Score) -> None:
    shown = table("token", "log p", "", right=("log p",))
    for token in scored.tokens:
        surprise = -token.log_prob / FULL_BAR_NATS
        style = "green" if surprise < 0.25 else "yellow" if surprise < 0.6 else "red"
        shown.add_row(token.token, f"{token.log_prob:.2f}", bar(surprise, style))
    print_table(shown)
    line()
    line(f"log p {scored.log_prob:.2f} nats, {len(scored.tokens)} tokens, perplexity {scored.perplexity:,.1f}")


def next_tokens(
    folder: ModelDir,
    text: Annotated[
        str, typer.Argument(metavar="[TEXT]", show_default=False, help="What came before; `-`: stdin, a text a line.")
    ] = "",
    top: Annotated[int, typer.Option("--top", help="How many tokens.")] = 10,
    as_json: Json = False,
) -> None:
    """The most likely next tokens."""
    from vlhmm.lm import load

    lm = load(folder)
    for number, one in enumerate(texts_of(text)):
        best = lm.next_tokens(one, top)
        if as_json:
            print_json({"text": one, "next": [{"token": token, "prob": prob} for token, prob in best]})
            continue
        _between(number)
        shown = table("token", "p", "", right=("p",))
        for token, prob in best:
            shown.add_row(token, f"{prob:.4f}", bar(prob / best[0][1]))
        print_table(shown)


def posterior(
    folder: ModelDir,
    text: TextOrStdin = None,
    top: Annotated[int, typer.Option("--top", min=1, help="How many states of each token.")] = 3,
    as_json: Json = False,
) -> None:
    """The states each token most likely came from."""
    from vlhmm.lm import load

    lm = load(folder)
    for number, one in enumerate(texts_of(text)):
        tokens = lm.posterior(one, top)
        if as_json:
            print_json({"text": one, "tokens": [_posterior_json(token) for token in tokens]})
        else:
            _between(number)
            _print_posterior(tokens)


def _posterior_json(token: TokenPosterior) -> dict[str, Any]:
    return {
        "token": token.token,
        "entropy": token.entropy,
        "states": [{"prob": prob, **_state_json(state)} for state, prob in token.states],
    }


def _print_posterior(tokens: list[TokenPosterior]) -> None:
    shown = table("token", "entropy", "p", "state", "block", "its words", right=("entropy", "p", "state", "block"))
    for token in tokens:
        for rank, (state, prob) in enumerate(token.states):
            colour = STATE_COLOURS[next((i for i, least in enumerate((0.5, 0.25, 0.1)) if prob >= least), 3)]
            shown.add_row(
                Text(token.token if rank == 0 else "", "bold"),
                f"{token.entropy:.2f}" if rank == 0 else "",
                Text(f"{prob:.3f}", colour),
                Text(str(state.state), colour),
                str(state.block),
                _state_words(state, token.token),
            )
    print_table(shown)


def viterbi(folder: ModelDir, text: TextOrStdin = None, as_json: Json = False) -> None:
    """The single most likely path of states."""
    from vlhmm.lm import load

    lm = load(folder)
    for number, one in enumerate(texts_of(text)):
        path = lm.viterbi(one)
        if as_json:
            states = [
                {"token": token, **_state_json(state)} for token, state in zip(path.tokens, path.states, strict=True)
            ]
            print_json({"text": one, "log_prob": path.log_prob, "tokens": states})
        else:
            _between(number)
            print_path(path)
            line()
            line(f"log p(text, states) {path.log_prob:.2f} nats")


def print_path(path: BestPath) -> None:
    shown = table("token", "state", "block", "its words", right=("state", "block"))
    for token, state in zip(path.tokens, path.states, strict=True):
        shown.add_row(
            Text(token, "bold"), Text(str(state.state), "green"), str(state.block), _state_words(state, token)
        )
    print_table(shown)


def generate(
    folder: ModelDir,
    prompt: Annotated[str, typer.Option("--prompt", help="What the texts begin with.", show_default=False)] = "",
    num: Annotated[int, typer.Option("--num", help="How many texts.")] = 1,
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="New tokens of a text at most.")] = 50,
    temperature: Annotated[
        float, typer.Option("--temperature", help="Below 1: likelier tokens; above 1: more surprising ones.")
    ] = 1.0,
    top_k: Annotated[
        int | None, typer.Option("--top-k", show_default=False, help="Only the K likeliest tokens.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", show_default=False, help="The same seed, the same texts.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Draw texts from the model, one a line."""
    import torch

    from vlhmm.lm import load

    lm = load(folder)
    generator = torch.Generator()
    if seed is None:
        generator.seed()
    else:
        generator.manual_seed(seed)
    texts = lm.generate(
        prompt, max_tokens=max_tokens, num=num, temperature=temperature, top_k=top_k, generator=generator
    )
    for text in texts:
        # One text a line, whatever it holds.
        one_line = " ".join(text.splitlines())
        if as_json:
            print_json({"text": text})
        else:
            line(one_line)


def _state_json(state: NamedState) -> dict[str, Any]:
    return {
        "state": state.state,
        "block": state.block,
        "words": [{"word": word, "prob": prob} for word, prob in state.words],
    }


def _state_words(state: NamedState, token: str) -> Text:
    """The words of a state, the token itself among them set off."""
    text = Text()
    for number, (word, prob) in enumerate(state.words):
        if number and prob < LEAST_SHOWN:
            break
        text.append(" " if number else "")
        text.append(word, "bold cyan" if word == token else "")
        text.append(f" {prob:.2f}".replace("0.", "."), "dim")
    return text


def _between(number: int) -> None:
    if number:
        line()
