"""What a server allows: sizes, times, keys."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(frozen=True)
class ServerSettings:
    """Limits of a server; a request beyond them is refused with the number and the limit.

    Example:
        >>> from vlhmm.server import ServerSettings
        >>> ServerSettings(max_batch=8).max_batch
        8
    """

    host: str = "127.0.0.1"
    """The address that is listened on; 0.0.0.0: all of this machine."""
    port: int = 8000
    """0: any free port."""
    model_name: str = "vlhmm"
    """What `/v1/models` and answers call the model."""
    api_keys: tuple[str, ...] = ()
    """Keys of which a request must bring one; none: every request is answered."""
    max_batch: int = 64
    """Texts that are computed side by side."""
    max_requests: int = 512
    """Requests at a time, running and waiting; more are answered 429."""
    max_connections: int = 4096
    """Connections at a time, with and without a request, and fewer where the process may not open so many files; more are answered
    503."""
    max_body_bytes: int = 4 << 20
    """Of a request; longer ones are answered 413."""
    max_length: int = 32_768
    """Tokens of a prompt or text."""
    max_total_length: int = 262_144
    """Tokens of all prompts or texts of a request."""
    max_tokens: int = 4096
    """New tokens of a text."""
    max_texts: int = 1024
    """Prompts or texts of a request, and choices: prompts x `n`."""
    max_top: int = 100
    """Most likely tokens or states that are named for each position."""
    max_stop: int = 16
    """Stop strings of a request."""
    max_query_length: int = 2048
    """Tokens of a text in queries of states: one at a time is computed."""
    max_analysed_length: int = 200
    """Tokens of a text for the explorer page."""
    max_constraint_bytes: int = 1 << 28
    """What the table of one constraint may take."""
    max_constrained: int = 16
    """Requests under a constraint that hold such a table; others wait."""
    constraint_seconds: float = 2.0
    """CPU time until a constraint is compiled."""
    lookahead_seconds: float = 30.0
    """CPU time until the table of a constraint is filled."""
    header_seconds: float = 10.0
    """Until the head of a request has arrived; a slower one is answered 408."""
    body_seconds: float = 30.0
    """Until the body of a request has arrived; a slower one is answered 408."""
    request_seconds: float = 300.0
    """Until a request is answered; else it is answered 504."""
    drain_seconds: float = 30.0
    """After SIGTERM, until requests that are under way are cut off and answered 503."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int | float) and field.name != "port" and not value > 0:
                raise ValueError(f"{field.name} is {value}, but must be above 0")
        if not 0 <= self.port < 1 << 16:
            raise ValueError(f"port is {self.port}, but must be between 0 and 65535")
        if any(not key for key in self.api_keys):
            raise ValueError("an API key is empty (0 characters): give a longer one, or none")
