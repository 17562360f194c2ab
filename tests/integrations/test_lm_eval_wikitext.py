"""lm-evaluation-harness on documents of WikiText-2: our adapter, `local-completions` against our server, and `vlhmm eval`."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from serving import Served, serving
from test_lm_eval import CHOICE, PERPLEXITY, answers
from test_lm_eval import pytestmark as eval_marks

import vlhmm
from vlhmm.cli import main
from vlhmm.data import word_tokenizer

pytestmark = [*eval_marks, pytest.mark.data]

NUM_DOCUMENTS, NUM_QUESTIONS = 12, 8
MAX_TOKENS = 400


@dataclass(frozen=True)
class Case:
    served: Served
    folder: Path
    documents: list[str]
    questions: list[dict[str, Any]]


def lines_of(split: str) -> list[str]:
    text = (Path(os.environ["VLHMM_DATA"]) / "wikitext-2" / f"{split}.txt").read_text(encoding="utf-8")
    return [" ".join(line.split()) for line in text.split("\n")]


def model(*, carry: bool) -> vlhmm.LanguageModel:
    """Random probabilities over the words of the validation text, which a text begins with as it goes on after EOS."""
    words = sorted({word for line in lines_of("valid") for word in line.split()} - {"<unk>"})
    tokenizer = word_tokenizer(words)
    generator = torch.Generator().manual_seed(1)

    def rows(num: int, width: int) -> torch.Tensor:
        table = torch.empty(num, width, dtype=torch.float64).exponential_(generator=generator) ** 3
        return table / table.sum(1, keepdim=True)

    start, transition, emission = rows(1, 8)[0], rows(8, 8), rows(8, tokenizer.vocab_size)
    reset = None if carry else tokenizer.eos_id

    def begun_from(start: torch.Tensor) -> vlhmm.LanguageModel:
        hmm = vlhmm.HMM.from_probabilities(start, transition, emission, reset_token=reset)
        return vlhmm.LanguageModel.from_hmm(hmm, tokenizer)

    made = begun_from(start)
    # `vlhmm eval` reads a file from the start distribution, a document begins after an EOS in the middle of unknown text: of this
    # model both are the same.
    for _ in range(30 if carry else 0):
        assert made.opening is not None
        start = made.opening.log_probs[0].double().exp() @ transition
        made = begun_from(start / start.sum())
    return made


@pytest.fixture(scope="module", params=[True, False], ids=["states carried over EOS", "states reset at EOS"])
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Case]:
    folder = tmp_path_factory.mktemp("wikitext")
    model(carry=request.param).save(folder / "model")
    lines = [line for line in lines_of("test") if 5 <= len(line.split()) <= MAX_TOKENS]
    documents = [f"{line} <eos>" for line in lines[:: len(lines) // NUM_DOCUMENTS][:NUM_DOCUMENTS]]
    long = [line.split() for line in lines if len(line.split()) >= 40][:NUM_QUESTIONS]
    endings = [" ".join(words[20:30]) for words in long]
    questions = [
        {
            "context": " ".join(words[:20]),
            "choices": [endings[number], endings[number - 1], endings[number - 2]],
            "answer": 0,
        }
        for number, words in enumerate(long)
    ]
    for name, rows in (("documents", [{"text": text} for text in documents]), ("questions", questions)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    (folder / "tasks").mkdir()
    for name, task in (("held_out", PERPLEXITY), ("continuation", CHOICE)):
        (folder / "tasks" / f"{name}.yaml").write_text(task.replace("DATA", str(folder)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HOME", str(folder / "cache"))
        patch.setenv("HF_HUB_OFFLINE", "1")
        with serving(vlhmm.load(folder / "model")) as one:
            yield Case(one, folder, documents, questions)


def evaluated(case: Case, kind: str, **arguments: Any) -> dict[str, Any]:
    import lm_eval
    from lm_eval.tasks import TaskManager

    found = lm_eval.simple_evaluate(
        model=kind,
        model_args=arguments,
        tasks=["held_out", "continuation"],
        task_manager=TaskManager(include_path=str(case.folder / "tasks"), include_defaults=False),
        bootstrap_iters=0,
        batch_size=4,
    )
    assert found is not None
    return found


def evaluated_by_the_command(case: Case, text: str, capsys: pytest.CaptureFixture[str]) -> tuple[float, int]:
    """log p and tokens of a document in a file of its own; the end of the line is the EOS."""
    file = case.folder / "document.txt"
    file.write_text(text.removesuffix(" <eos>") + "\n", encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        command = ["vlhmm", "eval", str(case.folder / "model"), str(file), "--json", "--device", "cpu"]
        patch.setattr(sys, "argv", command)
        assert main() == 0
    found = json.loads(capsys.readouterr().out)
    return found["log_prob"], found["num_tokens"]


def test_three_ways_to_score_documents_of_wikitext_agree(case: Case, capsys: pytest.CaptureFixture[str]) -> None:
    import vlhmm.integrations.lm_eval

    assert vlhmm.integrations.lm_eval.VlhmmLM
    direct = evaluated(case, "vlhmm", pretrained=str(case.folder / "model"))
    url = f"{case.served.url}/v1/completions"
    remote = evaluated(
        case, "local-completions", model="small", base_url=url, max_length=2 * MAX_TOKENS, num_concurrent=1
    )
    lm = case.served.lm
    farthest = {"adapter - vlhmm eval": 0.0, "local-completions - vlhmm eval": 0.0, "choices": 0.0}
    capsys.readouterr()
    for text, ((ours,),), ((theirs,),) in zip(
        case.documents, answers(direct, "held_out"), answers(remote, "held_out"), strict=True
    ):
        expected, num_tokens = evaluated_by_the_command(case, text, capsys)
        assert num_tokens == len(lm.tokenizer.encode(text))
        for name, found in zip(farthest, (ours, theirs), strict=False):
            farthest[name] = max(farthest[name], abs(found - expected) / num_tokens)
    for question, ours, theirs in zip(
        case.questions, answers(direct, "continuation"), answers(remote, "continuation"), strict=True
    ):
        for choice, ((value, greedy),), ((other, other_greedy),) in zip(question["choices"], ours, theirs, strict=True):
            ids = lm.tokenizer.encode(choice)
            scores = lm.score(f"{question['context']} {choice}").tokens[-len(ids) :]
            expected = sum(token.log_prob for token in scores)
            farthest["choices"] = max(
                farthest["choices"], abs(value - expected) / len(ids), abs(other - expected) / len(ids)
            )
            assert greedy == other_greedy
    with capsys.disabled():
        print(f"\nlargest difference, nats a token: {farthest}")
    assert max(farthest.values()) < 1e-6
    for task, metric in (("held_out", "word_perplexity,none"), ("continuation", "acc,none")):
        assert direct["results"][task][metric] == pytest.approx(remote["results"][task][metric], rel=1e-5)
