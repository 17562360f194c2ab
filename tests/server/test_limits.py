"""What a server refuses, gives up and counts."""

from __future__ import annotations

import http.client
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from prometheus_client.parser import text_string_to_metric_families
from serving import Served, serving, small_lm

LONG = {"prompt": "the", "max_tokens": 4000, "n": 8, "temperature": 0}
"""A request that takes longer than any test waits."""


def wait_until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def long_request(one: Served, **more: Any) -> socket.socket:
    """Sends a request and does not wait for its answer."""
    body = json.dumps({**LONG, **more})
    place = urlsplit(one.url)
    connection = socket.create_connection((place.hostname or "", place.port or 0))
    head = f"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall((head + body).encode())
    return connection


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"{", "not JSON"),
        (b"[1]", "a JSON object is needed"),
        (b"\xff{}", "not UTF-8"),
        (b'{"temperature": NaN}', "no number of JSON"),
        (b'{"prompt": ' + b"[" * 100_000 + b"}", "JSON|nested"),
        (b'{"max_tokens": 1e999}', "max_tokens is inf"),
        (b'{"max_tokens": ' + b"9" * 5000 + b"}", "not JSON"),
        (b'{"max_tokens": 12345678901234567890}', "must be between 0 and 4096"),
        (b'{"max_tokens": true}', "an integer is needed"),
        (b'{"max_tokens": 0}', "use echo"),
        (b'{"temperature": -1}', "temperature is -1, but must be between 0 and 100"),
        (b'{"temperature": "hot"}', "temperature is 'hot', but a number is needed"),
        (b'{"top_p": 0}', "top_p is 0"),
        (b'{"n": 0}', "n is 0"),
        (b'{"n": 1025}', "between 1 and 1024"),
        (b'{"n": 600, "prompt": ["a", "a"]}', "1200 choices, but the limit is 1024"),
        (b'{"logprobs": 21}', "between 0 and 20"),
        (b'{"seed": 99999999999999999999}', "seed is"),
        (b'{"stop": [1]}', "stop is 1, but a text is needed"),
        (b'{"stop": ""}', "0 characters"),
        (b'{"prompt": []}', "lists of token ids are needed"),
        (b'{"prompt": [1, "a"]}', "prompt has"),
        (b'{"prompt": [[1], "a"]}', "all of it lists of token ids"),
        (b'{"prompt": [-1]}', "between 0 and"),
        (b'{"prompt": [999999]}', "prompt has token 999999"),
        (b'{"prompt": {"a": 1}}', "prompt is"),
        (b'{"prompt": "\\ud800"}', "half a character"),
        (b'{"stream": 1}', "true or false"),
        (b'{"stream_options": {}}', "use stream=true"),
        (b'{"model": "gpt"}', "not served here"),
        (b'{"constraint": []}', "an object is needed"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_bad_input_is_answered_with_what_is_wrong(server: Served, body: bytes, said: str) -> None:
    answer = requests.post(f"{server.url}/v1/completions", data=body, timeout=30)
    assert 400 <= answer.status_code < 500, answer.text
    error = answer.json()["error"]
    assert re.search(said, error["message"]), error
    assert error["type"] in ("invalid_request_error", "not_found_error")


def test_unknown_fields_are_ignored_and_named(server: Served) -> None:
    found = server.complete(
        prompt="the", max_tokens=1, temprature=2, frequency_penalty=0.5, presence_penalty=0, user="me"
    )
    assert found["warnings"] == [
        "frequency_penalty has no effect here and was ignored",
        "'temprature' is not a known field and was ignored",
    ]
    assert server.post("/tokenize", prompt="the", foo=1).json()["warnings"] == [
        "'foo' is not a known field and was ignored"
    ]


def test_keys_are_asked_for() -> None:
    with serving(small_lm(carry=True), api_keys=("first", "sécond")) as one:
        for path in ("/v1/models", "/metrics", "/", "/openapi.json"):
            assert one.get(path).status_code == 401
        answer = one.post("/v1/completions", prompt="the")
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"
        assert answer.headers["www-authenticate"] == "Bearer"
        assert one.get("/health").status_code == 200
        for key in ("first", "sécond"):
            assert one.get("/v1/models", headers={"Authorization": f"Bearer {key}".encode()}).status_code == 200
        # A browser asks for the page with a name and a password.
        assert "Basic" in one.get("/").headers["www-authenticate"]
        assert requests.get(f"{one.url}/", auth=("anyone", "first"), timeout=60).status_code == 200
        assert requests.get(f"{one.url}/", auth=("first", "firs"), timeout=60).status_code == 401
        for header in ("Bearer firs", "Bearer", "first", "Basic first", "Basic é", "Bearer first second"):
            assert one.get("/v1/models", headers={"Authorization": header.encode("latin-1")}).status_code == 401


def test_too_long_requests_are_refused() -> None:
    with serving(small_lm(carry=True), max_body_bytes=2000, max_length=20, max_total_length=30) as one:
        assert "more than 2000 bytes" in one.refused("/v1/completions", 413, prompt="the " * 800)["message"]
        assert "21 tokens, but the limit is 20" in one.refused("/v1/completions", prompt="the " * 21)["message"]
        assert "40 tokens in all" in one.refused("/v1/vlhmm/score", text=["the " * 20] * 2)["message"]
        # Without a length said before, it is counted as it comes.
        answer = requests.post(f"{one.url}/v1/completions", data=iter([b" " * 1500] * 3), timeout=30)
        assert answer.status_code == 413


def test_a_body_that_does_not_come_is_given_up() -> None:
    with serving(small_lm(carry=True), body_seconds=0.2) as one:
        place = urlsplit(one.url)
        connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
        connection.putrequest("POST", "/v1/completions")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"{")
        answer = connection.getresponse()
        assert answer.status == 408
        assert json.loads(answer.read())["error"]["type"] == "timeout_error"
        connection.close()


