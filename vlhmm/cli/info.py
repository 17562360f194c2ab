"""`vlhmm info`: what is in a model folder. `vlhmm backends`: what computes on a device."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from vlhmm.cli.options import Device, DeviceOption, Json, ModelDir, choose_device
from vlhmm.cli.show import duration, facts, line, print_json, print_table, table

if TYPE_CHECKING:
    from vlhmm.lm import LanguageModel

SAMPLE_BLOCKS, SAMPLE_WORDS = 6, 5


def register(app: typer.Typer) -> None:
    app.command(epilog="Examples:\n  vlhmm info runs/demo\n  vlhmm info runs/demo --json | jq .num_states")(info)
    app.command(epilog="Example:\n  vlhmm backends --device cpu")(backends)


def backends(device: DeviceOption = Device.auto, as_json: Json = False) -> None:
    """Which backend serves each operation on a device, and why."""
    from vlhmm.ops import dispatch

    found = dispatch.backends(choose_device(device))
    if as_json:
        print_json([asdict(one) for one in found])
        return
    shown = table("operation", "backend", "reason")
    for one in found:
        shown.add_row(one.operation, one.backend, one.reason)
    print_table(shown)


def info(folder: ModelDir, as_json: Json = False) -> None:
    """What a model is, how it was trained, some of its states."""
    from vlhmm.lm import load
    from vlhmm.training.run_folder import read_log

    lm = load(folder)
    support, about = lm.model.support, lm.about
    training = _training_summary(read_log(folder), folder)
    samples = _sample_states(lm)
    if as_json:
        print_json(
            {
                "num_states": support.num_states,
                "num_blocks": support.num_groups,
                "states_per_word": support.states_per_word,
                "num_parameters": lm.model.num_parameters,
                "vocab_size": lm.tokenizer.vocab_size,
                "tokenizer_hash": lm.tokenizer.hash,
                "reset_token": lm.model.reset_token,
                "model": lm.model.settings.to_dict(),
                "about": about,
                "training": training,
                "samples": samples,
            }
        )
        return
    corpus = about.get("corpus", {})
    at_eos = "carried over EOS" if lm.model.reset_token is None else "drawn anew after EOS"
    rows = [
        ("states", f"{support.num_states:,} in {support.num_groups:,} blocks of {support.states_per_word:,}, {at_eos}"),
        ("parameters", f"{lm.model.num_parameters:,}"),
        ("words", f"{lm.tokenizer.vocab_size:,}, tokenizer {lm.tokenizer.hash[:12]}"),
        ("model", _settings(lm.model.settings.to_dict())),
    ]
    if corpus:
        rows.append(("corpus", f"{corpus['name']} {corpus['note']} ({corpus['hash'][:12]})"))
    if "train" in about:
        rows.append(("training", _settings(about["train"])))
    rows += _training_rows(training)
    facts(rows)
    line()
    shown = table("block", "words", "most frequent", "one of its states", right=("block", "words"))
    for sample in samples:
        words = " ".join(word["word"] for word in sample["words"])
        shown.add_row(
            str(sample["block"]),
            f"{sample['num_words']:,}",
            " ".join(sample["frequent"]),
            f"{sample['state']}: {words}",
        )
    print_table(shown)


def _settings(values: dict[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in values.items())


def _training_summary(log: list[dict[str, Any]], folder: Path) -> dict[str, Any] | None:
    from vlhmm.cli.run import RESULTS
    from vlhmm.data.json_file import read_json_object

    checks = [record for record in log if record["kind"] == "check"]
    if not checks:
        return None
    last, best = checks[-1], min(checks, key=lambda record: float(record["valid_perplexity"]))
    summary: dict[str, Any] = {
        "step": last["step"],
        "num_steps": last["num_steps"],
        "tokens": last["tokens"],
        "best_valid_perplexity": best["valid_perplexity"],
        "best_step": best["step"],
        "first_valid_perplexity": checks[0]["valid_perplexity"],
    }
    if (folder / RESULTS).exists():
        results = read_json_object(folder / RESULTS)
        summary |= {name: results.get(name) for name in ("stopped", "train_seconds", "device", "seed", "command")}
        summary["perplexity"] = results.get("perplexity")
    return summary


def _training_rows(training: dict[str, Any] | None) -> list[tuple[str, str]]:
    if training is None:
        return []
    seconds = (
        f" in {duration(training['train_seconds'])} on {training['device']}" if "train_seconds" in training else ""
    )
    rows = [
        ("trained", f"{training['step']:,} of {training['num_steps']:,} steps, {training['tokens']:,} tokens{seconds}"),
        (
            "valid",
            f"perplexity {training['best_valid_perplexity']:,.1f} at step {training['best_step']:,}, "
            f"{training['first_valid_perplexity']:,.1f} at the first check",
        ),
    ]
    if perplexity := training.get("perplexity"):
        rows.append(("test", "perplexity " + ", ".join(f"{name} {by['test']:,.1f}" for name, by in perplexity.items())))
    return rows


def _sample_states(lm: LanguageModel) -> list[dict[str, Any]]:
    """A few blocks, spread over all, each with one of its states."""
    support = lm.model.support
    step = max(1, support.num_groups // SAMPLE_BLOCKS)
    samples = []
    for block in list(range(0, support.num_groups, step))[:SAMPLE_BLOCKS]:
        words = (support.group_of_word == block).nonzero().flatten().tolist()
        named = lm.name_state(int(support.states_of_group[block, support.states_per_word // 2]), top=4)
        samples.append(
            {
                "block": block,
                "num_words": len(words),
                # Tokenizers number frequent words first.
                "frequent": [lm.tokenizer.token(word) for word in words[:SAMPLE_WORDS]],
                "state": named.state,
                "words": [{"word": word, "prob": prob} for word, prob in named.words],
            }
        )
    return samples
