"""`/v1/completions` against the Python API, and against itself in other batches."""

from __future__ import annotations

import json
import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
import requests
import torch
from serving import Served, serving, small_lm

import vlhmm

SAMPLINGS = [
    {},
    {"temperature": 0.7},
    {"temperature": 2.5, "top_k": 3},
    {"top_p": 0.6},
    {"temperature": 1.3, "top_k": 5, "top_p": 0.8},
    {"temperature": 0},
    {"temperature": 1e-40},
    {"temperature": 1e-320, "top_p": 0.5},
]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def texts(answer: dict[str, Any]) -> list[str]:
    return [choice["text"] for choice in sorted(answer["choices"], key=lambda choice: choice["index"])]


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_a_seed_draws_the_texts_of_generate(served: Served, sampling: dict[str, float]) -> None:
    of_python = {"top_k": 1} if sampling.get("temperature") == 0 else sampling
    for seed, prompt in enumerate(["the dog sees a bird in the garden", ""]):
        found = served.complete(prompt=prompt, max_tokens=10, n=3, seed=seed, echo=True, **sampling)
        expected = served.lm.generate(prompt, max_tokens=10, num=3, seed=generator(seed), **of_python)
        assert texts(found) == expected


def test_a_text_depends_on_its_own_request_alone() -> None:
    """Whatever is computed beside it, in whatever order."""
    asked = [
        {"prompt": prompt, "max_tokens": 5, "n": 2, "seed": seed, **SAMPLINGS[seed % len(SAMPLINGS)]}
        for seed, prompt in enumerate(["the cat", "a dog sees the bird and hears", "", "the", "in the garden"] * 3)
    ]
    # Ties everywhere: rounding alone decides what is drawn, unless it is kept from doing so.
    tokenizer = small_lm(carry=True).tokenizer
    size = tokenizer.vocab_size
    uniform = vlhmm.HMM.from_probabilities([0.25] * 4, [[0.25] * 4] * 4, [[1 / size] * size] * 4)
    for lm in (small_lm(carry=True), vlhmm.LanguageModel.from_hmm(uniform, tokenizer)):
        with serving(lm, max_batch=8) as one:
            alone = [texts(one.complete(**body)) for body in asked]
            with ThreadPoolExecutor(15) as many:
                together = list(many.map(lambda body: texts(one.complete(**body)), asked))
        assert together == alone


def test_prompts_of_one_request_are_written_as_if_each_were_alone(server: Served) -> None:
    prompts = ["the cat", "a dog", "the cat", ""]
    found = texts(server.complete(prompt=prompts, max_tokens=8, n=2, seed=5))
    alone = [text for prompt in prompts for text in texts(server.complete(prompt=prompt, max_tokens=8, n=2, seed=5))]
    assert found == alone
    lists = [server.lm.tokenizer.encode(prompt) for prompt in prompts]
    assert texts(server.complete(prompt=lists, max_tokens=8, n=2, seed=5)) == found
    assert texts(server.complete(prompt=lists[0], max_tokens=8, n=2, seed=5)) == found[:2]


def test_pieces_of_a_stream_are_the_whole_text(server: Served) -> None:
    body = {"prompt": ["the cat", "a"], "max_tokens": 15, "n": 2, "seed": 3, "logprobs": 2}
    for more in ({}, {"stop": ["garden", "e s"]}, {"echo": True}):
        whole = server.complete(**body, **more)
        answer = server.post("/v1/completions", **body, **more, stream=True, stream_options={"include_usage": True})
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in answer.text.split("\n\n") if line]
        assert lines[-1] == "data: [DONE]"
        events = [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]
        assert events[-1]["usage"] == whole["usage"]
        streamed: dict[int, dict[str, Any]] = {}
        for event in events[:-1]:
            (choice,) = event["choices"]
            one = streamed.setdefault(choice["index"], {"text": "", "finish_reason": None, "tokens": [], "offsets": []})
            assert one["finish_reason"] is None
            one["text"] += choice["text"]
            one["finish_reason"] = choice["finish_reason"]
            one["tokens"] += choice["logprobs"]["tokens"]
            one["offsets"] += choice["logprobs"]["text_offset"]
        for choice in whole["choices"]:
            one = streamed[choice["index"]]
            assert one["text"] == choice["text"]
            assert one["finish_reason"] == choice["finish_reason"]
            assert one["tokens"] == choice["logprobs"]["tokens"]
            if not more.get("stop"):
                assert one["offsets"] == choice["logprobs"]["text_offset"]


def test_a_stop_string_cuts_the_text_before_it(server: Served) -> None:
    whole = texts(server.complete(prompt="the", max_tokens=30, n=8, seed=1))
    stops = ["the", " cat s", "n th"]
    found = server.complete(prompt="the", max_tokens=30, n=8, seed=1, stop=stops)
    assert any(choice["stop_reason"] for choice in found["choices"])
    for choice, text in zip(found["choices"], whole, strict=True):
        places = [place for stop in stops if (place := text.find(stop)) >= 0]
        assert choice["text"] == (text[: min(places)] if places else text)
        assert (choice["stop_reason"] in stops) == bool(places)