def test_a_request_that_takes_too_long_is_given_up() -> None:
    with serving(small_lm(carry=True), request_seconds=0.5, max_tokens=4096) as one:
        answer = one.post("/v1/completions", **LONG)
        assert answer.status_code == 504
        assert "within 0.5 s" in answer.json()["error"]["message"]
        # The status has been sent before the time was over: then an event says so.
        events = one.post("/v1/completions", **LONG, stream=True).text
        assert "within 0.5 s" in events
        wait_until(lambda: one.service.engine.load.running == 0)
        assert one.complete(prompt="the", max_tokens=1)["choices"]


@pytest.mark.parametrize("stream", [False, True])
def test_a_request_is_given_up_when_the_client_hangs_up(stream: bool) -> None:
    with serving(small_lm(carry=True)) as one:
        connection = long_request(one, stream=stream)
        wait_until(lambda: one.service.engine.load.running == 8)
        connection.close()
        wait_until(lambda: one.service.engine.load.running == 0)
        wait_until(lambda: one.service.in_progress == 0)
        assert one.complete(prompt="the", max_tokens=1)["choices"]


def test_more_requests_than_allowed_are_sent_away_for_a_second() -> None:
    with serving(small_lm(carry=True), max_requests=3) as one:
        held = [long_request(one) for _ in range(3)]
        wait_until(lambda: one.service.in_progress == 3)
        answer = one.post("/v1/completions", prompt="the")
        assert answer.status_code == 429
        assert answer.headers["retry-after"] == "1"
        assert answer.json()["error"]["type"] == "rate_limit_error"
        # What costs nothing is answered all the same.
        assert one.get("/health").status_code == one.get("/metrics").status_code == 200
        for connection in held:
            connection.close()
        wait_until(lambda: one.service.in_progress == 0)
        assert one.complete(prompt="the", max_tokens=1)["choices"]


def test_a_request_of_many_texts_does_not_hold_up_one_of_a_single_text() -> None:
    with serving(small_lm(carry=True), max_batch=4, max_tokens=64) as one, ThreadPoolExecutor(2) as pool:
        many = pool.submit(one.complete, prompt=["the cat"] * 60, max_tokens=20, temperature=0)
        wait_until(lambda: one.service.engine.load.waiting > 40)
        one.complete(prompt="the cat", max_tokens=2)
        assert one.service.engine.load.waiting > 20
        assert not many.done()
        many.result()


def test_metrics_are_counted_under_the_names_of_vllm() -> None:
    with serving(small_lm(carry=True)) as one:
        found = one.complete(prompt=["the cat", "a dog sees"], max_tokens=5, n=2, seed=1)
        one.refused("/v1/completions", n=0)
        one.get("/v1/nothing")
        assert one.get("/metrics").headers["content-type"].startswith("text/plain; version=0.0.4")
        families = {family.name: family for family in text_string_to_metric_families(one.get("/metrics").text)}
    samples = {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families.values()
        for sample in family.samples
    }

    def value(name: str, **labels: str) -> float:
        return samples[name, tuple(sorted({"model_name": "small", **labels}.items()))]

    written = found["usage"]["completion_tokens"]
    assert value("vlhmm_prompt_tokens_total") == 5
    assert value("vlhmm_generation_tokens_total") == written
    assert value("vlhmm_num_requests_running") == value("vlhmm_num_requests_waiting") == 0
    assert value("vlhmm_time_to_first_token_seconds_count") == 4
    assert value("vlhmm_inter_token_latency_seconds_count") == written - 4
    assert value("vlhmm_e2e_request_latency_seconds_count") == 1
    reasons = [choice["finish_reason"] for choice in found["choices"]]
    for reason in set(reasons):
        assert value("vlhmm_request_success_total", finished_reason=reason) == reasons.count(reason)
    assert value("vlhmm_http_requests_total", method="POST", path="/v1/completions", status="400") == 1
    assert value("vlhmm_http_requests_total", method="GET", path="other", status="404") == 1


@pytest.mark.slow
def test_a_server_ends_after_the_requests_under_way(tmp_path: Path) -> None:
    """The command itself, curl, SIGTERM."""
    small_lm(carry=True).save(tmp_path / "model")
    command = [sys.executable, "-m", "vlhmm", "serve", str(tmp_path / "model"), "--port", "0"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        url = line.split(" at ")[1].split()[0]
        asked = '{"prompt": "the", "max_tokens": 600, "n": 2, "temperature": 0}'
        curl = ["curl", "--silent", "--show-error", f"{url}/v1/completions", "--data", asked]
        found: list[Any] = []
        asking = threading.Thread(target=lambda: found.append(json.loads(subprocess.check_output(curl, text=True))))
        asking.start()
        wait_until(lambda: 'running{model_name="model"} 2.0' in requests.get(f"{url}/metrics", timeout=30).text)
        process.send_signal(signal.SIGTERM)
        asking.join(60)
        assert [len(choice["text"].split()) for choice in found[0]["choices"]] == [600, 600]
        assert process.wait(30) == 0
        assert process.stderr.read() == ""
        with pytest.raises(requests.ConnectionError):
            requests.get(f"{url}/health", timeout=5)
