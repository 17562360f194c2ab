"""Connections: slow ones, too many of them, broken ones, and what is logged about them."""

from __future__ import annotations

import json
import logging
import random
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import requests
from serving import Served, serving, small_lm
from test_limits import wait_until

from vlhmm.server import ServerSettings
from vlhmm.server.connections import OTHER_FILES, OnceAMinute, allowed_connections

HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: a\r\n"


@contextmanager
def connected(url: str, sent: bytes = b"") -> Iterator[socket.socket]:
    place = urlsplit(url)
    with socket.create_connection((place.hostname or "", place.port or 0), timeout=30) as connection:
        connection.sendall(sent)
        yield connection


def answer(connection: socket.socket) -> tuple[int, dict[str, str]]:
    """Status and error of an answer, after which the connection is closed."""
    received = b""
    while part := connection.recv(1 << 16):
        received += part
    head, _, body = received.partition(b"\r\n\r\n")
    assert b"application/json" in head, received
    error = json.loads(body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return int(head.split()[1]), error


def trickle(connection: socket.socket, sent: bytes) -> None:
    for byte in sent:
        connection.sendall(bytes([byte]))
        time.sleep(0.05)


def test_the_head_of_a_request_must_arrive_in_time() -> None:
    with serving(small_lm(carry=True), header_seconds=0.3) as one:
        for sent in (b"", HEAD):
            with connected(one.url, sent) as slow:
                status, error = answer(slow)
                assert status == 408
                assert "within 0.3 s" in error["message"]
        # A byte now and then wins no time.
        with connected(one.url) as slow, pytest.raises(OSError, match=r"[Bb]roken pipe|reset"):
            trickle(slow, HEAD * 10)
        # The second request of a connection is held to the same time.
        with connected(one.url, b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" + b"GET /hea") as slow:
            assert slow.recv(1 << 16).startswith(b"HTTP/1.1 200 ")
            slow.sendall(b"lth")
            assert answer(slow)[0] == 408


def test_an_answer_may_take_longer_than_the_head_of_its_request() -> None:
    with serving(small_lm(carry=True), header_seconds=0.2) as one, requests.Session() as client:
        for _ in range(2):
            found = client.post(f"{one.url}/v1/completions", json={"prompt": "the", "max_tokens": 2000, "n": 8})
            assert found.status_code == 200
            assert one.post("/v1/completions", prompt="the", max_tokens=1).status_code == 200


def test_one_connection_too_many_is_sent_away_at_once() -> None:
    with serving(small_lm(carry=True), max_connections=3) as one, ExitStack() as held:
        for _ in range(3):
            held.enter_context(connected(one.url))
        with connected(one.url) as other:
            status, error = answer(other)
        assert status == 503
        assert error["message"] == "3 connections are open, the limit: try again later"
        held.close()
        wait_until(lambda: requests.get(f"{one.url}/health", timeout=30).status_code == 200)


def test_connections_leave_open_files_for_the_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [128, 128]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), new))
    assert allowed_connections(ServerSettings(max_connections=1000)) == 128 - OTHER_FILES
    assert allowed_connections(ServerSettings(max_connections=10)) == 10
    # What may be raised is raised.
    limits[:] = [128, 1 << 20]
    assert allowed_connections(ServerSettings(max_connections=1000)) == 1000
    assert limits == [1000 + OTHER_FILES, 1 << 20]


@pytest.mark.parametrize(
    "sent",
    [
        HEAD + b"Content-Length: -5\r\n\r\n",
        HEAD + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
        b"\x00\x01 garbage\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"a" * 100_000,
    ],
    ids=["negative length", "two lengths", "garbage", "a long header"],
)
def test_what_is_no_http_is_answered_in_the_shape_of_every_error(server: Served, sent: bytes) -> None:
    with connected(server.url, sent) as connection:
        status, error = answer(connection)
    assert status == 400
    assert error["type"] == "invalid_request_error"


def test_what_clients_can_provoke_is_logged_once_a_minute() -> None:
    now = 0.0
    once = OnceAMinute(clock=lambda: now)

    def passes(message: str) -> bool:
        return once.filter(logging.LogRecord("asyncio", logging.ERROR, "", 0, message, (), None))

    full = "socket.accept() out of system resource\nsocket: <...>"
    assert [passes(full), passes(full), passes("a defect"), passes("a defect")] == [True, False, True, True]
    now = 61.0
    assert [passes(full), passes(full)] == [True, False]


@contextmanager
def command(folder: Path, *options: str, before: str = "") -> Iterator[tuple[str, list[str]]]:
    """`vlhmm serve` and the lines that it writes to stderr, all of them after the end."""
    small_lm(carry=True).save(folder / "model")
    serve = [sys.executable, "-m", "vlhmm", "serve", str(folder / "model"), "--port", "0", *options]
    lines: list[str] = []
    script = ["bash", "-c", f'{before} exec "$@"', "serve", *serve]
    with subprocess.Popen(script, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert " at " in line, line
        reading = threading.Thread(target=lambda: lines.extend(process.stderr))  # type: ignore[arg-type]
        reading.start()
        try:
            yield line.split(" at ")[1].split()[0], lines
        finally:
            process.send_signal(signal.SIGTERM)
            assert process.wait(60) == 0
            reading.join(60)


@pytest.mark.slow
def test_the_command_logs_nothing_twice(tmp_path: Path) -> None:
    """Errors of clients, streams that are hung up, half-sent heads: nothing, or one line of each kind."""
    with command(tmp_path) as (url, lines):
        for body in (b"{", b'{"prompt": 7}', b"\xff", b'{"constraint": {"words": [3, 2]}}'):
            assert requests.post(f"{url}/v1/completions", data=body, timeout=30).status_code == 400
        assert requests.get(f"{url}/nothing", timeout=30).status_code == 404
        for _ in range(20):
            with connected(url, b"garbage\r\n\r\n") as connection:
                connection.recv(1 << 16)
        body = json.dumps({"prompt": "the", "max_tokens": 60, "stream": True, "constraint": {"contains": "cat"}})
        sent = HEAD + f"Content-Length: {len(body)}\r\n\r\n{body}".encode()
        drawn = random.Random(0)
        for _ in range(60):
            with connected(url, sent):
                time.sleep(0.02 * drawn.random())
        assert requests.post(f"{url}/v1/completions", json={"prompt": "the"}, timeout=60).status_code == 200
    assert lines == ["WARNING:  Invalid HTTP request received.\n"]


@pytest.mark.slow
def test_more_connections_than_open_files_leave_the_server_and_its_log_alone(tmp_path: Path) -> None:
    with command(tmp_path, "--device", "cpu", before="ulimit -n 128;") as (url, lines), ExitStack() as held:
        held.enter_context(connected(url))
        for _ in range(140):
            held.enter_context(connected(url, HEAD))
        time.sleep(1)
        held.close()
        wait_until(lambda: _healthy(url))
    assert len(lines) <= 1, lines


def _healthy(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=30).status_code == 200
    except requests.ConnectionError:
        return False