def test_a_text_ends_at_eos_or_at_its_length(server: Served) -> None:
    eos = server.lm.tokenizer.token(server.lm.tokenizer.eos_id)
    found = server.complete(prompt="the", max_tokens=40, n=40, seed=0, logprobs=0)
    reasons = set()
    for choice in found["choices"]:
        tokens = choice["logprobs"]["tokens"]
        reasons.add(choice["finish_reason"])
        assert (tokens[-1] == eos) == (choice["finish_reason"] == "stop")
        assert eos not in tokens[:-1]
        assert eos not in choice["text"]
        assert len(tokens) == 40 or choice["finish_reason"] == "stop"
    assert reasons == {"stop", "length"}
    written = sum(len(choice["logprobs"]["tokens"]) for choice in found["choices"])
    assert found["usage"] == {"prompt_tokens": 1, "completion_tokens": written, "total_tokens": written + 1}


def test_log_probs_are_those_of_score(served: Served) -> None:
    """Of the prompt and of what is written: the whole text, scored again."""
    found = served.complete(prompt="the cat sees", max_tokens=10, n=3, seed=2, logprobs=4, echo=True)
    tokenizer = served.lm.tokenizer
    for choice in found["choices"]:
        given = choice["logprobs"]
        ids = [tokenizer.token_id(token) for token in given["tokens"]]
        expected = [token.log_prob for token in served.lm._queries.scores([ids])[0].tokens]
        assert given["token_logprobs"][0] is None
        assert given["top_logprobs"][0] is None
        torch.testing.assert_close(
            torch.tensor(given["token_logprobs"][1:]), torch.tensor(expected[1:]), rtol=1e-5, atol=1e-5
        )
        stream = served.lm.stream()
        for token, value, tops in zip(ids, given["token_logprobs"], given["top_logprobs"], strict=True):
            if tops is not None:
                likely = dict(stream.next_tokens(4, unk=True))
                assert set(tops) == {*likely, tokenizer.token(token)}
                assert tops[tokenizer.token(token)] == value
                for name, prob in likely.items():
                    assert math.isclose(tops[name], math.log(prob), rel_tol=1e-4, abs_tol=1e-4)
            stream.feed([token])
        # The text and the places of its tokens.
        spelt = [choice["text"][offset:] for offset in given["text_offset"]]
        eos = tokenizer.token(tokenizer.eos_id)
        assert all(
            text.lstrip().startswith(token) for text, token in zip(spelt, given["tokens"], strict=True) if token != eos
        )


def test_the_real_client_of_openai_reads_every_answer(server: Served) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="any")
    assert [model.id for model in client.models.list()] == ["small"]
    assert client.models.retrieve("small").id == "small"
    found = client.completions.create(
        model="small", prompt="the cat", max_tokens=6, seed=1, logprobs=2, n=2, extra_body={"top_k": 4}
    )
    assert [choice.index for choice in found.choices] == [0, 1]
    assert found.usage is not None
    assert found.usage.prompt_tokens == 2
    parts = client.completions.create(
        model="small", prompt="the cat", max_tokens=6, seed=1, n=2, stream=True, extra_body={"top_k": 4}
    )
    streamed = ["", ""]
    for part in parts:
        streamed[part.choices[0].index] += part.choices[0].text
    assert streamed == [choice.text for choice in found.choices]
    with pytest.raises(openai.BadRequestError, match="max_tokens is -1, but must be between"):
        client.completions.create(model="small", prompt="the cat", max_tokens=-1)
    with pytest.raises(openai.NotFoundError, match="'other' is not served here"):
        client.completions.create(model="other", prompt="the cat")


def test_a_prompt_of_probability_zero_is_refused_unless_its_scores_are_asked_for(server: Served) -> None:
    error = server.refused("/v1/completions", prompt="the is", max_tokens=2)
    assert "probability zero" in error["message"]
    found = server.complete(prompt="the is cat", max_tokens=1, logprobs=1, echo=True)
    log_probs = found["choices"][0]["logprobs"]["token_logprobs"]
    assert log_probs[1] == -9999.0
    assert len(log_probs) == 4


def test_version_health_and_the_description_are_there(server: Served) -> None:
    assert server.get("/version").json() == {"version": vlhmm.__version__}
    assert server.get("/health").json() == {"status": "ok"}
    assert server.get("/openapi.json").json()["openapi"].startswith("3.")
    assert requests.get(server.url + "/v1/nothing", timeout=10).json()["error"]["type"] == "not_found_error"
    assert requests.get(server.url + "/v1/completions", timeout=10).status_code == 405
