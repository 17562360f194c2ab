"""`vlhmm info`: what is in a model folder. `vlhmm backends`: what computes on a device."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import typer

from vlhmm.cli.options import Device, DeviceOption, Json, ModelDir, choose_device
from vlhmm.cli.show import duration, facts, line, print_json, print_table, table

if TYPE_CHECKING:
    from vlhmm.reports.model import ModelInformation, TrainingSummary


def register(app: typer.Typer) -> None:
    app.command(epilog="Examples:\n  vlhmm info runs/demo\n  vlhmm info runs/demo --json | jq .num_states")(info)
    app.command(epilog="Example:\n  vlhmm backends --device cpu")(backends)


def backends(device: DeviceOption = Device.auto, as_json: Json = False) -> None:
    """Which backend serves each operation on a device, and why."""
    from vlhmm.ops import dispatch

    found = dispatch.backends(choose_device(device))
    if as_json:
        print_json(found)
        return
    shown = table("operation", "backend", "reason")
    for one in found:
        shown.add_row(one.operation, one.backend, one.reason)
    print_table(shown)


def info(folder: ModelDir, as_json: Json = False) -> None:
    """What a model is, how it was trained, some of its states."""
    from vlhmm.lm import load
    from vlhmm.reports import model_information

    lm = load(folder)
    found = model_information(lm, folder)
    if as_json:
        print_json(found)
    else:
        _print_information(found, lm.tokenizer.shown)


def _print_information(found: ModelInformation, name: Callable[[str], str]) -> None:
    at_eos = "carried over EOS" if found.reset_token is None else "drawn anew after EOS"
    rows = [
        ("states", f"{found.num_states:,} in {found.num_blocks:,} blocks of {found.states_per_word:,}, {at_eos}"),
        ("parameters", f"{found.num_parameters:,}"),
        ("words", f"{found.vocab_size:,}, tokenizer {found.tokenizer_hash[:12]}"),
        ("model", _settings(found.model)),
    ]
    if corpus := found.about.get("corpus"):
        # A model saved by hand may say less of its corpus than a training run.
        known = [str(corpus.get(name, "")) for name in ("name", "note", "hash")]
        rows.append(("corpus", f"{known[0]} {known[1]} ({known[2][:12]})"))
    if "train" in found.about:
        rows.append(("training", _settings(found.about["train"])))
    if found.training is not None:
        rows += _training_rows(found.training)
    facts(rows)
    line()
    shown = table("block", "words", "most frequent", "one of its states", right=("block", "words"))
    for sample in found.samples:
        words = " ".join(name(word) for word, _ in sample.state.words)
        frequent = " ".join(map(name, sample.frequent))
        shown.add_row(str(sample.block), f"{sample.num_words:,}", frequent, f"{sample.state.state}: {words}")
    print_table(shown)


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _training_rows(training: TrainingSummary) -> list[tuple[str, str]]:
    run = training.run
    seconds = "" if run is None else f" in {duration(run.train_seconds or 0.0)} on {run.device}"
    rows = [
        ("trained", f"{training.step:,} of {training.num_steps:,} steps, {training.tokens:,} tokens{seconds}"),
        (
            "valid",
            f"perplexity {training.best_valid_perplexity:,.1f} at step {training.best_step:,}, "
            f"{training.first_valid_perplexity:,.1f} at the first check",
        ),
    ]
    if run is not None and run.perplexity:
        perplexities = ", ".join(f"{name} {by['test']:,.1f}" for name, by in run.perplexity.items())
        rows.append(("test", f"perplexity {perplexities}"))
        bits = {name: by["test"] for name, by in (run.bits_per_byte or {}).items()}
        if shown := ", ".join(f"{name} {value:.3f}" for name, value in bits.items() if value is not None):
            rows.append(("", f"bits per byte {shown}"))
        if run.comparison:
            rows.append(("", run.comparison))
    return rows
