"""A model behind a real HTTP server in this process, on a port of its own."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import requests
import torch

import vlhmm
from vlhmm.data import word_tokenizer
from vlhmm.server import ServerSettings, application
from vlhmm.server.running import Server, configuration
from vlhmm.server.service import Service

WORDS = ["the", "a", "cat", "dog", "bird", "sees", "hears", "in", "garden", "house", "and", "is"]


def small_lm(*, carry: bool, seed: int = 0, states: int = 6, words: list[str] = WORDS) -> vlhmm.LanguageModel:
    """Random probabilities, one word that no state can emit, and a transition with zeros."""
    generator = torch.Generator().manual_seed(seed)
    tokenizer = word_tokenizer(words)
    size = tokenizer.vocab_size

    def rows(num: int, width: int) -> torch.Tensor:
        return torch.empty(num, width).exponential_(generator=generator) ** 2

    emission, transition = rows(states, size), rows(states, states)
    emission[:, tokenizer.token_id("is")] = 0
    # EOS is rare, so that texts have some length.
    emission[:, tokenizer.eos_id] *= 0.05
    transition[0, 1] = 0
    start = rows(1, states)[0]
    normal = [table / table.sum(-1, keepdim=True) for table in (start, transition, emission)]
    hmm = vlhmm.HMM.from_probabilities(*normal, reset_token=None if carry else tokenizer.eos_id)
    return vlhmm.LanguageModel.from_hmm(hmm, tokenizer)


@dataclass(frozen=True)
class Served:
    url: str
    lm: vlhmm.LanguageModel
    service: Service
    end: Callable[[], None]
    """As SIGTERM does."""

    def post(self, path: str, **body: Any) -> requests.Response:
        return requests.post(self.url + path, json=body, timeout=60)

    def get(self, path: str, **options: Any) -> requests.Response:
        return requests.get(self.url + path, timeout=60, **options)

    def complete(self, **body: Any) -> dict[str, Any]:
        answer = self.post("/v1/completions", **body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def refused(self, path: str, status: int = 400, **body: Any) -> dict[str, Any]:
        answer = self.post(path, **body)
        assert answer.status_code == status, answer.text
        error = answer.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error


@contextmanager
def serving(lm: vlhmm.LanguageModel, **settings: Any) -> Iterator[Served]:
    allowed = ServerSettings(model_name="small", port=0, **settings)
    app = application(lm, allowed)
    server = Server(configuration(app, allowed), app, None)
    loops: list[asyncio.AbstractEventLoop] = []

    async def served() -> None:
        loops.append(asyncio.get_running_loop())
        await server.serve()

    def end() -> None:
        loops[0].call_soon_threadsafe(server.end, signal.SIGTERM)

    thread = threading.Thread(target=lambda: asyncio.run(served()))
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            thread.join(0.01)
        port = server.servers[0].sockets[0].getsockname()[1]
        yield Served(f"http://127.0.0.1:{port}", lm, app.state.service, end)
    finally:
        server.should_exit = True
        thread.join(60)
        assert not thread.is_alive(), "the server does not end"
