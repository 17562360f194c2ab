"""Records as JSON: every key, in order, and nothing that JSON lacks."""

import json
import math
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from tiny import tiny_corpus

from vlhmm.evaluate import Evaluation
from vlhmm.reports import DistillationResults, HeldOutText, RunResults, as_json
from vlhmm.reports.json_values import as_values
from vlhmm.text.answers import BestText, NamedState, Score, TokenScore


@dataclass(frozen=True)
class Inner:
    path: Path
    shares: dict[float, int]


@dataclass(frozen=True)
class Outer:
    inner: list[Inner]
    pair: tuple[str, float]
    nothing: None = None


def test_a_record_is_its_fields_whatever_is_in_them() -> None:
    record = Outer([Inner(Path("a/b"), {0.5: 3})], ("x", 1.5))
    expected = {"inner": [{"path": "a/b", "shares": {"0.5": 3}}], "pair": ["x", 1.5], "nothing": None}
    assert as_json(record) == expected
    assert json.loads(json.dumps(as_json([record]))) == [expected]


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks_are_none(value: float) -> None:
    assert as_json(BestText("a", value)) == {"text": "a", "log_prob": None}
    assert as_json({"deep": [(value, 1.0)]}) == {"deep": [[None, 1.0]]}
    # Not so in files that only Python reads again.
    assert str(as_values(BestText("a", value))["log_prob"]) == str(value)


def test_the_question_comes_first() -> None:
    answer = as_json(Score([TokenScore("a", -1.0)]), text="a", rank=1)
    assert list(answer) == ["text", "rank", "log_prob", "perplexity", "tokens"]
    assert answer["perplexity"] == math.exp(1.0)


def test_words_of_a_state_are_named() -> None:
    assert as_json(NamedState(4, 1, [("cat", 0.75)])) == {
        "state": 4,
        "block": 1,
        "words": [{"word": "cat", "prob": 0.75}],
    }


@pytest.mark.parametrize("value", [torch.zeros(1), {1, 2}, object()])
def test_what_has_no_form_in_json_is_refused(value: object) -> None:
    with pytest.raises(TypeError, match="no form in JSON"):
        as_json({"value": value})


def results() -> RunResults:
    evaluation = Evaluation(2.0, -3.0, 4, 0, None, None, None, "in words")
    return RunResults(
        stopped="finished",
        step=1,
        num_steps=1,
        train_seconds=1.0,
        best_check_perplexity=math.inf,
        num_states=2,
        num_parameters=3,
        corpus=tiny_corpus(20),
        seed=0,
        device="cpu",
        command="",
        vlhmm="1",
        python="3",
        torch="2",
        figures=HeldOutText(
            {"HMM": {"valid": 2.0, "test": 2.0}}, evaluation, evaluation, {"HMM": {"valid": 1.0, "test": 1.0}}, None
        ),
        learning_curve=None,
    )


def test_figures_of_a_run_stand_beside_its_other_results() -> None:
    answer = as_json(results())
    figures = ["perplexity", "valid", "test", "bits_per_byte", "comparison"]
    assert list(answer)[-8:] == ["torch", "underflow_sequences", *figures, "learning_curve"]
    assert list(answer["corpus"]) == ["name", "hash", "note"]
    assert answer["best_check_perplexity"] is None


def test_an_interrupted_run_has_no_figures_and_no_curve() -> None:
    assert list(as_json(replace(results(), figures=None)))[-1] == "underflow_sequences"


def test_two_runs_of_a_distillation_are_one_answer() -> None:
    one = results()
    assert as_json(DistillationResults(one)) == as_json(one)
    both = as_json(DistillationResults(one, one))
    assert both.pop("plain") == both
