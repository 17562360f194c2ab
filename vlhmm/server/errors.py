"""What is said to a client whose request is not answered, in the shape that OpenAI's clients read."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

logger = logging.getLogger("vlhmm.server")

TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "invalid_request_error",
    429: "rate_limit_error",
    500: "internal_error",
    503: "overloaded_error",
    504: "timeout_error",
}


class RequestError(Exception):
    """A request that is answered with a status of 400 or above.

    Args:
        message: What is wrong, the number, the limit and the remedy.
        status: The status of HTTP.
        param: The field that is meant; None: none in particular.
        code: A short name of the reason for programs; None: the status says it.
        headers: Further headers of the answer.
    """

    def __init__(
        self,
        message: str,
        status: int = 400,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message, self.status, self.param, self.code = message, status, param, code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        return error_body(self.message, self.status, self.param, self.code)


def error_body(message: str, status: int, param: str | None = None, code: str | None = None) -> dict[str, Any]:
    return {"error": {"message": message, "type": TYPES.get(status, "error"), "param": param, "code": code}}


def shown(value: Any) -> str:
    """A value of a request as a message names it."""
    text = ascii(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def answered_error(error: Exception) -> RequestError:
    """The error response of an exception. A ValueError says what is wrong with the request; a bug is logged."""
    import torch

    if isinstance(error, RequestError):
        return error
    if isinstance(error, ValueError):
        return RequestError(" ".join(str(error).split()))
    no_memory = isinstance(error, MemoryError | torch.OutOfMemoryError) or "can't allocate memory" in str(error)
    if no_memory:
        return RequestError("out of memory: ask for less at a time", 503, headers={"Retry-After": "1"})
    logger.error("a request failed", exc_info=error)
    return RequestError("an error in the server; its log says more", 500)
