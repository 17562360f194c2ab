"""The thread that owns the model, and its queues of jobs (continuous batching).

Each turn of the thread reads a part of the texts that wait to be read, in one batch, writes one token of all texts that are being
written, in another, and works on one other query for a time slice. No request waits for another to end, and a query that
no client waits for any more (disconnect or timeout) is cancelled between two slices.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from vlhmm.control.product import TransitionMatrix
from vlhmm.lm import LanguageModel
from vlhmm.server.jobs import Job, Piece, Query, Read, Reading, Writing, first_of_each
from vlhmm.server.next_tokens import NextTokens
from vlhmm.server.reading import Reader, answer_of
from vlhmm.server.slices import Sliced
from vlhmm.server.writing import Scribe

Answer = TypeVar("Answer")


QUESTIONS_AT_ONCE = 8
"""Questions that are begun and not yet answered; each has tensors of its own."""
QUESTION_TOKENS = 4096
"""Texts of about so many tokens are asked about together, at least one: no kernel is long."""


class DefectError(RuntimeError):
    """An error that is no fault of a request."""


@dataclass(eq=False)
class Question:
    """One batched query of several texts, and its progress."""

    queries: list[Query]
    work: Sliced


@dataclass(frozen=True)
class Load:
    """Continuations and texts that are being computed, and those that wait."""

    running: int
    waiting: int


class Engine:
    """Answers requests in batches.

    Args:
        lm: The model. From here on no other thread may use it.
        transition: Its transition.
        max_batch: Texts that are computed side by side.
        clock: The time, by which questions are cut into slices.
    """

    def __init__(
        self,
        lm: LanguageModel,
        transition: TransitionMatrix,
        max_batch: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.lm = lm
        self._max_batch = max_batch
        self._clock = clock
        self.turns = 0
        """Turns of the thread so far."""
        self._next = NextTokens(lm.hmm.tables, transition)
        self.opening = lm.opening
        self._reader = Reader(lm.hmm.tables, self._next)
        self._scribe = Scribe(self._next, self.opening, lm.tokenizer.eos_id, lm.tokenizer.undrawn_id)
        self._inbox: list[Sequence[Job]] = []
        self._readings: list[list[Reading]] = []
        """One list a request."""
        self._waiting: list[list[Writing]] = []
        self._writings: list[Writing] = []
        self._queries: list[list[Query]] = []
        self._questions: list[Question] = []
        """Begun; the first one has waited longest for its next slice."""
        self._asking = ThreadPoolExecutor(QUESTIONS_AT_ONCE, "vlhmm question")
        self._refusal: Callable[[], Exception] | None = None
        self._outbox: list[Callable[[], None]] = []
        self._wake = threading.Condition()
        self._stopped = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._work, name="vlhmm engine", daemon=True)

    def start(self) -> None:
        """Begin to work for the event loop that is running."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()

    def stop(self) -> None:
        """End after the turn that is under way; questions that are begun are given up."""
        with self._wake:
            self._stopped = True
            self._wake.notify()
        self._thread.join()
        self._asking.shutdown()

    def refuse(self, refusal: Callable[[], Exception]) -> None:
        """Answer all that wait, and all that comes, with such an error."""
        with self._wake:
            self._refusal = refusal
            self._wake.notify()

    @property
    def alive(self) -> bool:
        """Whether the thread works."""
        return self._thread.is_alive() and not self._stopped

    @property
    def load(self) -> Load:
        reading = sum(map(len, self._readings))
        writing = sum(len(one.rows) for one in self._writings)
        waiting = sum(len(one.rows) for some in self._waiting for one in some)
        batch = min(reading, self._max_batch)
        asked = sum(len(one.queries) for one in self._questions)
        waiting += sum(map(len, self._queries)) + len(self._inbox)
        return Load(batch + writing + asked, reading - batch + waiting)

    async def read_prompts(self, prompts: Sequence[Sequence[int]], top: int = 0) -> list[Read]:
        """`read`, but an EOS at the very beginning is the one that every text follows; it has no score."""
        led = [bool(ids) and ids[0] == self.lm.tokenizer.eos_id for ids in prompts]
        reads = await self.read([ids[begins:] for ids, begins in zip(prompts, led, strict=True)], top)
        return [
            Read([0.0, *read.log_probs], [[], *read.tops] if read.tops else [], read.belief) if begins else read
            for read, begins in zip(reads, led, strict=True)
        ]

    async def read(self, texts: Sequence[Sequence[int]], top: int = 0) -> list[Read]:
        """Score the tokens of texts."""
        futures = [asyncio.get_running_loop().create_future() for _ in texts]
        jobs = [
            Reading(partial(_settle, future), list(ids), self.opening, top)
            for ids, future in zip(texts, futures, strict=True)
        ]
        with self._submitted(jobs):
            reads: list[Read] = await asyncio.gather(*futures)
            return reads

    async def write(
        self, writings: Sequence[Writing], deadline: float | None = None
    ) -> AsyncIterator[tuple[int, Piece]]:
        """Write continuations; pieces come with the number of their prompt, for those that want any. Returns when all are done.

        At `deadline`, a time of the event loop, a TimeoutError is raised.
        """
        events: asyncio.Queue[tuple[int, Any]] = asyncio.Queue()
        for number, writing in enumerate(writings):
            writing.answered = partial(_put, events, number)
        left = len(writings)
        with self._submitted(writings):
            while left:
                async with asyncio.timeout_at(deadline):
                    number, event = await events.get()
                if isinstance(event, BaseException):
                    raise event
                if event is None:
                    left -= 1
                else:
                    yield number, event

    async def ask(self, question: Callable[[], Answer]) -> Answer:
        """Ask the model one question, not in a batch."""
        future = asyncio.get_running_loop().create_future()
        with self._submitted([Query(partial(_settle, future), None, "", 0, lambda _: [question()])]):
            answer: Answer = await future
            return answer

    async def ask_each(
        self,
        key: Hashable,
        texts: Sequence[str],
        num_tokens: Sequence[int],
        question: Callable[[list[str]], Sequence[Answer]],
    ) -> list[Answer]:
        """Ask the same of several texts of so many tokens. Texts that wait with the same key are asked about together, those of
        other requests too.
        """
        futures = [asyncio.get_running_loop().create_future() for _ in texts]
        jobs = [
            Query(partial(_settle, future), key, text, tokens, question)
            for text, tokens, future in zip(texts, num_tokens, futures, strict=True)
        ]
        with self._submitted(jobs):
            answers: list[Answer] = await asyncio.gather(*futures)
            return answers

    @contextmanager
    def _submitted(self, jobs: Sequence[Job]) -> Iterator[None]:
        """Submits the jobs to the engine's queue; unfinished jobs are cancelled at exit."""
        with self._wake:
            self._inbox.append(jobs)
            self._wake.notify()
        try:
            yield
        finally:
            for job in jobs:
                job.cancelled = True

    def _work(self) -> None:
        while True:
            with self._wake:
                while not (self._stopped or self._inbox or self._busy()):
                    self._wake.wait()
                if self._stopped:
                    break
                arrived, self._inbox = self._inbox, []
            for jobs in arrived:
                self._accept(jobs)
            self.turns += 1
            if self._refusal is not None:
                self._refuse_all(self._refusal)
            self._forget_cancelled()
            self._read()
            self._write()
            self._answer_some()
            self._send()
        for question in self._questions:
            question.work.give_up()

    def _busy(self) -> bool:
        return bool(self._readings or self._waiting or self._writings or self._queries or self._questions)

    def _accept(self, jobs: Sequence[Job]) -> None:
        self._readings.append([job for job in jobs if isinstance(job, Reading)])
        self._waiting.append([job for job in jobs if isinstance(job, Writing)])
        self._queries.append([job for job in jobs if isinstance(job, Query)])

    def _refuse_all(self, refusal: Callable[[], Exception]) -> None:
        jobs: list[Job] = [
            job for requests in (self._readings, self._waiting, self._queries) for some in requests for job in some
        ]
        jobs += self._writings
        jobs += [query for question in self._questions for query in question.queries]
        for job in jobs:
            if not job.cancelled:
                self._outbox.append(partial(job.answered, refusal()))
                job.cancelled = True

    def _forget_cancelled(self) -> None:
        self._readings = _living(self._readings)
        self._waiting = _living(self._waiting)
        self._writings = [one for one in self._writings if not one.cancelled]
        self._queries = _living(self._queries)
        for question in self._questions:
            if all(query.cancelled for query in question.queries):
                question.work.give_up()
        self._questions = [one for one in self._questions if not one.work.ended]

    def _read(self) -> None:
        batch: list[Reading] = first_of_each(self._readings, self._max_batch)
        with self._answering(batch):
            self._reader.read([text for text in batch if text.left])
        for text in batch:
            if not text.left and not text.cancelled:
                self._outbox.append(partial(text.answered, answer_of(text)))
                text.cancelled = True
        if batch:
            # Round robin: the next turn begins with another request.
            self._readings = _living([*self._readings[1:], self._readings[0]])

    def _write(self) -> None:
        rows = sum(len(one.rows) for one in self._writings)
        while self._waiting:
            waiting = self._waiting.pop(0)
            if rows and rows + len(waiting[0].rows) > self._max_batch:
                self._waiting.insert(0, waiting)
                break
            rows += len(waiting[0].rows)
            self._writings.append(waiting.pop(0))
            if waiting:
                self._waiting.append(waiting)
        if not self._writings:
            return
        with self._answering(self._writings):
            for writing, piece in self._scribe.step(self._writings):
                self._outbox.append(partial(writing.answered, piece))
        for writing in self._writings:
            if writing.refused is not None and not writing.cancelled:
                self._outbox.append(partial(writing.answered, writing.refused))
                writing.cancelled = True
            if not writing.going() and not writing.cancelled:
                self._outbox.append(partial(writing.answered, None))
                writing.cancelled = True
        self._writings = [one for one in self._writings if not one.cancelled]

    def _answer_some(self) -> None:
        """Runs one time slice of the query that has waited longest (round robin)."""
        if self._queries and len(self._questions) < QUESTIONS_AT_ONCE:
            queries = self._alike()
            ask, texts = queries[0].ask, [one.text for one in queries]
            self._questions.append(Question(queries, Sliced(partial(ask, texts), self._asking, clock=self._clock)))
        if not self._questions:
            return
        question = self._questions[0]
        ended = question.work.run()
        self._questions = [*self._questions[1:], *([] if ended else [question])]
        if not ended:
            return
        queries, error = question.queries, question.work.error
        if error is None:
            answers = question.work.result
            self._outbox += [partial(one.answered, answer) for one, answer in zip(queries, answers, strict=True)]
        elif len(queries) == 1:
            self._outbox.append(partial(queries[0].answered, error))
        else:
            # One text may have caused the error of the whole batch: each is retried by itself.
            self._queries = [[_alone(one)] for one in queries] + self._queries

    def _alike(self) -> list[Query]:
        """The query that has waited longest, and those that can be answered together with it."""
        first = self._queries[0][0]
        alike = [first]
        if first.key is not None:
            alike = first_of_each(
                [[one for one in some if one.key == first.key] for some in self._queries], self._max_batch
            )
        size, batch = 0, list[Query]()
        for query in alike:
            if batch and size + query.tokens > QUESTION_TOKENS:
                break
            batch.append(query)
            size += query.tokens
        taken = set(map(id, batch))
        # Round robin: the next query begins with another request.
        turned = [*self._queries[1:], self._queries[0]]
        self._queries = _living([[one for one in some if id(one) not in taken] for some in turned])
        return batch

    @contextmanager
    def _answering(self, jobs: Sequence[Job]) -> Iterator[None]:
        """Any exception becomes the answer of the jobs in the batch. Their input was validated, so it is a bug."""
        try:
            yield
        except Exception as error:
            if isinstance(error, ValueError):
                error = DefectError(repr(error)).with_traceback(error.__traceback__)
            for job in jobs:
                if not job.cancelled:
                    self._outbox.append(partial(job.answered, error))
                    job.cancelled = True

    def _send(self) -> None:
        """Delivers all answers of a turn to the event loop with one wake-up."""
        if self._outbox:
            outbox = self._outbox.copy()
            self._outbox.clear()
            assert self._loop is not None
            if not self._loop.is_closed():
                self._loop.call_soon_threadsafe(_call_all, outbox)


def _living(requests: Sequence[list[Any]]) -> list[list[Any]]:
    """Without finished and cancelled jobs, and without requests that have no jobs left."""
    kept = ([job for job in jobs if not job.cancelled] for jobs in requests)
    return [jobs for jobs in kept if jobs]


def _alone(query: Query) -> Query:
    query.key = None
    return query


def _settle(future: asyncio.Future[Any], answer: Any) -> None:
    if future.done():
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer)
    else:
        future.set_result(answer)


def _put(events: asyncio.Queue[tuple[int, Any]], number: int, event: Any) -> None:
    events.put_nowait((number, event))


def _call_all(calls: Sequence[Callable[[], None]]) -> None:
    for call in calls:
        call()
