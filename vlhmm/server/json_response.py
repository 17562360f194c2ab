"""Answers in JSON."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from typing import Any

from starlette.responses import Response

from vlhmm.pauses import pause


class JSONResponse(Response):
    """JSON in UTF-8. Half a character, as a request may have named it, is escaped; NaN and infinity are bugs of the server.

    Bytes are JSON already.
    """

    media_type = "application/json"

    def __init__(self, content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(content, status, dict(headers or {}))

    def render(self, content: Any) -> bytes:
        return content if isinstance(content, bytes) else encoded(content)


def encoded(content: Any) -> bytes:
    """JSON."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    return text.encode("utf-8", "backslashreplace")


def encoded_list(items: Iterable[bytes]) -> bytes:
    """A list of what is JSON already; others may have their turn between two items."""
    parts = []
    for item in items:
        pause()
        parts.append(item)
    return b"[" + b",".join(parts) + b"]"


def encoded_object(values: Mapping[str, Any]) -> bytes:
    """An object some of whose values are JSON already, as bytes."""
    items = (
        encoded(key) + b":" + (value if isinstance(value, bytes) else encoded(value)) for key, value in values.items()
    )
    return b"{" + b",".join(items) + b"}"


async def unless_short(make: Any, tokens: int) -> Any:
    """What `make` returns, in another thread where it is about many tokens."""
    return await asyncio.to_thread(make) if tokens > SHORT_TOKENS else make()


SHORT_TOKENS = 1024
"""An answer about more tokens takes so long to put together that other requests are answered meanwhile."""
