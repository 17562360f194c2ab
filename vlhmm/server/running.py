"""A server in this process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from vlhmm.lm import LanguageModel
from vlhmm.server.connections import OnceAMinute, connection
from vlhmm.server.routes import application
from vlhmm.server.settings import ServerSettings

BACKLOG = 2048
"""Connections that the system holds until they are accepted."""
ACCEPTED_AT_ONCE = 32
"""asyncio accepts so many before it looks at any of them, and each takes an open file."""
CUT_OFF_SECONDS = 10
"""For the answers to requests that are cut off; then connections are closed in any case."""
LOGGERS = ("asyncio", "uvicorn.error")


def serve(
    lm: LanguageModel,
    settings: ServerSettings | None = None,
    *,
    folder: Path | None = None,
    log_requests: bool = False,
    started: Callable[[str], None] | None = None,
) -> None:
    """Serve a model until SIGTERM or SIGINT; requests that are under way are answered before this returns.

    Args:
        lm: The model.
        settings: Limits, address and keys.
        folder: Where the model was loaded from, for the explorer page.
        log_requests: Print a line for each request.
        started: Called with the address once requests are answered.

    Raises:
        ValueError: The address cannot be listened on.
    """
    settings = settings or ServerSettings()
    app = application(lm, settings, folder)
    listening = _listening(settings)
    host, port = listening.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    config = configuration(app, settings, log_requests)
    server = Server(config, app, (lambda: started(f"http://{shown}:{port}")) if started else None)
    with listening, _logged_once():
        server.run(sockets=[listening])


def configuration(app: Starlette, settings: ServerSettings, log_requests: bool = False) -> uvicorn.Config:
    """How uvicorn is to serve the application."""
    return uvicorn.Config(
        app,
        port=settings.port,
        # A function in the place of the class: it has the settings.
        http=connection(settings),  # type: ignore[arg-type]
        ws="none",
        log_level="info" if log_requests else "warning",
        access_log=log_requests,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)) + CUT_OFF_SECONDS,
        backlog=ACCEPTED_AT_ONCE,
        h11_max_incomplete_event_size=1 << 16,
    )


@contextmanager
def _logged_once() -> Iterator[None]:
    """What clients can provoke is not logged every time."""
    once = OnceAMinute()
    for name in LOGGERS:
        logging.getLogger(name).addFilter(once)
    try:
        yield
    finally:
        for name in LOGGERS:
            logging.getLogger(name).removeFilter(once)


def _listening(settings: ServerSettings) -> socket.socket:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    listening = socket.socket(family, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((settings.host, settings.port))
    except OSError as error:
        listening.close()
        raise ValueError(
            f"cannot listen on {settings.host}, port {settings.port}: {error.strerror or error}; choose another --port"
        ) from None
    return listening


class Server(uvicorn.Server):
    """Says when it has started, cuts off what is not answered in time after a signal, and ends with status 0."""

    def __init__(self, config: uvicorn.Config, app: Starlette, started: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._app, self._say = app, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listening in sockets or ():
            listening.listen(BACKLOG)
        if self.started and self._say is not None:
            self._say()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError):
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self.end, number)
        yield

    def end(self, number: int) -> None:
        """What a signal asks for."""
        service = self._app.state.service
        if not service.draining:
            service.draining = True
            asyncio.get_running_loop().call_later(service.settings.drain_seconds, service.cut_off)
        self.handle_exit(number, None)
