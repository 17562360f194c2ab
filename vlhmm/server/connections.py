"""Connections of HTTP/1.1: how many there may be, how long a request may take to arrive, and errors before there is a request."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import STATUS_PHRASES, H11Protocol

from vlhmm.server.errors import error_body
from vlhmm.server.json_response import encoded
from vlhmm.server.settings import ServerSettings

OTHER_FILES = 64
"""Open files that are no connections: the model, the log, the event loop."""
SECONDS_BETWEEN = 60.0
"""The same message of the network is logged once in so long."""


def allowed_connections(settings: ServerSettings) -> int:
    """As many as the settings say, and fewer where the process may not open so many files; its limit is raised first."""
    try:
        import resource
    except ModuleNotFoundError:
        # Not on Windows.
        return settings.max_connections
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = settings.max_connections + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        soft = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return max(1, min(settings.max_connections, soft - OTHER_FILES))
    return settings.max_connections


def connection(settings: ServerSettings) -> Callable[..., asyncio.Protocol]:
    """What uvicorn makes for each connection."""
    most = allowed_connections(settings)

    def made(*args: Any, **options: Any) -> Connection:
        return Connection(*args, settings=settings, most=most, **options)

    return made


class Connection(H11Protocol):
    """A connection with a time limit until the head of a request is there; one too many is answered 503.

    Args:
        settings: Limits.
        most: Connections at a time.
    """

    def __init__(self, *args: Any, settings: ServerSettings, most: int, **options: Any) -> None:
        super().__init__(*args, **options)
        self._settings, self._most = settings, most
        self._arriving: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.transport = _Open(transport)  # type: ignore[assignment]
        if len(self.connections) > self._most:
            self._refuse(503, f"{self._most} connections are open, the limit: try again later")
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        self._arrived()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():
            return
        super().data_received(data)
        # Between two requests uvicorn's keep-alive timeout applies, until the first byte of the next one.
        if self.conn.their_state is h11.IDLE and (self.cycle is None or self.conn.trailing_data[0]):
            self._watch()
        else:
            self._arrived()

    def send_400_response(self, msg: str) -> None:
        self._refuse(400, "this is no valid request of HTTP/1.1")

    def _watch(self) -> None:
        if self._arriving is None:
            self._arriving = self.loop.call_later(self._settings.header_seconds, self._too_slow)

    def _arrived(self) -> None:
        if self._arriving is not None:
            self._arriving.cancel()
            self._arriving = None

    def _too_slow(self) -> None:
        self._arriving = None
        self._refuse(408, f"the head of a request did not arrive within {self._settings.header_seconds:g} s")

    def _refuse(self, status: int, message: str) -> None:
        """Answer what is no request yet, and close."""
        self._arrived()
        if self.transport.is_closing():
            return
        body = encoded(error_body(message, status))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
        ]
        # If a response has begun, no second one can be sent: the client sees it truncated.
        with suppress(h11.LocalProtocolError):
            for event in (
                h11.Response(status_code=status, headers=headers, reason=STATUS_PHRASES[status]),
                h11.Data(data=body),
                h11.EndOfMessage(),
            ):
                self.transport.write(self.conn.send(event) or b"")
        self.transport.close()


class _Open:
    """A transport that drops writes once it is closing: asyncio would log a line for each of them."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport

    def write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class OnceAMinute(logging.Filter):
    """Lets a message that clients can provoke as often as they like pass once in a while; all others always.

    Args:
        clock: The time.
    """

    PROVOKED = (
        "Invalid HTTP request received.",
        "Unsupported upgrade request.",
        "socket.accept() out of system resource",
    )

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__()
        self._clock = clock
        self._last: dict[str, float] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        first_line = str(record.msg).partition("\n")[0]
        if first_line not in self.PROVOKED:
            return True
        if self._clock() - self._last.get(first_line, -SECONDS_BETWEEN) < SECONDS_BETWEEN:
            return False
        self._last[first_line] = self._clock()
        # Without the traceback, which lies within asyncio.
        record.msg, record.exc_info, record.exc_text = first_line, None, None
        return True
