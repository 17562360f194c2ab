"""A server in this process, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn
from starlette.applications import Starlette

from vlhmm.lm import LanguageModel
from vlhmm.server.routes import application
from vlhmm.server.settings import ServerSettings


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
    config = uvicorn.Config(
        app,
        log_level="info" if log_requests else "warning",
        access_log=log_requests,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=max(1, round(settings.drain_seconds)),
        backlog=2048,
        h11_max_incomplete_event_size=1 << 16,
    )
    shown = f"[{host}]" if ":" in host else host
    server = _Server(config, app, (lambda: started(f"http://{shown}:{port}")) if started else None)
    with listening:
        server.run(sockets=[listening])


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


class _Server(uvicorn.Server):
    """Says when it has started, and ends with status 0 after a signal."""

    def __init__(self, config: uvicorn.Config, app: Starlette, started: Callable[[], None] | None) -> None:
        super().__init__(config)
        self._app, self._say = app, started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started and self._say is not None:
            self._say()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        with suppress(NotImplementedError, RuntimeError):
            for number in (signal.SIGINT, signal.SIGTERM):
                loop.add_signal_handler(number, self._end, number)
        yield

    def _end(self, number: int) -> None:
        self._app.state.service.draining = True
        self.handle_exit(number, None)
