"""Constraints over HTTP: exact samples, exact probabilities, and refusals that say what is impossible."""

from __future__ import annotations

import json
import math
import re

import openai
import pytest
from serving import Served, serving

import vlhmm
from vlhmm.data import word_tokenizer


def uniform_hmm(states: int, size: int) -> vlhmm.HMM:
    every = [1 / states] * states
    return vlhmm.HMM.from_probabilities(every, [every] * states, [[1 / size] * size] * states)


def test_a_seed_draws_the_constrained_texts_of_generate(served: Served) -> None:
    cases = [
        ({"constraint": {"contains": ["garden", "bird"]}}, vlhmm.contains_all("garden", "bird")),
        ({"guided_regex": "(the|a) cat .*"}, vlhmm.regex("(the|a) cat .*")),
        ({"guided_choice": ["the cat", "a dog sees", "a bird"]}, vlhmm.choice(["the cat", "a dog sees", "a bird"])),
    ]
    for seed, (asked, constraint) in enumerate(cases):
        found = served.complete(prompt="the dog", max_tokens=7, n=3, seed=seed, echo=True, top_p=0.9, **asked)
        expected = served.lm.generate(
            "the dog",
            max_tokens=7,
            num=3,
            top_p=0.9,
            constraint=constraint,
            seed=seed,
        )
        assert [choice["text"] for choice in found["choices"]] == expected


def test_the_answer_carries_the_exact_probability_of_the_constraint(served: Served) -> None:
    """Summed over all continuations: those that end within the limit and those that are cut off there."""
    lm, limit = served.lm, 2
    eos, size = lm.tokenizer.eos_id, lm.tokenizer.vocab_size
    bird = lm.tokenizer.token_id("bird")
    prompt = lm.tokenizer.encode("the")
    total = 0.0

    def follow(ids: list[int], prob: float) -> None:
        nonlocal total
        ended = bool(ids) and ids[-1] == eos
        if ended or len(ids) == limit:
            total += prob if bird in ids and lm.tokenizer.undrawn_id not in ids else 0.0
            return
        belief = lm.hmm.filter([[*prompt, *ids]], belief=lm.opening).belief
        for token, one in enumerate(lm.hmm.next_token_probs(belief)[0].tolist()):
            if one > 0:
                follow([*ids, token], prob * one)

    assert size < 20
    follow([], 1.0)
    found = served.complete(prompt="the", max_tokens=limit, constraint={"contains": "bird"})
    assert found["choices"][0]["constraint"]["probability"] == pytest.approx(total, rel=1e-4)
    assert math.exp(found["choices"][0]["constraint"]["log_prob"]) == pytest.approx(total, rel=1e-4)


def test_an_impossible_constraint_is_refused_with_the_part_that_is(server: Served) -> None:
    error = server.refused(
        "/v1/completions", prompt="the", max_tokens=5, constraint={"contains": ["cat", "zebra"], "words": [2, 4]}
    )
    assert "contains('zebra')" in error["message"]
    assert "contains('cat')" not in error["message"]
    error = server.refused("/v1/completions", prompt="the", max_tokens=3, guided_regex="(cat ){9}cat")
    assert "takes at least 10 tokens, but at most 3 are allowed" in error["message"]
    # The words are there, but no state emits this one.
    error = server.refused("/v1/completions", prompt="the", max_tokens=3, constraint={"contains": "is"})
    assert "probability zero" in error["message"]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"constraint": {}}, "says nothing"),
        ({"constraint": {"contains": ""}}, "constraint.contains: a phrase is empty"),
        ({"constraint": {"regex": "("}}, "constraint.regex"),
        ({"constraint": {"words": [5, 2]}}, "no range"),
        ({"constraint": {"words": "five"}}, "two numbers are needed"),
        ({"constraint": {"any": [{"contain": "cat"}]}}, "says nothing"),
        ({"constraint": {"any": [{"contains": "cat", "contain": "cat"}]}}, "constraint.any.contain is not known"),
        ({"constraint": {"not": {"not": {"not": 1}}}}, "constraint object is needed"),
        ({"constraint": {"contains": "cat"}, "guided_regex": "a"}, "given together"),
        ({"constraint": {"contains": "cat"}, "stop": "a"}, "stop and a constraint"),
        ({"guided_choice": []}, "0 texts"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema is missing"),
        ({"guided_regex": "(a|b)*a(a|b){25}"}, "constraint"),
    ],
    ids=str,
)
def test_what_is_no_constraint_is_refused(server: Served, asked: dict[str, object], said: str) -> None:
    assert said in server.refused("/v1/completions", prompt="the", max_tokens=3, **asked)["message"]


def test_json_of_a_schema_is_drawn_by_the_client_of_openai() -> None:
    """Over characters, so that every piece of JSON can be spelt."""
    import tokenizers

    letters = ['"', "{", "}", ":", ",", "\u0120", *"abcde", *"0123", "<eos>", "<unk>"]
    backend = tokenizers.Tokenizer(
        tokenizers.models.BPE({letter: i for i, letter in enumerate(letters)}, [], unk_token="<unk>")
    )
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    tokenizer = vlhmm.Tokenizer.from_backend(backend, eos="<eos>")
    lm = vlhmm.LanguageModel.from_hmm(uniform_hmm(4, tokenizer.vocab_size), tokenizer)
    schema = {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"enum": ["a", "bc"]}},
        "required": ["a", "b"],
        "additionalProperties": False,
    }
    with serving(lm) as one:
        client = openai.OpenAI(base_url=f"{one.url}/v1", api_key="any")
        form = {"type": "json_schema", "json_schema": {"name": "pair", "schema": schema}}
        found = client.completions.create(
            model="small", prompt="", max_tokens=40, n=4, seed=0, extra_body={"response_format": form}
        )
    for choice in found.choices:
        values = json.loads(choice.text)
        assert isinstance(values["a"], int)
        assert values["b"] in ("a", "bc")
        assert re.fullmatch(r"[^<]*", choice.text)


def test_words_of_a_tokenizer_without_the_phrase_are_named() -> None:
    tokenizer = word_tokenizer(["heads", "tails"])
    lm = vlhmm.LanguageModel.from_hmm(uniform_hmm(2, tokenizer.vocab_size), tokenizer)
    with serving(lm) as one:
        message = one.refused("/v1/vlhmm/constraint_probability", text="heads", constraint={"contains": 3}, length=2)
        assert "constraint.contains is 3" in message["message"]
        (found,) = one.post(
            "/v1/vlhmm/constraint_probability", text="heads", constraint={"contains": "edge"}, length=2
        ).json()["data"]
        assert found["probability"] == 0
