"""No request holds up the others: questions are cut into slices, counted in turns of the engine, not in seconds."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from serving import Served, serving, small_lm
from test_limits import LONG, long_request, wait_until

import vlhmm
from vlhmm.control.product import TransitionMatrix
from vlhmm.pauses import pause
from vlhmm.server.engine import QUESTION_TOKENS, QUESTIONS_AT_ONCE, Engine
from vlhmm.server.slices import Pace, Sliced

STEPS = 40


class Clock:
    """Every look at it is a second later, so that each pause ends a slice."""

    def __init__(self) -> None:
        self._seconds = itertools.count()

    def __call__(self) -> float:
        return float(next(self._seconds))


@pytest.fixture
def engine() -> Iterator[Engine]:
    lm = small_lm(carry=True)
    one = Engine(lm, TransitionMatrix(lm.hmm.tables), 4, clock=Clock())
    yield one
    if one.alive:
        one.stop()


def with_engine(engine: Engine, ask: Callable[[], Any]) -> Any:
    async def asked() -> Any:
        engine.start()
        return await ask()

    return asyncio.run(asked())


def long_question(log: list[str], name: str) -> Callable[[], int]:
    def question() -> int:
        for _ in range(STEPS):
            log.append(name)
            pause()
        return STEPS

    return question


def test_questions_take_turns(engine: Engine) -> None:
    log: list[str] = []

    async def both() -> list[int]:
        names = ["a", "b", "c"]
        return await asyncio.gather(*(engine.ask(long_question(log, name)) for name in names))

    assert with_engine(engine, both) == [STEPS] * 3
    # Once the last has begun none is more than a step ahead of another, to the end of the first.
    begun = log.index("c")
    for end in range(begun + 3, 3 * STEPS - 3):
        counts = [log[begun:end].count(name) for name in "abc"]
        assert max(counts) - min(counts) <= 1
    assert engine.turns >= 3 * STEPS


def test_a_text_is_read_while_a_question_is_answered(engine: Engine) -> None:
    begun, read = threading.Event(), threading.Event()

    def question() -> str:
        # It would never end if the text had to wait for it.
        while not read.is_set():
            begun.set()
            pause()
        return "answered"

    async def both() -> str:
        asked = asyncio.ensure_future(engine.ask(question))
        while not begun.is_set():
            await asyncio.sleep(0)
        try:
            await asyncio.wait_for(engine.read([[1, 2, 3]]), timeout=60)
        finally:
            read.set()
        return await asked

    assert with_engine(engine, both) == "answered"


@pytest.mark.parametrize("waits", [True, False], ids=["waiting", "begun"])
def test_a_question_that_nobody_waits_for_is_given_up_between_its_steps(engine: Engine, waits: bool) -> None:
    log: list[str] = []
    ended: list[str] = []

    def endless() -> None:
        try:
            for _ in itertools.count():
                log.append("a")
                pause()
        finally:
            ended.append("a")

    async def given_up() -> None:
        others = [asyncio.ensure_future(engine.ask(endless)) for _ in range(QUESTIONS_AT_ONCE if waits else 0)]
        task = asyncio.ensure_future(engine.ask(endless))
        while not log:
            await asyncio.sleep(0)
        task.cancel()
        for other in others:
            other.cancel()
        await asyncio.gather(task, *others, return_exceptions=True)
        while engine.load.running or engine.load.waiting:
            await asyncio.sleep(0)
        turns = engine.turns
        assert await engine.ask(lambda: 7) == 7
        assert engine.turns - turns <= 3

    with_engine(engine, given_up)
    assert len(ended) <= QUESTIONS_AT_ONCE
    assert ended


def test_stopping_gives_up_what_is_begun(engine: Engine) -> None:
    steps: list[int] = []

    def endless() -> None:
        for step in itertools.count():
            steps.append(step)
            pause()

    async def stopped() -> None:
        task = asyncio.ensure_future(engine.ask(endless))
        while not steps:
            await asyncio.sleep(0)
        engine.stop()
        task.cancel()

    with_engine(engine, stopped)
    assert not engine.alive


def test_texts_are_asked_about_together_up_to_a_number_of_tokens(engine: Engine) -> None:
    sizes: list[int] = []

    def question(texts: list[str]) -> list[str]:
        sizes.append(len(texts))
        return texts

    async def asked() -> list[str]:
        names = [str(number) for number in range(9)]
        return await engine.ask_each("key", names, [QUESTION_TOKENS // 2] * 8 + [10 * QUESTION_TOKENS], question)

    assert with_engine(engine, asked) == [str(number) for number in range(9)]
    assert sizes == [2, 2, 2, 2, 1]


def test_an_error_of_a_question_is_its_answer(engine: Engine) -> None:
    def wrong() -> None:
        pause()
        raise ValueError("seven")

    async def asked() -> None:
        with pytest.raises(ValueError, match="seven"):
            await engine.ask(wrong)

    with_engine(engine, asked)


def test_slices_of_a_computation_are_the_computation() -> None:
    found: list[int] = []
    thread = threading.current_thread()

    def compute() -> list[int]:
        for number in range(5):
            assert threading.current_thread() is not thread
            found.append(number)
            pause()
        return found

    with ThreadPoolExecutor(1) as threads:
        sliced = Sliced(compute, threads, seconds=0.5, clock=Clock())
        for number in range(5):
            assert not sliced.run()
            assert found == list(range(number + 1))
        assert sliced.run()
        assert sliced.result == [0, 1, 2, 3, 4]
        unlimited = Sliced(compute, threads, seconds=1e9)
        assert unlimited.run()
        never = Sliced(compute, threads)
        never.give_up()
        assert never.ended


def test_so_much_is_read_at_a_time_as_takes_a_turn() -> None:
    """At 10,000 tokens a second, whatever it begins with."""
    for first in (32, 1 << 16):
        pace = Pace(first, 32, 1 << 16, seconds=0.02)
        for _ in range(20):
            pace.took(pace.size, pace.size / 10_000)
        assert 100 <= pace.size <= 200
    # Nothing is learnt from a part that was smaller because there was no more.
    pace.took(5, 1e-6)
    assert pace.size <= 200
    for _ in range(20):
        pace.took(pace.size, 1.0)
    assert pace.size == 32


TEXT = " ".join(["the cat sees a bird in the garden and"] * 227)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/vlhmm/viterbi", {"text": [TEXT] * 4, "k": 100}),
        ("/v1/vlhmm/posterior", {"text": [TEXT] * 64}),
        ("/v1/vlhmm/infill", {"text": "___{1,10} the " * 3 + TEXT[:6000], "num": 1024}),
    ],
    ids=["viterbi", "posterior", "infill"],
)
def test_a_long_query_is_cut_into_turns_and_given_up_when_its_client_hangs_up(path: str, body: dict[str, Any]) -> None:
    with serving(small_lm(carry=True)) as one:
        engine = one.service.engine
        sent = json.dumps(body)
        connection = socket.create_connection((urlsplit(one.url).hostname or "", urlsplit(one.url).port or 0))
        connection.sendall(f"POST {path} HTTP/1.1\r\nHost: a\r\nContent-Length: {len(sent)}\r\n\r\n{sent}".encode())
        wait_until(lambda: engine.load.running > 0)
        before = engine.turns
        assert one.complete(prompt="the", max_tokens=5, temperature=0)["usage"]["completion_tokens"] == 5
        assert engine.turns > before
        assert engine.load.running > 0, "the query was over before the completion"
        connection.close()
        wait_until(lambda: engine.load.running == engine.load.waiting == one.service.in_progress == 0)


def test_a_query_that_takes_too_long_is_given_up() -> None:
    with serving(small_lm(carry=True), request_seconds=0.5) as one:
        answer = one.post("/v1/vlhmm/viterbi", text=[TEXT] * 4, k=100)
        assert answer.status_code == 504
        wait_until(lambda: one.service.engine.load.running == 0)


def test_long_answers_are_the_records_of_python(server: Served) -> None:
    text = "the cat sees a bird in the garden and " * 4
    expected = vlhmm.reports.as_json(server.lm.viterbi(text, 100))
    found = server.post("/v1/vlhmm/viterbi", text=[text] * 2, k=100).json()["data"]
    assert [one["text"] for one in found] == [text, text]
    assert found[0]["paths"] == found[1]["paths"]
    assert [len(path["tokens"]) for path in found[0]["paths"]] == [len(path["tokens"]) for path in expected]
    assert found[0]["paths"][0]["tokens"][0] == expected[0]["tokens"][0]


def test_requests_under_way_are_cut_off_when_the_time_to_drain_is_over(caplog: pytest.LogCaptureFixture) -> None:
    """A completion, a query, a stream, a constraint and a body that is still to come."""
    with serving(small_lm(carry=True), drain_seconds=0.5) as one, ThreadPoolExecutor(4) as clients:
        asked = [
            clients.submit(one.post, "/v1/completions", **LONG),
            clients.submit(one.post, "/v1/vlhmm/viterbi", text=[TEXT] * 4, k=100),
            clients.submit(one.post, "/v1/completions", **LONG, stream=True),
        ]
        wait_until(lambda: one.service.engine.load.running >= 8 + 8 + 2)
        slow = long_request(one, user="x" * 10)
        slow_body = socket.create_connection((urlsplit(one.url).hostname or "", urlsplit(one.url).port or 0))
        slow_body.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
        wait_until(lambda: one.service.in_progress == 5)
        one.end()
        answers = [future.result(60) for future in asked]
        slow_body.settimeout(30)
        assert slow_body.recv(100).startswith(b"HTTP/1.1 503 ")
        slow_body.close()
        slow.close()
        assert [answer.status_code for answer in answers] == [503, 503, 200]
        assert "the server ends" in answers[0].json()["error"]["message"]
        assert "the server ends" in answers[1].json()["error"]["message"]
        assert "the server ends" in answers[2].text
    with pytest.raises(requests.ConnectionError):
        one.get("/health")
    assert not caplog.records
