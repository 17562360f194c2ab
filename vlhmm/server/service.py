"""The model with everything that requests share."""

from __future__ import annotations

import asyncio
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from vlhmm.control import Constraint
from vlhmm.control.controlled import ControlledHMM
from vlhmm.control.product import TransitionMatrix
from vlhmm.control.time_limit import limited_to
from vlhmm.control.tokens import ConstrainedTokens
from vlhmm.inference.past import Past
from vlhmm.lm import LanguageModel
from vlhmm.server.engine import Engine
from vlhmm.server.errors import RequestError
from vlhmm.server.metrics import Metrics
from vlhmm.server.settings import ServerSettings
from vlhmm.tables import Belief

Found = TypeVar("Found")


class Service:
    """A model that is served: its engine, the thread that prepares constraints, and what is counted.

    Args:
        lm: The model.
        settings: Limits.
        folder: Where the model was loaded from, for the page; None: not from a folder.
    """

    def __init__(self, lm: LanguageModel, settings: ServerSettings, folder: Path | None = None) -> None:
        self.lm, self.settings, self.folder = lm, settings, folder
        self.tokenizer = lm.tokenizer
        transition = TransitionMatrix(lm.hmm.tables)
        self.engine = Engine(lm, transition, settings.max_batch)
        self.metrics = Metrics(settings.model_name, lambda: self.engine.load)
        self.draining = False
        """Whether requests that come are refused, because the server ends."""
        self.cut = False
        """Whether those under way are too."""
        self.unanswered = set[asyncio.Task[Any]]()
        """Requests of which nothing has been sent."""
        self.in_progress = 0
        """Requests that are being answered."""
        self._controlled = ControlledHMM(lm.hmm, lm.tokenizer, transition)
        self._compiling = ThreadPoolExecutor(1, "vlhmm constraints")
        self._constrained = asyncio.Semaphore(settings.max_constrained)
        self._page: bytes | None = None
        self._page_lock = threading.Lock()

    def start(self) -> None:
        self.engine.start()

    def stop(self) -> None:
        self._compiling.shutdown(wait=False, cancel_futures=True)
        self.engine.stop()

    def cut_off(self) -> None:
        """Answer all requests that are under way with 503."""
        self.cut = True
        self.engine.refuse(self.ending)
        for task in self.unanswered:
            task.cancel()

    @staticmethod
    def ending() -> RequestError:
        """What is said to requests that are not answered because the server ends."""
        return RequestError("the server ends: send the request again later", 503, headers={"Retry-After": "1"})

    @asynccontextmanager
    async def constrained(self) -> AsyncIterator[None]:
        """A semaphore: limits the number of requests that hold the look-ahead table of a constraint."""
        async with self._constrained:
            yield

    async def prepare(self, constraint: Constraint, max_tokens: int, belief: Belief | None) -> ConstrainedTokens:
        """What texts under a constraint follow, in a thread of its own: others go on meanwhile."""

        return await self._compiled(
            lambda: self._controlled.prepare(
                constraint,
                max_tokens,
                Past.opened(self.lm.hmm.tables, belief),
                never=self.tokenizer.undrawn_id,
                time_limit=self.settings.constraint_seconds,
                max_bytes=self.settings.max_constraint_bytes,
            )
        )

    async def probability(self, constraint: Constraint, length: int, belief: Belief | None, until_eos: bool) -> float:
        """P(the next `length` tokens satisfy the constraint)."""

        (found,) = await self._compiled(
            lambda: self._controlled.probability(
                constraint,
                length,
                Past.opened(self.lm.hmm.tables, belief),
                until_eos=until_eos,
                time_limit=self.settings.constraint_seconds,
                max_bytes=self.settings.max_constraint_bytes,
            )
        )
        return found

    async def constraint_path(self, constraint: Constraint, tokens: Sequence[int]) -> list[float]:
        """P(a text of this length satisfies the constraint | its first t tokens) for each t."""
        async with self.constrained():
            ahead = await self._compiled(
                lambda: self._controlled.ahead_of_text(
                    constraint,
                    len(tokens),
                    time_limit=self.settings.constraint_seconds,
                    max_bytes=self.settings.max_constraint_bytes,
                )
            )
            return await self.engine.ask(lambda: self._controlled.along(ahead, tokens, self.engine.opening))

    async def _compiled(self, compute: Callable[[], Found]) -> Found:
        """Runs in the thread of the constraints, within its time limit; cancelled when the request is."""
        given_up = threading.Event()

        def clock() -> float:
            return math.inf if given_up.is_set() else time.thread_time()

        def limited() -> Found:
            with limited_to(self.settings.lookahead_seconds, clock):
                return compute()

        try:
            return await asyncio.get_running_loop().run_in_executor(self._compiling, limited)
        finally:
            given_up.set()

    def information(self) -> dict[str, Any]:
        """What is known of the model, for `/v1/models`."""
        hmm = self.lm.hmm
        return {
            "num_states": hmm.num_states,
            "vocab_size": hmm.num_words,
            "max_model_len": self.settings.max_length,
            "device": str(hmm.tables.device),
        }

    def page(self) -> bytes:
        """The explorer page, made when it is first asked for."""
        with self._page_lock:
            if self._page is None:
                from vlhmm.explorer import explorer_data, explorer_page

                data = explorer_data(self.lm, source=None, folder=self.folder)
                self._page = explorer_page(data, live="/v1/vlhmm/analyze").encode()
            return self._page
