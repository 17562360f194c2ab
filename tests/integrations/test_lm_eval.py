"""lm-evaluation-harness itself, on our model directly, through our server, and beside `vlhmm eval`."""

from __future__ import annotations

import importlib.util
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from serving import Served, serving, small_lm

import vlhmm
from vlhmm.data import Tokens

pytestmark = [
    pytest.mark.eval,
    pytest.mark.slow,
    pytest.mark.skipif(not importlib.util.find_spec("lm_eval"), reason="lm-evaluation-harness is not installed"),
    # Its dependencies warn of one another.
    pytest.mark.filterwarnings("ignore"),
]

DOCUMENTS = [
    "the cat sees a bird <eos>",
    "a dog hears the cat in a garden and the bird sees the unknownword <eos> the dog <eos>",
    "the",
    "bird bird bird house",
]
QUESTIONS = [
    {"context": "the cat", "choices": ["sees a bird", "garden garden", "hears"], "answer": 0},
    {"context": "a", "choices": ["dog sees", "the the the", "in"], "answer": 0},
    {"context": "the bird hears a dog in", "choices": ["the garden", "sees", "and and"], "answer": 2},
]
PERPLEXITY = """
task: held_out
dataset_path: json
dataset_kwargs: {data_files: {test: DATA/documents.jsonl}}
output_type: loglikelihood_rolling
test_split: test
doc_to_text: ""
doc_to_target: "{{text}}"
metric_list: [{metric: word_perplexity}, {metric: bits_per_byte}]
"""
CHOICE = """
task: continuation
dataset_path: json
dataset_kwargs: {data_files: {test: DATA/questions.jsonl}}
output_type: multiple_choice
test_split: test
doc_to_text: "{{context}}"
doc_to_choice: "{{choices}}"
doc_to_target: "{{answer}}"
metric_list: [{metric: acc}, {metric: acc_norm}]
"""
WRITING = """
task: writing
dataset_path: json
dataset_kwargs: {data_files: {test: DATA/questions.jsonl}}
output_type: generate_until
test_split: test
doc_to_text: "{{context}}"
doc_to_target: ""
generation_kwargs: {until: [" garden", " the"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
"""


@pytest.fixture(scope="module", params=[True, False], ids=["states carried over EOS", "states reset at EOS"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Path]]:
    folder = tmp_path_factory.mktemp("evaluated")
    write_tasks(folder, carry=request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(folder / "cache"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        with serving(vlhmm.load(folder / "model")) as one:
            yield one, folder


def write_tasks(folder: Path, *, carry: bool) -> None:
    """A model, held-out text and tasks."""
    small_lm(carry=carry).save(folder / "model")
    for name, rows in (("documents", [{"text": text} for text in DOCUMENTS]), ("questions", QUESTIONS)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "tasks").mkdir()
    for name, task in (("held_out", PERPLEXITY), ("continuation", CHOICE), ("writing", WRITING)):
        (folder / "tasks" / f"{name}.yaml").write_text(task.replace("DATA", str(folder)))


def evaluated(folder: Path, kind: str, **arguments: Any) -> dict[str, Any]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=["held_out", "continuation", "writing"],
        task_manager=TaskManager(include_path=str(folder / "tasks"), include_defaults=False),
        bootstrap_iters=0,
        batch_size=3,
    )
    assert found is not None
    return found


def answers(found: dict[str, Any], task: str) -> list[Any]:
    return [sample["resps"] for sample in sorted(found["samples"][task], key=lambda sample: sample["doc_id"])]


def test_the_adapter_and_the_server_and_our_own_evaluation_agree(served: tuple[Served, Path]) -> None:
    import vlhmm.integrations.lm_eval

    assert vlhmm.integrations.lm_eval.VlhmmLM
    one, folder = served
    direct = evaluated(folder, "vlhmm", pretrained=str(folder / "model"))
    url = f"{one.url}/v1/completions"
    remote = evaluated(folder, "local-completions", model="small", base_url=url, max_length=1000, num_concurrent=1)
    for text, ((ours,),), ((theirs,),) in zip(
        DOCUMENTS, answers(direct, "held_out"), answers(remote, "held_out"), strict=True
    ):
        ids = one.lm.tokenizer.encode(text)

        expected = one.lm.score(text).log_prob
        if one.lm.opening is None:
            # From one cold start, as `vlhmm eval` reads a file; a document of this model begins so too.
            alone = one.lm.evaluate(Tokens.from_documents([ids], one.lm.tokenizer.vocab_size))
            assert abs(ours - alone.log_prob) < 1e-6 * len(ids)
        assert abs(ours - expected) < 1e-6 * len(ids)
        assert abs(theirs - expected) < 1e-6 * len(ids)
    for question, ours, theirs in zip(
        QUESTIONS, answers(direct, "continuation"), answers(remote, "continuation"), strict=True
    ):
        for choice, ((value, greedy),), ((other, other_greedy),) in zip(question["choices"], ours, theirs, strict=True):
            context = one.lm.tokenizer.encode(question["context"])
            ids = one.lm.tokenizer.encode(choice)
            scores = one.lm.score(f"{question['context']} {choice}").tokens[len(context) :]
            assert abs(value - sum(token.log_prob for token in scores)) < 1e-6 * len(ids)
            assert abs(other - value) < 1e-6 * len(ids)
            assert greedy == other_greedy
    assert answers(direct, "writing") == answers(remote, "writing")
    for question, ((text,),) in zip(QUESTIONS, answers(direct, "writing"), strict=True):
        whole = one.lm.generate(question["context"], max_tokens=12, top_k=1)[0].removeprefix(question["context"])
        ends = [place for stop in (" garden", " the") if (place := whole.find(stop)) >= 0]
        assert text == (whole[: min(ends)] if ends else whole)
    for metric in ("acc,none", "acc_norm,none"):
        assert direct["results"]["continuation"][metric] == remote["results"]["continuation"][metric]


def test_the_command_of_the_harness_knows_the_model(tmp_path: Path) -> None:
    write_tasks(tmp_path, carry=True)
    command = [sys.executable, "-m", "vlhmm.integrations.lm_eval", "--model", "vlhmm"]
    command += ["--model_args", f"pretrained={tmp_path / 'model'}", "--tasks", "held_out"]
    command += ["--include_path", str(tmp_path / "tasks"), "--output_path", str(tmp_path / "results")]
    package = str(Path(vlhmm.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": package, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path / "cache")}
    ran = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, ran.stderr
    (results,) = (tmp_path / "results").rglob("results_*.json")
    found = json.loads(results.read_text())["results"]["held_out"]["word_perplexity,none"]
    lm = vlhmm.load(tmp_path / "model")
    words = sum(len(text.split()) for text in DOCUMENTS)
    expected = math.exp(-sum(lm.score(text).log_prob for text in DOCUMENTS) / words)
    assert found == pytest.approx(expected, rel=1e-5)
