"""`/v1/vlhmm/...`: the records of the Python API."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from serving import Served, serving, small_lm

import vlhmm
from vlhmm.reports import as_json
from vlhmm.text.answers import NextTokens

TEXTS = ["the cat sees a bird", "a dog", "the bird hears the unknownword in a house"]


def data(served: Served, query: str, **body: Any) -> list[Any]:
    answer = served.post(f"/v1/vlhmm/{query}", **body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["warnings"] == []
    return answer.json()["data"]


def same(found: Any, expected: Any) -> None:
    """Equal, numbers but for rounding."""
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key in expected:
            same(found[key], expected[key])
    elif isinstance(expected, list):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            same(one, other)
    elif isinstance(expected, float):
        assert found == pytest.approx(expected, rel=1e-5, abs=1e-6)
    else:
        assert found == expected


def test_answers_are_the_records_of_python(served: Served) -> None:
    lm = served.lm
    same(data(served, "score", text=TEXTS, eos=True), [as_json(lm.score(text, eos=True), text=text) for text in TEXTS])
    same(
        data(served, "next", text=[*TEXTS, ""], top=4),
        [as_json(NextTokens(lm.next_tokens(text, 4)), text=text) for text in [*TEXTS, ""]],
    )
    same(
        data(served, "posterior", text=TEXTS, top=2),
        [{"text": text, "tokens": as_json(lm.posterior(text, 2))} for text in TEXTS],
    )
    same(
        data(served, "viterbi", text=TEXTS, k=3),
        [{"text": text, "paths": as_json(lm.viterbi(text, 3))} for text in TEXTS],
    )
    gapped = "the ___ sees a ___{1,2}"
    filled = lm.infill(gapped, num=2, top=3, eos=True, exclude=["dog"], seed=7)
    same(
        data(served, "infill", text=gapped, num=2, top=3, eos=True, exclude=["dog"], seed=7),
        [as_json(filled, text=gapped)],
    )


def test_the_probability_of_a_constraint_is_that_of_python(served: Served) -> None:
    cases = [
        ({"contains": "bird"}, vlhmm.contains("bird")),
        ({"contains": ["bird", "a"], "excludes": "dog"}, vlhmm.contains_all("bird", "a") & vlhmm.excludes("dog")),
        ({"contains_any": ["bird", "dog"], "words": [2, 3]}, vlhmm.contains_any("bird", "dog") & vlhmm.words(2, 3)),
        ({"in_order": ["the", "cat"], "length": [0, None]}, vlhmm.in_order("the", "cat") & vlhmm.length(0)),
        ({"starts_with": "the", "not": {"ends_with": "cat"}}, vlhmm.starts_with("the") & ~vlhmm.ends_with("cat")),
        ({"any": [{"regex": "the .*"}, {"choice": ["a cat"]}]}, vlhmm.regex("the .*") | vlhmm.choice(["a cat"])),
        ({"contains": "IRD", "ignore_case": True, "whole_words": False}, vlhmm.contains("ird", whole_words=False)),
    ]
    for asked, constraint in cases:
        for until_eos in (False, True):
            (found,) = data(
                served, "constraint_probability", text="the dog", constraint=asked, length=4, until_eos=until_eos
            )
            expected = served.lm.constraint_probability("the dog", constraint, 4, until_eos=until_eos)
            assert found["probability"] == pytest.approx(expected, rel=1e-5, abs=1e-9)


def test_the_same_question_of_many_clients_is_answered_for_each(server: Served) -> None:
    asked = [TEXTS[number % 3] if number % 5 else "the is" for number in range(20)]
    with ThreadPoolExecutor(20) as many:
        answers = list(many.map(lambda text: server.post("/v1/vlhmm/viterbi", text=text), asked))
    for text, answer in zip(asked, answers, strict=True):
        if text == "the is":
            # A text of probability zero has no path, and spoils none of those beside it.
            assert answer.status_code == 400
            assert "probability zero" in answer.json()["error"]["message"]
        else:
            same(answer.json()["data"], [{"text": text, "paths": as_json(server.lm.viterbi(text, 1))}])


def test_the_page_is_served_and_what_it_asks_is_answered(server: Served) -> None:
    page = server.get("/")
    assert page.status_code == 200
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert "frame-ancestors 'none'" in page.headers["content-security-policy"]
    assert "/v1/vlhmm/analyze" in page.text
    found = server.post("/v1/vlhmm/analyze", text="the cat sees", constraint={"contains": ["cat"]})
    assert found.status_code == 200, found.text
    assert [token["token"] for token in found.json()["tokens"]] == ["the", "cat", "sees"]
    assert "200" in server.refused("/v1/vlhmm/analyze", text="the " * 201)["message"]


def test_the_constraint_of_an_analysis_is_followed_within_the_limits_of_constraints(server: Served) -> None:
    asked = {"text": "the cat sees", "constraint": {"contains": ["cat", "bird"], "word": 3}}
    found = server.post("/v1/vlhmm/analyze", **asked).json()
    constraint = vlhmm.contains_all("cat", "bird")
    assert found["constraint"]["constraint"] == repr(constraint)
    assert found["constraint"]["probs"] == pytest.approx(
        server.lm.constraint_path("the cat sees", constraint), abs=1e-6
    )
    assert found["warnings"] == ["'constraint.word' is not a known field and was ignored"]
    for limits, said in (
        ({"max_constraint_bytes": 100}, "the limit is 100"),
        ({"constraint_seconds": 1e-9}, "time limit"),
    ):
        with serving(small_lm(carry=True), **limits) as one:
            assert said in one.refused("/v1/vlhmm/analyze", **asked)["message"]
            assert one.post("/v1/vlhmm/analyze", text="the cat").status_code == 200
