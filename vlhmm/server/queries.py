"""`POST /v1/vlhmm/...`: the queries of the Python API, with its records as JSON."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from starlette.responses import Response

from vlhmm.reports import as_json
from vlhmm.server.answering import Asked, Handler
from vlhmm.server.completion_request import check_lengths, check_model
from vlhmm.server.constraint_fields import constraint_of
from vlhmm.server.errors import RequestError
from vlhmm.server.fields import Fields
from vlhmm.server.json_response import JSONResponse, encoded, encoded_list, encoded_object, unless_short
from vlhmm.server.service import Service
from vlhmm.text.answers import NextTokens, Score, TokenScore
from vlhmm.text.pieces import MAX_GAP_TOKENS


async def score(service: Service, asked: Asked) -> Response:
    """log p of every token; all texts of all requests in one batch."""
    fields = asked.fields
    texts, lists = await asked.parsed(partial(_texts, service, fields))
    eos = service.tokenizer.eos_id
    if fields.flag("eos") and eos is not None:
        lists = [[*ids, eos] for ids in lists]
    if not all(lists):
        raise fields.error("text", "has 0 tokens, but at least 1 is needed")
    reads = await service.engine.read(lists)
    service.metrics.read(sum(map(len, lists)))
    name = service.tokenizer.token

    def scores() -> list[bytes]:
        return [
            encoded(
                as_json(
                    Score([TokenScore(name(token), value) for token, value in zip(ids, read.log_probs, strict=True)]),
                    text=text,
                )
            )
            for text, ids, read in zip(texts, lists, reads, strict=True)
        ]

    return _answer(fields, await unless_short(scores, sum(map(len, lists))))


async def next_tokens(service: Service, asked: Asked) -> Response:
    """The most likely next tokens."""
    fields = asked.fields
    texts, lists = await asked.parsed(partial(_texts, service, fields))
    top = fields.integer("top", 10, 1, service.settings.max_top)
    service.metrics.read(sum(map(len, lists)))

    def likely(texts: list[str]) -> list[bytes]:
        found = service.lm.next_tokens(texts, top)
        return [encoded(as_json(NextTokens(one), text=text)) for text, one in zip(texts, found, strict=True)]

    lengths = list(map(len, lists))
    return _answer(fields, await service.engine.ask_each(("next", top), texts, lengths, likely))


async def posterior(service: Service, asked: Asked) -> Response:
    """The most likely states of each token, given the whole text."""
    top = asked.fields.integer("top", 3, 1, service.settings.max_top)

    def states(texts: list[str]) -> list[bytes]:
        found = service.lm.posterior(texts, top)
        return [_listed(text, "tokens", one) for text, one in zip(texts, found, strict=True)]

    return await _each(service, asked, ("posterior", top), states)


async def viterbi(service: Service, asked: Asked) -> Response:
    """The most likely state paths."""
    k = asked.fields.integer("k", 1, 1, 100)

    def paths(texts: list[str]) -> list[bytes]:
        found = service.lm.viterbi(texts, k)
        return [_listed(text, "paths", one) for text, one in zip(texts, found, strict=True)]

    return await _each(service, asked, ("viterbi", k), paths)


async def infill(service: Service, asked: Asked) -> Response:
    """What may stand in the gaps of a text."""
    fields, settings = asked.fields, service.settings
    num = fields.integer("num", 5, 0, settings.max_texts)
    top = fields.integer("top", 5, 1, settings.max_top)
    gap = fields.raw("gap")
    if gap is None:
        gap = [1, 1]
    if not isinstance(gap, list) or len(gap) != 2 or any(type(one) is not int for one in gap):
        raise fields.error("gap", "must be two numbers of tokens, the smaller first: [1, 4]")
    if not 1 <= gap[0] <= gap[1] <= MAX_GAP_TOKENS:
        raise fields.error("gap", f"is {gap}, but must be between 1 and {MAX_GAP_TOKENS}, the smaller number first")
    eos, exclude = fields.flag("eos"), fields.texts("exclude", settings.max_texts)
    seed = fields.optional_integer("seed", -(1 << 63), (1 << 64) - 1)

    def filled(texts: list[str]) -> list[bytes]:
        (text,) = texts
        generator = torch.Generator(service.lm.hmm.tables.device)
        if seed is None:
            generator.seed()
        else:
            generator.manual_seed(seed)
        found = service.lm.infill(
            text, num=num, top=top, gap=(gap[0], gap[1]), eos=eos, exclude=exclude, seed=generator
        )
        return [encoded(as_json(found, text=text))]

    return await _each(service, asked, None, filled)


async def constraint_probability(service: Service, asked: Asked) -> Response:
    """P(the next tokens satisfy a constraint)."""
    fields = asked.fields
    texts, lists = await asked.parsed(partial(_texts, service, fields))
    length = fields.integer("length", 0, 0, service.settings.max_tokens)
    if not length:
        raise fields.error("length", "is missing: give a number of tokens of at least 1")
    until_eos = fields.flag("until_eos")
    wanted = fields.object("constraint")
    if wanted is None:
        raise fields.error("constraint", 'is missing: give an object such as {"contains": ["file"]}')
    constraint = constraint_of(wanted)
    reads = await service.engine.read(lists)
    service.metrics.read(sum(map(len, lists)))
    data = list[bytes]()
    async with service.constrained():
        for text, ids, read in zip(texts, lists, reads, strict=True):
            if read.log_prob == -math.inf:
                raise fields.error("text", "has probability zero, so nothing follows it: give another text")
            belief = read.belief if ids else service.engine.opening
            probability = await service.probability(constraint, length, belief, until_eos)
            data.append(encoded({"text": text, "constraint": repr(constraint), "probability": probability}))
    return _answer(fields, data, wanted.warnings())


async def analyze(service: Service, asked: Asked) -> dict[str, Any]:
    """What the explorer page shows of a text."""
    from vlhmm.explorer.analysis import ConstraintPath, analyse_text

    fields = asked.fields
    check_model(fields, service.settings)
    text = fields.text("text")
    lists = await asked.parsed(partial(_encoded, service, "text", [text]))
    _check_short(lists, service.settings.max_analysed_length)
    top = fields.integer("top", 4, 1, 10)
    wanted = fields.object("constraint")
    constraint = None if wanted is None else constraint_of(wanted)
    found = await service.engine.ask(lambda: analyse_text(service.lm, text, top=top))
    if wanted is not None and constraint is not None:
        probs = await service.constraint_path(constraint, lists[0])
        found = replace(found, constraint=ConstraintPath(repr(constraint), probs))
    warnings = [*([] if wanted is None else wanted.warnings()), *fields.warnings()]
    return {**as_json(found), "warnings": warnings}


QUERIES: dict[str, Handler] = {
    "/v1/vlhmm/score": score,
    "/v1/vlhmm/next": next_tokens,
    "/v1/vlhmm/posterior": posterior,
    "/v1/vlhmm/viterbi": viterbi,
    "/v1/vlhmm/infill": infill,
    "/v1/vlhmm/constraint_probability": constraint_probability,
    "/v1/vlhmm/analyze": analyze,
}


def _texts(service: Service, fields: Fields) -> tuple[list[str], list[list[int]]]:
    """The texts of a request and their tokens."""
    check_model(fields, service.settings)
    texts = fields.texts("text", service.settings.max_texts)
    if not texts:
        raise fields.error("text", "is missing: give a text, or a list of texts")
    return texts, _encoded(service, "text", texts)


def _encoded(service: Service, key: str, texts: list[str]) -> list[list[int]]:
    longest = max(map(len, texts))
    if longest > 64 * service.settings.max_length:
        raise RequestError(
            f"{key} has {longest} characters, but the limit is {64 * service.settings.max_length}", param=key
        )
    try:
        lists = service.tokenizer.encode_batch(texts)
    except ValueError as error:
        raise RequestError(f"{key} cannot be read: {error}", param=key) from None
    check_lengths(key, lists, service.settings)
    return lists


def _check_short(lists: list[list[int]], limit: int) -> None:
    longest = max(map(len, lists))
    if longest > limit:
        raise RequestError(f"text has {longest} tokens, but the limit of this query is {limit}: cut it", param="text")


async def _each(service: Service, asked: Asked, key: Hashable, ask: Callable[[list[str]], Sequence[bytes]]) -> Response:
    """The answers for each text."""
    fields = asked.fields
    texts, lists = await asked.parsed(partial(_texts, service, fields))
    _check_short(lists, service.settings.max_query_length)
    if not all(lists):
        raise fields.error("text", "has 0 tokens, but at least 1 is needed")
    service.metrics.read(sum(map(len, lists)))
    return _answer(fields, await service.engine.ask_each(key, texts, list(map(len, lists)), ask))


def _listed(text: str, name: str, records: Sequence[Any]) -> bytes:
    """The answer for one text, record by record."""
    return encoded_object({"text": text, name: encoded_list(encoded(as_json(one)) for one in records)})


def _answer(fields: Fields, data: list[bytes], warnings: list[str] | None = None) -> Response:
    said = [*(warnings or []), *fields.warnings()]
    return JSONResponse(encoded_object({"object": "list", "data": encoded_list(data), "warnings": said}))
