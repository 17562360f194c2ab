"""The paths of the server and what answers them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from vlhmm._version import __version__
from vlhmm.lm import LanguageModel
from vlhmm.server.answering import Asked, endpoint
from vlhmm.server.completion_request import completion_request
from vlhmm.server.completions import Completion
from vlhmm.server.errors import error_body
from vlhmm.server.gate import Gate
from vlhmm.server.json_response import JSONResponse
from vlhmm.server.openapi import description
from vlhmm.server.queries import QUERIES
from vlhmm.server.service import Service
from vlhmm.server.settings import ServerSettings
from vlhmm.server.tokenization import detokenize, tokenize, tokenizer_info


def application(lm: LanguageModel, settings: ServerSettings | None = None, folder: Path | None = None) -> Starlette:
    """Make the ASGI application that serves a model.

    Args:
        lm: The model. From here on it belongs to the server.
        settings: Limits, names and keys.
        folder: Where the model was loaded from; the explorer page takes its text from there. None: it draws one.

    Returns:
        The application; `application.state.service` is what its requests share.

    Example:
        >>> from vlhmm.server import application
        >>> app = application(vlhmm.load("demo-model"))
        >>> "/v1/completions" in [route.path for route in app.routes]
        True
    """
    service = Service(lm, settings or ServerSettings(), folder)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        service.start()
        try:
            yield
        finally:
            service.stop()

    created = int(time.time())
    posts = {"/v1/completions": completions, "/tokenize": tokenize, "/detokenize": detokenize, **QUERIES}
    gets = {
        "/v1/models": lambda: {"object": "list", "data": [_model(service, created)]},
        f"/v1/models/{service.settings.model_name}": lambda: _model(service, created),
        "/version": lambda: {"version": __version__},
        "/tokenizer_info": lambda: tokenizer_info(service),
        "/openapi.json": lambda: description(service.settings),
    }
    routes = [Route(path, endpoint(service, handler), methods=["POST"]) for path, handler in posts.items()]
    routes += [Route(path, partial(_get, answer), methods=["GET"]) for path, answer in gets.items()]
    routes += [
        Route("/health", partial(_health, service), methods=["GET"]),
        Route("/metrics", partial(_metrics, service), methods=["GET"]),
        Route("/", partial(_page, service), methods=["GET"]),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        middleware=[Middleware(Gate, service=service, paths=[route.path for route in routes])],
        exception_handlers={HTTPException: _http_error},
    )
    app.state.service = service
    return app


async def completions(service: Service, asked: Asked) -> Response | dict[str, Any]:
    """`POST /v1/completions`."""
    request = await asked.parsed(partial(completion_request, asked.fields, service.tokenizer, service.settings))
    given = asked.fields.raw("prompt")
    texts = [given] if isinstance(given, str) else given
    if not (isinstance(texts, list) and texts and isinstance(texts[0], str)):
        texts = [service.tokenizer.decode(ids) for ids in request.prompts] if request.echo else []
    completion = Completion(service, request, texts, asked.begun, asked.deadline)
    try:
        await completion.begin()
    except BaseException:
        await completion.held.aclose()
        raise
    if request.stream:
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        return StreamingResponse(completion.events(), media_type="text/event-stream", headers=headers)
    return await completion.answer()


def _model(service: Service, created: int) -> dict[str, Any]:
    name = service.settings.model_name
    return {"id": name, "object": "model", "created": created, "owned_by": "vlhmm", **service.information()}


async def _get(answer: Any, _: Request) -> Response:
    return JSONResponse(answer())


async def _health(service: Service, _: Request) -> Response:
    alive = service.engine.alive and not service.draining
    return JSONResponse({"status": "ok" if alive else "unavailable"}, 200 if alive else 503)


async def _metrics(service: Service, _: Request) -> Response:
    return Response(service.metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


async def _page(service: Service, _: Request) -> Response:
    # A GPU is the engine's alone; on a CPU others go on meanwhile.
    on_gpu = service.lm.hmm.tables.device.type == "cuda"
    html = await (service.engine.ask(service.page) if on_gpu else asyncio.to_thread(service.page))
    headers = {"Content-Security-Policy": "frame-ancestors 'none'"}
    return Response(html, media_type="text/html; charset=utf-8", headers=headers)


async def _http_error(_: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = "there is no such path: see /openapi.json" if error.status_code == 404 else str(error.detail)
    return JSONResponse(error_body(message, error.status_code), error.status_code, error.headers)
