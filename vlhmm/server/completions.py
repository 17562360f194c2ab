"""`POST /v1/completions`: prompts are read in a batch, continuations are written, and both become choices."""

from __future__ import annotations

import json
import math
import time
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import Any

import torch

from vlhmm.control.tokens import ConstrainedTokens
from vlhmm.data import Tokenizer
from vlhmm.server.completion_request import CompletionRequest
from vlhmm.server.errors import RequestError, answered_error
from vlhmm.server.jobs import Choices, Piece, Read, Top, Writing
from vlhmm.server.json_response import JSONResponse, encoded, encoded_list, encoded_object, unless_short
from vlhmm.server.service import Service
from vlhmm.server.texts import Stops, Writer, pieces

MIN_LOG_PROB = -9999.0
"""Stands for -inf, which JSON lacks, as in vLLM."""


@dataclass
class Completion:
    """A completion request on its way through the service."""

    service: Service
    request: CompletionRequest
    prompt_texts: list[str]
    """As they are echoed."""
    begun: float
    """When the request came, by the monotonic clock."""
    deadline: float
    """When it must be answered, by the clock of the event loop."""
    name: str = field(default_factory=lambda: f"cmpl-{uuid.uuid4().hex}")
    created: int = field(default_factory=lambda: int(time.time()))
    reads: list[Read] = field(default_factory=list)
    writings: list[Writing] = field(default_factory=list)
    log_prob_of_constraint: list[float] = field(default_factory=list)
    held: AsyncExitStack = field(default_factory=AsyncExitStack)

    async def begin(self) -> None:
        """Read the prompts, and make ready what is to be written. All errors of a request show here."""
        request, engine = self.request, self.service.engine
        self.service.metrics.read(sum(map(len, request.prompts)))
        wanted = request.logprobs or 0 if request.echo else 0
        self.reads = await engine.read_prompts(request.prompts, top=wanted)
        if not request.max_tokens:
            return
        if request.constraint is not None:
            await self.held.enter_async_context(self.service.constrained())
        for number, (prompt, read) in enumerate(zip(request.prompts, self.reads, strict=True)):
            belief = read.belief
            if read.log_prob == -math.inf:
                if not (request.echo and request.logprobs is not None):
                    raise RequestError(
                        f"the model gives prompt {number} probability zero, so nothing follows it: begin with another text",
                        param="prompt",
                    )
                # The log-probabilities of the prompt are returned if requested; the completion starts from the initial belief and has none.
                belief = engine.opening
            following = None
            if request.constraint is not None:
                following = await self.service.prepare(request.constraint, request.max_tokens, belief)
                log_prob = following.ahead.log_prob(engine.lm.hmm.tables, belief, request.max_tokens)
                self.log_prob_of_constraint.append(float(log_prob.double()))
            self.writings.append(self._writing(prompt, read, following))

    def _writing(self, prompt: list[int], read: Read, following: ConstrainedTokens | None) -> Writing:
        request, tokenizer = self.request, self.service.tokenizer
        generator = torch.Generator(self.service.lm.hmm.tables.device)
        if request.seed is None:
            generator.seed()
        else:
            generator.manual_seed(request.seed)
        belief = read.belief if read.log_prob > -math.inf else self.service.engine.opening
        rows = [
            Choices(Writer(tokenizer, prompt), Stops(request.stop) if request.stop else None, belief)
            for _ in range(request.num)
        ]
        return Writing(
            _discard,
            prompt,
            belief,
            rows,
            request.max_tokens,
            request.choice,
            generator,
            following,
            top=request.logprobs or 0,
            pieces=request.stream,
        )

    async def write(self) -> AsyncIterator[tuple[int, Piece]]:
        """Write all continuations; pieces with the index of their choice."""
        try:
            async for number, piece in self.service.engine.write(
                self.writings, self.deadline if self.request.stream else None
            ):
                yield number * self.request.num + piece.row, piece
            self._count()
        finally:
            await self.held.aclose()

    def _count(self) -> None:
        metrics = self.service.metrics
        for writing in self.writings:
            for row in writing.rows:
                metrics.written(self.begun, writing.times[: len(row.ids)], row.finish_reason or "length")
        usage = self.usage()
        metrics.completed(time.monotonic() - self.begun, usage["prompt_tokens"], usage["completion_tokens"])

    async def answer(self) -> JSONResponse:
        """The whole answer."""
        async for _ in self.write():
            pass

        def choices() -> list[bytes]:
            places = product(range(len(self.request.prompts)), range(self.request.num))
            return [encoded(self._choice(number, row)) for number, row in places]

        usage = self.usage()
        found = encoded_list(await unless_short(choices, usage["total_tokens"]))
        values = {**self._head(), "choices": found, "usage": usage, "warnings": self.request.warnings}
        return JSONResponse(encoded_object(values))

    def _head(self) -> dict[str, Any]:
        model = self.service.settings.model_name
        return {"id": self.name, "object": "text_completion", "created": self.created, "model": model}

    def usage(self) -> dict[str, int]:
        prompt = sum(map(len, self.request.prompts))
        written = sum(len(row.ids) for writing in self.writings for row in writing.rows)
        return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}

    def _choice(self, number: int, row: int) -> dict[str, Any]:
        request = self.request
        text = self.prompt_texts[number] if request.echo else ""
        found: dict[str, Any] = {"index": number * request.num + row, "text": text, "finish_reason": "length"}
        written = self.writings[number].rows[row] if self.writings else None
        if written is not None:
            found |= {
                "text": text + written.text,
                "finish_reason": written.finish_reason,
                "stop_reason": written.stops and written.stops.found,
            }
        found["logprobs"] = self._log_probs(number, written)
        if self.log_prob_of_constraint:
            log_prob = self.log_prob_of_constraint[number]
            found["constraint"] = {"probability": math.exp(log_prob), "log_prob": log_prob}
        return found

    def _log_probs(self, number: int, written: Choices | None) -> dict[str, Any] | None:
        request, tokenizer = self.request, self.service.tokenizer
        if request.logprobs is None:
            return None
        found = LogProbs(tokenizer)
        if request.echo:
            read = self.reads[number]
            found.add_prompt(self.prompt_texts[number], request.prompts[number], read)
        if written is not None:
            self._add(found, number, written, slice(None), request.prompts[number])
        return found.as_json()

    def _add(self, found: LogProbs, number: int, written: Choices, span: slice, before: list[int]) -> None:
        """Tokens that were written. After a prompt of probability zero none has a probability."""
        known = self.reads[number].log_prob > -math.inf
        found.add(written.ids[span], written.log_probs[span] if known else None, written.tops[span], before)

    async def events(self) -> AsyncIterator[bytes]:
        """The answer as server-sent events. What goes wrong from here on is an event too: the status has been sent."""
        try:
            async for event in self._events():
                yield event
        except TimeoutError:
            seconds = self.service.settings.request_seconds
            yield _sent(RequestError(f"the request was not answered within {seconds:g} s: ask for less", 504).body())
        except Exception as error:
            yield _sent(answered_error(error).body())

    async def _events(self) -> AsyncIterator[bytes]:
        request, num = self.request, self.request.num
        sent = [0] * (len(request.prompts) * num)
        offsets = [0] * len(sent)
        if request.echo:
            for index in range(len(sent)):
                number = index // num
                text = self.prompt_texts[number]
                log_probs = await unless_short(partial(self._log_probs, number, None), len(request.prompts[number]))
                offsets[index] = len(text)
                reason = None if self.writings else "length"
                yield self._event(index, text, log_probs, reason)
        if self.writings:
            async for index, piece in self.write():
                number, row = divmod(index, num)
                if not piece.text and piece.finish_reason is None:
                    continue
                log_probs = None
                if request.logprobs is not None:
                    written = self.writings[number].rows[row]
                    span = slice(sent[index], piece.num_tokens)
                    found = LogProbs(self.service.tokenizer, offsets[index])
                    before = [*request.prompts[number], *written.ids[: sent[index]]]
                    self._add(found, number, written, span, before)
                    log_probs = found.as_json()
                sent[index], offsets[index] = piece.num_tokens, offsets[index] + len(piece.text)
                yield self._event(index, piece.text, log_probs, piece.finish_reason)
        if request.include_usage:
            yield _sent({**self._head(), "choices": [], "usage": self.usage()})
        yield b"data: [DONE]\n\n"

    def _event(self, index: int, text: str, log_probs: dict[str, Any] | None, reason: str | None) -> bytes:
        choice: dict[str, Any] = {"index": index, "text": text, "logprobs": log_probs, "finish_reason": reason}
        if reason is not None and self.log_prob_of_constraint:
            log_prob = self.log_prob_of_constraint[index // self.request.num]
            choice["constraint"] = {"probability": math.exp(log_prob), "log_prob": log_prob}
        event = {**self._head(), "choices": [choice]}
        if reason is not None and self.request.warnings:
            event["warnings"] = self.request.warnings
        return _sent(event)


class LogProbs:
    """The four lists of `logprobs`; tokens bear their names in the vocabulary.

    Args:
        tokenizer: The tokenizer.
        offset: Where in the text the first token begins.
    """

    def __init__(self, tokenizer: Tokenizer, offset: int = 0) -> None:
        self._tokenizer, self._offset = tokenizer, offset
        self._tokens: list[str] = []
        self._log_probs: list[float | None] = []
        self._tops: list[dict[str, float] | None] = []
        self._offsets: list[int] = []

    def add_prompt(self, text: str, ids: list[int], read: Read) -> None:
        """The tokens of a prompt; of the first there is no log-probability, as nothing stands before it."""
        cursor = 0
        for piece in pieces(self._tokenizer, ids):
            # The text may have white space that its tokens have not, or words that they do not know.
            bare = piece.strip()
            place = text.find(bare, cursor) if bare else cursor
            start = cursor if place < 0 else place
            # A token begins with the space before its word, where it has one.
            lead = len(piece) - len(piece.lstrip())
            self._offsets.append(max(cursor, start - lead))
            cursor = cursor if place < 0 else place + len(bare)
        self._tokens += map(self._tokenizer.token, ids)
        self._log_probs += [None, *map(_finite, read.log_probs[1:])] if ids else []
        tops = [self._named(top) for top in read.tops] or [{} for _ in ids]
        self._tops += [None, *tops[1:]] if ids else []
        self._offset = len(text)

    def add(self, ids: list[int], log_probs: list[float] | None, tops: list[Top], before: list[int]) -> None:
        """Tokens that were written after `before`; None: their probabilities are not known."""
        writer = Writer(self._tokenizer, before)
        for token in ids:
            self._offsets.append(self._offset)
            self._offset += len(writer.add([token]))
        self._tokens += map(self._tokenizer.token, ids)
        if log_probs is None:
            self._log_probs += [None] * len(ids)
            self._tops += [None] * len(ids)
            return
        self._log_probs += map(_finite, log_probs)
        self._tops += [self._named(top) for top in tops] or [{} for _ in ids]

    def _named(self, top: Top) -> dict[str, float]:
        return {self._tokenizer.token(token): _finite(log_prob) for token, log_prob in top}

    def as_json(self) -> dict[str, Any]:
        return {
            "tokens": self._tokens,
            "token_logprobs": self._log_probs,
            "top_logprobs": self._tops,
            "text_offset": self._offsets,
        }


def _finite(log_prob: float) -> float:
    return max(log_prob, MIN_LOG_PROB)


def _discard(_: Any) -> None:
    """Ignores the answer."""


def _sent(event: Any) -> bytes:
    return (
        b"data: " + json.dumps(event, ensure_ascii=False, allow_nan=False).encode("utf-8", "backslashreplace") + b"\n\n"
    )
