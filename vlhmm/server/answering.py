"""From a request of HTTP to a handler and back: the body, time limits, a client that hangs up, errors."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import Any

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from vlhmm.server.errors import RequestError, answered_error
from vlhmm.server.fields import Fields, parse_object
from vlhmm.server.json_response import JSONResponse
from vlhmm.server.service import Service

CLOSED = 499
"""Status after client disconnect."""
LONG_BODY = 1 << 15
"""Bytes: reading the fields of a longer body takes so long that other requests are answered meanwhile."""


@dataclass(frozen=True)
class Asked:
    """A request whose body has been read."""

    fields: Fields
    begun: float
    """When it came, by the monotonic clock."""
    deadline: float
    """When it must be answered, by the clock of the event loop."""
    long: bool

    async def parsed(self, parse: Callable[[], Any]) -> Any:
        """What `parse` makes of the fields, in another thread where they are long."""
        return await asyncio.to_thread(parse) if self.long else parse()


Handler = Callable[[Service, Asked], Awaitable[Response | dict[str, Any]]]


def endpoint(service: Service, handler: Handler) -> Callable[[Request], Coroutine[Any, Any, Response]]:
    """The handler of a POST request, as Starlette calls it."""

    async def answer(request: Request) -> Response:
        task = asyncio.current_task()
        assert task is not None
        service.unanswered.add(task)
        try:
            return await unless_cut_off(request)
        except asyncio.CancelledError:
            if not service.cut:
                raise
            task.uncancel()
            refused = service.ending()
            return JSONResponse(refused.body(), refused.status, refused.headers)
        finally:
            service.unanswered.discard(task)

    async def unless_cut_off(request: Request) -> Response:
        begun = time.monotonic()
        deadline = asyncio.get_running_loop().time() + service.settings.request_seconds
        try:
            body = await _body(request, service)
            asked = Asked(Fields(parse_object(body)), begun, deadline, len(body) > LONG_BODY)
            found = await _unless_closed(request, handler(service, asked), deadline, service)
        except ClientDisconnect:
            return Response(status_code=CLOSED)
        except Exception as error:
            refused = answered_error(error)
            return JSONResponse(refused.body(), refused.status, refused.headers)
        return found if isinstance(found, Response) else JSONResponse(found)

    return answer


async def _body(request: Request, service: Service) -> bytes:
    settings = service.settings
    too_long = RequestError(
        f"the body has more than {settings.max_body_bytes} bytes, the limit: send several requests", 413
    )
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:20]) > settings.max_body_bytes:
        raise too_long
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(settings.body_seconds):
            async for part in request.stream():
                size += len(part)
                if size > settings.max_body_bytes:
                    raise too_long
                parts.append(part)
    except TimeoutError:
        raise RequestError(f"the body did not arrive within {settings.body_seconds:g} s", 408) from None
    return b"".join(parts)


async def _unless_closed(
    request: Request, work: Awaitable[Response | dict[str, Any]], deadline: float, service: Service
) -> Response | dict[str, Any]:
    """What the work returns; it is cancelled when the client hangs up or the time is over."""
    working = asyncio.ensure_future(work)
    watching = asyncio.ensure_future(_closed(request))
    try:
        left = deadline - asyncio.get_running_loop().time()
        await asyncio.wait({working, watching}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if watching.done():
            raise ClientDisconnect
        seconds = service.settings.request_seconds
        raise RequestError(f"the request was not answered within {seconds:g} s: ask for less", 504)
    finally:
        for task in (working, watching):
            if not task.done():
                task.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _closed(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
