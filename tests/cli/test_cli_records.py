"""`--json` prints the record that Python gets from the same function, and nothing of its own."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from cli_helpers import SMALL, Run

from vlhmm import load, load_corpus
from vlhmm.lm import LanguageModel
from vlhmm.progress import result_of
from vlhmm.reports import (
    Plan,
    as_json,
    cluster_words,
    evaluate_source,
    first_tokens,
    forecast,
    inspect_source,
    model_information,
    preparing_corpus,
    read_plan,
    read_source,
    train_and_report,
)
from vlhmm.text.answers import GeneratedText, NextTokens
from vlhmm.training.presets import BlockSettings, preset

SENTENCE = "the file reads the name ."
GAPS = "the ___ reads the ___{1,2} ."
TIMES = ("seconds", "train_seconds", "available_bytes")
"""Values that no two runs share."""


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def through_json(value: Any) -> Any:
    """As whoever reads the JSON gets it."""
    return json.loads(json.dumps(value))


def without_times(value: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in value.items() if key not in TIMES}


QUERIES: dict[str, tuple[tuple[object, ...], Callable[[LanguageModel], list[Any]]]] = {
    "score": ((SENTENCE, "--eos"), lambda lm: [as_json(lm.score(SENTENCE, eos=True), text=SENTENCE)]),
    "next": (("the", "--top", 3), lambda lm: [as_json(NextTokens(lm.next_tokens("the", 3)), text="the")]),
    "posterior": ((SENTENCE, "--top", 2), lambda lm: [as_json(lm.explain(SENTENCE, 2), text=SENTENCE)]),
    "viterbi": (
        (SENTENCE, "--k", 2),
        lambda lm: [as_json(path, text=SENTENCE, rank=rank) for rank, path in enumerate(lm.viterbi(SENTENCE, 2), 1)],
    ),
    "infill": (
        (GAPS, "--num", 2, "--top", 3, "--seed", 1),
        lambda lm: [as_json(lm.infill(GAPS, num=2, top=3, seed=seeded(1)), text=GAPS)],
    ),
    "generate": (
        ("--num", 3, "--max-tokens", 6, "--seed", 1),
        lambda lm: [as_json(GeneratedText(text)) for text in lm.generate(num=3, max_tokens=6, seed=seeded(1))],
    ),
    "generate --best": (("--best", "--max-tokens", 6), lambda lm: [as_json(lm.best_text(max_tokens=6))]),
}


@pytest.mark.parametrize("command", QUERIES)
def test_queries_print_the_record(run: Run, model_dir: Path, command: str) -> None:
    arguments, answer = QUERIES[command]
    printed = run(command.split()[0], model_dir, *arguments, "--json").out.splitlines()
    expected = answer(load(model_dir))
    # Key by key, in order.
    assert [json.dumps(json.loads(line)) for line in printed] == [json.dumps(through_json(one)) for one in expected]


def test_info_prints_the_record(run: Run, model_dir: Path) -> None:
    found = model_information(load(model_dir), model_dir)
    assert run("info", model_dir, "--json").json == through_json(as_json(found))
    assert found.training is not None
    assert found.training.run is not None
    assert found.training.run.stopped == "finished"
    # Without its folder nothing is known of its training.
    assert model_information(load(model_dir)).training is None


@pytest.mark.parametrize("split", [None, "valid"])
def test_eval_prints_the_record(run: Run, model_dir: Path, split: str | None) -> None:
    lm = load(model_dir)
    found = evaluate_source(lm, read_source(lm, model_dir, split=split), streams=2)  # type: ignore[arg-type]
    options = () if split is None else ("--split", split)
    assert run("eval", model_dir, *options, "--streams", 2, "--json").json == through_json(as_json(found))
    assert list(found.baselines) == ["uniform", "unigram", "Kneser-Ney 5-gram"]


def test_eval_of_a_file_prints_the_record(run: Run, model_dir: Path, text_file: Path) -> None:
    lm = load(model_dir)
    found = evaluate_source(lm, read_source(lm, model_dir, str(text_file)))
    assert run("eval", model_dir, text_file, "--json").json == through_json(as_json(found))
    assert list(found.baselines) == ["uniform"]
    # The same lines without a file.
    lines = text_file.read_text(encoding="utf-8").splitlines()
    given = evaluate_source(lm, read_source(lm, model_dir, "-", lines=lines))
    assert given.evaluation == found.evaluation


def test_inspect_prints_the_record(run: Run, model_dir: Path) -> None:
    lm = load(model_dir)
    source = first_tokens(read_source(lm, model_dir, default="valid"), 40)
    found = inspect_source(lm, source, memory=3, top=2)
    printed = run("inspect", model_dir, "--tokens", 40, "--memory", 3, "--top", 2, "--json").json
    assert printed == through_json(as_json(found, text=source.label, streams=1))


def test_cluster_prints_the_record(run: Run, text_file: Path) -> None:
    printed = run("cluster", text_file, "--blocks", 5, "--json").json
    assert list(printed) == ["file", "num_blocks", "information", "seconds", "seed", "eos", "corpus"]
    again = cluster_words(load_corpus(text_file), BlockSettings(num_blocks=5), out=Path(printed["file"]))
    assert without_times(printed) == without_times(through_json(as_json(again)))


def test_prepare_prints_the_record(run: Run, text_file: Path) -> None:
    printed = run("prepare", text_file, "--out", "typed", "--json").json
    assert list(printed) == ["folder", "hash", "tokenizer_hash", "vocab_size", "tokens", "documents", "seconds"]
    made = result_of(preparing_corpus([text_file], None, Path("called")))
    answer = through_json(as_json(made))
    assert (printed.pop("folder"), answer.pop("folder")) == ("typed", "called")
    assert without_times(printed) == without_times(answer)


def test_a_dry_run_prints_the_forecast(run: Run, text_file: Path) -> None:
    printed = run("train", text_file, "--out", "run", *SMALL, "--dry-run", "--json").json
    plan = Plan(preset("demo").with_changes(dict(one.split("=") for one in SMALL if "=" in one)), str(text_file), None)
    found = forecast(plan, load_corpus(text_file, tokenizer="words"), torch.device("cpu"))
    assert without_times(printed) == without_times(through_json(as_json(found)))
    assert not Path("run").exists()


def test_train_prints_the_results_that_python_gets(run: Run, text_file: Path) -> None:
    printed = run("train", text_file, "--out", "typed", *SMALL, "--json").json
    assert printed == json.loads(Path("typed/results.json").read_text(encoding="utf-8"))
    plan = read_plan(Path("typed"))
    assert plan is not None
    results = train_and_report(plan, load_corpus(text_file, tokenizer="words"), "called", command=printed["command"])
    answer = through_json(as_json(results))
    assert answer == json.loads(Path("called/results.json").read_text(encoding="utf-8"))
    assert answer.pop("learning_curve") == str(Path("called") / Path(printed.pop("learning_curve")).name)
    assert list(answer) == list(printed)
    assert without_times(answer) == without_times(printed)
