"""Every name that the frozen tests take from inside the package, in one place: when modules move, this file alone changes."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import typer.main
from torch import Tensor

import vlhmm
from experiments.claims import Verdict
from experiments.cli import commands as experiment_commands
from experiments.results import read_result, results_folders
from experiments.show import show_table
from experiments.table_file import read_table
from experiments.texts import checksums
from vlhmm.baselines import (
    AWDLSTMSettings,
    BuysHMMSettings,
    FeedForwardSettings,
    LSTMSettings,
    TrainedBaseline,
    train_baseline,
)
from vlhmm.cli import app, main
from vlhmm.distillation.decoder import (
    DecoderSettings,
    DecoderTraining,
    TrainedDecoder,
    decoder_perplexity,
    decoder_training,
    load_decoder,
    save_decoder,
    train_decoder,
)
from vlhmm.distillation.lvd import LVDSettings, StateClusters, lvd_training
from vlhmm.distillation.pipeline import drawing
from vlhmm.distillation.teachers.model import teacher_of
from vlhmm.evaluate import evaluate
from vlhmm.support import Support, blocked_support, cloned_support, dense_support
from vlhmm.tables import Tables
from vlhmm.training.em import EMSettings, em_training
from vlhmm.training.gradient import training
from vlhmm.training.presets import Recipe
from vlhmm.training.trainer import CheckEvent, StepEvent
from vlhmm.transitions import BlockFactoredTransition, SoftmaxTransition, TableTransition

__all__ = ["Support", "blocked_support", "cloned_support", "dense_support", "tables_of"]


def tables_of(
    support: Support, transition: str, numbers: dict[str, Tensor], reset_token: int | None, *, precision: str = "bf16"
) -> Tables:
    """The record of an HMM with these numbers, which are normalised already."""
    made: TableTransition | SoftmaxTransition | BlockFactoredTransition
    if transition == "table":
        made = TableTransition(numbers["log_transition"])
    elif transition == "softmax":
        made = SoftmaxTransition(numbers["out"], numbers["into"], numbers["log_normalizer"])
    else:
        made = BlockFactoredTransition(numbers["log_block"], numbers["out"], numbers["into"])
    return Tables(support, numbers["log_start"], made, numbers["log_emission"], reset_token, precision)  # type: ignore[arg-type]


def root_command() -> Any:
    """The tree of commands that typer has made; `vlhmm table` forwards to those of `python -m experiments`."""
    root: Any = typer.main.get_command(app)
    root.commands["table"] = typer.main.get_command(experiment_commands())
    return root


def leaf_commands() -> Iterator[tuple[str, list[str]]]:
    """Each command that does something, as it is typed after `vlhmm`, with its options."""
    open_groups = [("", root_command())]
    while open_groups:
        path, group = open_groups.pop()
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                open_groups.append((f"{path}{name} ", command))
            else:
                yield f"{path}{name}", [option for parameter in command.params for option in parameter.opts]


def run_command(*arguments: object) -> str:
    """What `vlhmm` with these arguments prints on stdout, in this process."""
    out, err, before = io.StringIO(), io.StringIO(), sys.argv
    sys.argv = ["vlhmm", *(str(argument) for argument in arguments)]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main()
    finally:
        sys.argv = before
    if status != 0:
        raise RuntimeError(f"{arguments} ended with status {status}: {err.getvalue()}")
    return out.getvalue()


def result_identity(path: Path) -> str:
    """The hash of what decided a result, made anew from its settings; a result whose own hash is another is refused."""
    return read_result(path).identity.hash


def claim_verdicts(folder: Path) -> list[tuple[Path, Verdict]]:
    """Of every claim of every table under `folder`."""
    judged = []
    for file in sorted(folder.rglob("*.toml")):
        table = read_table(file)
        shown = show_table(table, checksums(table.corpus, None), results_folders(file))
        judged += [(file, verdict) for verdict in shown.verdicts]
    return judged


@dataclass(frozen=True)
class Event:
    """What a training loop says: `step` with its loss, `check` with a perplexity, and at the end the weights."""

    kind: str
    step: int = 0
    value: float = 0.0
    best: float = 0.0
    """Of a check: the best perplexity so far."""
    weights: dict[str, Tensor] | None = None


BASELINES = {
    "lstm": LSTMSettings,
    "awd-lstm": AWDLSTMSettings,
    "feedforward": FeedForwardSettings,
    "buys-hmm": BuysHMMSettings,
}


def recipe_model(recipe: dict[str, dict[str, Any]], corpus: vlhmm.Corpus) -> vlhmm.Model:
    """The model of a recipe before training."""
    made = Recipe.from_dict(recipe)
    return made.make_model(corpus, made.make_blocks(corpus))


def gradient_events(
    model: vlhmm.Model, recipe: dict[str, dict[str, Any]], corpus: vlhmm.Corpus, out: Path | None, resume: bool
) -> Iterator[Event]:
    settings = Recipe.from_dict(recipe).train
    yield from _plain(training(model, corpus, settings, out=out, resume=resume), model)


def lvd_events(
    model: vlhmm.Model,
    recipe: dict[str, dict[str, Any]],
    lvd: dict[str, Any],
    teacher: Path,
    corpus: vlhmm.Corpus,
    out: Path | None,
    resume: bool,
) -> Iterator[Event]:
    settings, decoder = Recipe.from_dict(recipe).train, load_decoder(teacher)[0]
    events = lvd_training(model, corpus, decoder, LVDSettings(**lvd), settings, out=out, resume=resume)
    yield from _plain(events, model)


def em_events(
    model: vlhmm.Model, em: dict[str, Any], corpus: vlhmm.Corpus, out: Path | None, resume: bool
) -> Iterator[Event]:
    yield from _plain(em_training(model, corpus, EMSettings(**em), out=out, resume=resume), model)


def baseline_events(
    name: str, settings: dict[str, Any], corpus: vlhmm.Corpus, out: Path | None, resume: bool
) -> Iterator[Event]:
    for event in train_baseline(BASELINES[name](**settings), corpus, out=out, resume=resume):
        yield from _plain([event], event.scorer.model if isinstance(event, TrainedBaseline) else None)


def decoder_events(
    settings: dict[str, Any], how: dict[str, Any], corpus: vlhmm.Corpus, out: Path | None, resume: bool
) -> Iterator[Event]:
    events = decoder_training(corpus, DecoderSettings(**settings), DecoderTraining(**how), out=out, resume=resume)
    for event in events:
        yield from _plain([event], event.decoder if isinstance(event, TrainedDecoder) else None)


def _plain(events: Any, model: torch.nn.Module | None) -> Iterator[Event]:
    """Steps and checks as they come; when they end, the weights of the model, if there is one."""
    for event in events:
        if isinstance(event, StepEvent):
            yield Event("step", event.step, event.loss)
        elif isinstance(event, CheckEvent):
            yield Event("check", event.step, event.valid_perplexity, event.best_perplexity)
    if model is not None:
        yield Event("end", weights={name: value.detach().clone() for name, value in model.state_dict().items()})


def decoder_score(folder: Path, corpus: vlhmm.Corpus, window: int) -> dict[str, Any]:
    decoder, tokenizer = load_decoder(folder)
    return {
        "name": decoder.name,
        "tokenizer": tokenizer.hash,
        "perplexity": decoder_perplexity(decoder, corpus.test, window),
    }


def write_decoder(folder: Path, corpus: vlhmm.Corpus, settings: dict[str, Any], how: dict[str, Any]) -> None:
    decoder = train_decoder(corpus, DecoderSettings(**settings), DecoderTraining(**how))
    save_decoder(folder, decoder.requires_grad_(False), corpus.tokenizer)


def draw_samples(folder: Path, name: str, model: Any, text_tokenizer: Any, **options: Any) -> None:
    """Text of a language model of transformers, kept in `folder`."""
    for _ in drawing(teacher_of(name, model, text_tokenizer), folder, **options):
        pass


def ngram_perplexity(arpa: Path, corpus: vlhmm.Corpus) -> float:
    return evaluate(vlhmm.KneserNey.load_arpa(arpa, corpus.tokenizer), corpus.test).perplexity


def clusters_of(file: Path) -> tuple[dict[str, Tensor], str]:
    """The tensors of saved clusters, and what decided them."""
    clusters, about = StateClusters.load(file)
    return {name: value for name, value in vars(clusters).items() if isinstance(value, Tensor)}, about
