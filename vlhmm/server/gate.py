"""What every request passes: its key, the number of requests at a time, the count of answers."""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Iterable

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from vlhmm.server.errors import RequestError
from vlhmm.server.json_response import JSONResponse
from vlhmm.server.service import Service

WITHOUT_KEY = ("/health",)
RETRY_SECONDS = 1


class Keys:
    """API keys, compared in constant time: neither the key nor which of them it is shows in the time that it takes.

    Args:
        keys: The keys; none: everyone may ask.
    """

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    def allow(self, authorization: str) -> bool:
        given = _digest(_key_of(authorization))
        # All are compared, whichever fits.
        fits = [hmac.compare_digest(given, digest) for digest in self._digests]
        return not fits or any(fits)


def _key_of(authorization: str) -> bytes:
    """The key of `Bearer KEY`, or the password of `Basic ...`, which browsers ask for; empty where there is none."""
    scheme, _, rest = authorization.partition(" ")
    # Headers are read as Latin-1; what was sent are bytes.
    sent = rest.strip().encode("latin-1")
    match scheme.lower():
        case "bearer":
            return sent
        case "basic":
            try:
                return base64.b64decode(sent, validate=True).partition(b":")[2]
            except ValueError:
                return b""
        case _:
            return b""


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


class Gate:
    """Refuses requests without a key (401) and more of them than are allowed at a time (429), and counts answers.

    Args:
        app: What answers the others.
        service: The service.
        paths: Paths that are answered; all others count as one.
    """

    def __init__(self, app: ASGIApp, service: Service, paths: Iterable[str]) -> None:
        self._app, self._service, self._paths = app, service, frozenset(paths)
        self._keys = Keys(service.settings.api_keys)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        path: str = scope["path"] if scope["path"] in self._paths else "other"

        async def counted(message: Message) -> None:
            if message["type"] == "http.response.start":
                self._service.metrics.answered(scope["method"], path, message["status"])
                message.setdefault("headers", []).append((b"x-content-type-options", b"nosniff"))
            await send(message)

        refused = self._refusal(scope)
        if refused is not None:
            response = JSONResponse(refused.body(), refused.status, refused.headers)
            await response(scope, receive, counted)
            return
        computes: bool = scope["method"] == "POST"
        self._service.in_progress += computes
        try:
            await self._app(scope, receive, counted)
        finally:
            self._service.in_progress -= computes

    def _refusal(self, scope: Scope) -> RequestError | None:
        settings = self._service.settings
        if scope["path"] not in WITHOUT_KEY and not self._keys.allow(Headers(scope=scope).get("authorization", "")):
            return RequestError(
                "no valid API key: send the header `Authorization: Bearer KEY`",
                401,
                code="invalid_api_key",
                # A browser that asks for the page asks its user for a password.
                headers={"WWW-Authenticate": 'Basic realm="vlhmm"' if scope["path"] == "/" else "Bearer"},
            )
        if scope["method"] == "POST" and self._service.draining:
            return self._service.ending()
        if scope["method"] == "POST" and self._service.in_progress >= settings.max_requests:
            return RequestError(
                f"{settings.max_requests} requests are running or waiting, the limit: try again in {RETRY_SECONDS} s",
                429,
                headers={"Retry-After": str(RETRY_SECONDS)},
            )
        return None
