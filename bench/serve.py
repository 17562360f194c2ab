"""Load on a server: requests per second and latencies of many clients, an overload, and memory over time.

Clients are coroutines of this process that keep one connection each and send the next request when the last is answered. Nothing but
Python is needed to run them.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import torch

import vlhmm
from vlhmm.data import word_tokenizer

WARM_SECONDS = 2.0
STARTED = re.compile(r"serving .* at (http://\S+)")
NEW_TOKENS = 16
SAMPLE_SECONDS = 5.0
RETRY_SECONDS = 0.5
"""A client that was sent away with 429 comes back sooner than it was asked to: an overload is meant to be one. Much sooner, and the
clients would take the processors from the server."""


@dataclass(frozen=True)
class Load:
    """What so many clients saw."""

    clients: int
    seconds: float
    requests_per_second: float
    """That were answered 200."""
    tokens_per_second: float
    """New ones."""
    p50_ms: float | None
    p95_ms: float | None
    p99_ms: float | None
    statuses: dict[str, int]
    """Of HTTP, and `failed` where a connection broke."""


@dataclass(frozen=True)
class Memory:
    """Memory of the server under constant load."""

    load: Load
    """What the clients saw meanwhile."""
    minutes: float
    first_mib: float
    """After a tenth of the time."""
    last_mib: float
    highest_mib: float
    samples: list[float]


@contextmanager
def running(folder: Path, device: str, *options: str) -> Iterator[tuple[str, int]]:
    """`vlhmm serve` in a process of its own: its address and process id."""
    command = [sys.executable, "-m", "vlhmm", "serve", str(folder), "--port", "0", "--device", device, *options]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(line)
            if found := STARTED.search(line):
                break
        else:
            raise ValueError(f"the server did not start: {' '.join(lines).strip()}")
        try:
            yield found[1], process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def under_load(url: str, clients: int, seconds: float, prompt: str, new_tokens: int = NEW_TOKENS) -> Load:
    """So many clients for so long, after a moment that is not counted."""
    return asyncio.run(_under_load(url, clients, seconds, prompt, new_tokens))


async def _under_load(url: str, clients: int, seconds: float, prompt: str, new_tokens: int) -> Load:
    begins = time.monotonic() + WARM_SECONDS
    ends = begins + seconds
    latencies: list[float] = []
    statuses: Counter[str] = Counter()
    place = urlsplit(url)

    async def client(number: int) -> None:
        request = 0
        while time.monotonic() < ends:
            writer = None
            try:
                reader, writer = await asyncio.open_connection(place.hostname, place.port)
                while (begun := time.monotonic()) < ends:
                    body = json.dumps(
                        {"prompt": prompt, "max_tokens": new_tokens, "seed": number * 1_000_000 + request}
                    ).encode()
                    request += 1
                    head = f"POST /v1/completions HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(body)}\r\n\r\n"
                    writer.write(head.encode() + body)
                    status = await _answer(reader)
                    ended = time.monotonic()
                    if begins <= ended <= ends:
                        statuses[status] += 1
                        if status == "200":
                            latencies.append(ended - begun)
                    if status == "429":
                        await asyncio.sleep(RETRY_SECONDS)
            except (OSError, asyncio.IncompleteReadError):
                if begins <= time.monotonic() <= ends:
                    statuses["failed"] += 1
            finally:
                if writer is not None:
                    writer.close()

    before = await _counted(url)
    tasks = [asyncio.create_task(client(number)) for number in range(clients)]
    whole = time.monotonic()
    await asyncio.gather(*tasks)
    tokens = (await _counted(url) - before) / (time.monotonic() - whole)
    p50, p95, p99 = (1e3 * float(np.percentile(latencies, at)) if latencies else None for at in (50, 95, 99))
    return Load(clients, seconds, len(latencies) / seconds, tokens, p50, p95, p99, dict(statuses))


async def _answer(reader: asyncio.StreamReader) -> str:
    """The status of an answer, whose body is read and dropped."""
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    length = re.search(r"(?i)^content-length: (\d+)", head, re.MULTILINE)
    assert length is not None, head
    await reader.readexactly(int(length[1]))
    return head.split(" ", 2)[1]


async def _counted(url: str) -> float:
    """Tokens that the server has written so far."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    writer.write(b"GET /metrics HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n")
    text = (await reader.read()).decode()
    writer.close()
    found = re.search(r"^vlhmm_generation_tokens_total\{.*\} (\S+)$", text, re.MULTILINE)
    return float(found[1]) if found else 0.0


@dataclass(frozen=True)
class Overload:
    """What an overload was, beside what saturates the server."""

    saturating_clients: int
    """The fewest at which it answers nearly as many requests as at best."""
    saturating_requests_per_second: float
    """At best."""
    clients: int
    asked_requests_per_second: float
    """Answered by any status."""
    times_saturation: float


def saturation(loads: list[Load]) -> tuple[int, float]:
    """The fewest clients that get 95 % of the most requests per second, and these."""
    best = max(one.requests_per_second for one in loads)
    return min(one.clients for one in loads if one.requests_per_second >= 0.95 * best), best


def overloading(loads: list[Load], max_requests: int) -> int:
    """Clients that ask for four times as much as the server can do: as many as it takes, and others that are sent away and come
    again."""
    clients, best = saturation(loads)
    return max(4 * clients, max_requests + math.ceil(4 * best * RETRY_SECONDS))


def overload_of(loads: list[Load]) -> Overload:
    """The last load beside those before it."""
    *others, last = loads
    clients, best = saturation(others or loads)
    asked = sum(last.statuses.values()) / last.seconds
    return Overload(clients, best, last.clients, asked, asked / best if best else math.inf)


def memory_under_load(url: str, pid: int, clients: int, minutes: float, prompt: str) -> Memory:
    """Memory of process `pid` while so many clients send requests."""
    samples: list[float] = []

    async def sample() -> None:
        while True:
            samples.append(_resident_mib(pid))
            await asyncio.sleep(min(SAMPLE_SECONDS, 6 * minutes))

    async def both() -> Load:
        sampling = asyncio.create_task(sample())
        load = await _under_load(url, clients, 60 * minutes, prompt, NEW_TOKENS)
        sampling.cancel()
        with suppress(asyncio.CancelledError):
            await sampling
        return load

    load = asyncio.run(both())
    first = samples[len(samples) // 10]
    return Memory(load, minutes, first, samples[-1], max(samples), [round(one, 1) for one in samples])


def _resident_mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"^VmRSS:\s+(\d+) kB", status, re.MULTILINE)
    assert found is not None
    return int(found[1]) / 1024


def write_model(folder: Path, states: int, words: int = 10_000, states_per_block: int = 256) -> None:
    """An untrained blocked model of so many states, to load a server with."""
    vocabulary = [f"w{number}" for number in range(words - 2)]
    tokenizer = word_tokenizer(vocabulary)
    blocks = max(1, states // states_per_block)
    block_of_word = np.arange(tokenizer.vocab_size) * blocks // tokenizer.vocab_size
    torch.manual_seed(0)
    model = vlhmm.neural_hmm(
        vlhmm.Blocks(block_of_word, blocks), states // blocks, 64, transition="block-factored", eos_id=tokenizer.eos_id
    )
    vlhmm.LanguageModel(model, tokenizer).save(folder)
