"""Text of one's own on a CPU: what `vlhmm train TEXT` gives without a preset, beside Kneser-Ney on the same pieces and on the
vocabulary that is best for Kneser-Ney.

    python -m experiments.own_text 3 --runs runs/own-text

reads the first 3 MB of `english/train-0.txt.xz` in the folder `VLHMM_DATA`, chooses on the first 0.5 MB of `valid.txt.xz`, and scores
the first 1 MB of `test.txt.xz` once, at the end.
"""

from __future__ import annotations

import argparse
import json
import lzma
import os
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from vlhmm.baselines import KneserNey
from vlhmm.baselines.kneser_ney import FALLBACK_DISCOUNTS
from vlhmm.data import Corpus, load_corpus
from vlhmm.evaluate import evaluate
from vlhmm.provenance import commit_of_source, device_name, versions
from vlhmm.reports import HeldOutText, Plan, train_and_report
from vlhmm.training.choice import choose_recipe

RESULTS = Path(__file__).parent / "ours" / "own-text"
MEGABYTE = 1_000_000
VALID_BYTES, TEST_BYTES = MEGABYTE // 2, MEGABYTE
VOCABULARIES = (512, 1000, 2000, 4000, 8000, 16000)
"""Of byte-level BPE, for Kneser-Ney."""


def write_text(data: Path, megabytes: float, folder: Path) -> None:
    """The parts of the text as the files train.txt, valid.txt and test.txt, each ended after a line."""
    parts = {
        "train": ("train-0", round(megabytes * MEGABYTE)),
        "valid": ("valid", VALID_BYTES),
        "test": ("test", TEST_BYTES),
    }
    folder.mkdir(parents=True, exist_ok=True)
    for split, (name, size) in parts.items():
        with lzma.open(data / "english" / f"{name}.txt.xz") as file:
            text = file.read(size)
        (folder / f"{split}.txt").write_bytes(text[: text.rindex(b"\n") + 1])


def kneser_ney(corpus: Corpus) -> dict[str, Any]:
    """Bits per byte of the interpolated model of order 5, estimated from the training text."""
    begun = time.process_time()
    num_words, eos_id = corpus.tokenizer.vocab_size, corpus.tokenizer.eos_id
    model = KneserNey.fit(corpus.train, num_words=num_words, eos_id=eos_id, fallback=FALLBACK_DISCOUNTS)
    return {
        "vocab_size": num_words,
        "valid": evaluate(model, corpus.valid, corpus.tokenizer).bits_per_byte,
        "test": evaluate(model, corpus.test, corpus.tokenizer).bits_per_byte,
        "cpu_seconds": time.process_time() - begun,
    }


def measure(megabytes: float, data: Path, runs: Path, seed: int, changes: Sequence[str] = ()) -> dict[str, Any]:
    """Train, score, and compare. `changes`: settings other than those of the choice, as `epochs=20`."""
    commit = commit_of_source()
    folder = runs / f"text-{megabytes:g}mb"
    write_text(data, megabytes, folder)
    corpus = load_corpus(folder)
    choice = choose_recipe("cpu", len(corpus.train), corpus.tokenizer.vocab_size)
    settings = dict(change.split("=", 1) for change in changes)
    plan = Plan(choice.recipe.with_changes({**settings, "seed": str(seed)}), str(folder), None)
    # CPU time too: wall time says nothing on a machine that others use.
    begun = time.process_time()
    results = train_and_report(plan, corpus, runs / f"run-{megabytes:g}mb")
    cpu_seconds = time.process_time() - begun
    assert isinstance(results.figures, HeldOutText)
    by_vocabulary = [kneser_ney(load_corpus(folder, vocab_size=size)) for size in VOCABULARIES]
    best = min(by_vocabulary, key=lambda found: found["valid"])
    return {
        "megabytes": megabytes,
        "seed": seed,
        "commit": commit,
        "versions": versions(),
        "device": device_name(torch.device("cpu")),
        "command": " ".join(
            [f"python -m experiments.own_text {megabytes:g} --seed {seed}", *(f"--set {change}" for change in changes)]
        ),
        "preset": choice.preset,
        "recipe": plan.recipe.to_dict(),
        "train_tokens": len(corpus.train),
        "vocab_size": corpus.tokenizer.vocab_size,
        "num_states": results.num_states,
        "num_parameters": results.num_parameters,
        "train_seconds": results.train_seconds,
        "cpu_seconds": cpu_seconds,
        "bits_per_byte": results.figures.bits_per_byte,
        "perplexity": results.figures.perplexity,
        "test": asdict(results.figures.test),
        "kneser_ney_by_vocabulary": by_vocabulary,
        "kneser_ney_best": best,
    }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.own_text", description=(__doc__ or "").split("\n")[0])
    parser.add_argument("megabytes", type=float, nargs="+", help="size of the training text")
    parser.add_argument("--data", type=Path, default=os.environ.get("VLHMM_DATA"), help="folder that has english/")
    parser.add_argument("--runs", type=Path, default=Path("runs/own-text"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting in place of the chosen one"
    )
    arguments = parser.parse_args()
    if arguments.data is None:
        parser.error("no --data, and VLHMM_DATA is not set")
    for megabytes in arguments.megabytes:
        found = measure(megabytes, Path(arguments.data), arguments.runs, arguments.seed, arguments.set)
        arguments.results.mkdir(parents=True, exist_ok=True)
        path = arguments.results / f"{megabytes:g}mb-seed{arguments.seed}.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        ours, best = found["bits_per_byte"], found["kneser_ney_best"]
        print(
            f"{megabytes:g} MB: HMM {ours['HMM']['test']:.4f}, Kneser-Ney on the same pieces "
            f"{ours['Kneser-Ney 5-gram']['test']:.4f}, on {best['vocab_size']:,} pieces {best['test']:.4f} bits per byte: {path}"
        )


if __name__ == "__main__":
    main()
