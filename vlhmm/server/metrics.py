"""What is counted, under vLLM's names with the prefix `vlhmm_`, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

from vlhmm.server.engine import Load

FIRST_TOKEN_BUCKETS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
TOKEN_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
REQUEST_BUCKETS = (
    0.005,
    0.01,
    0.025,
    0.05,
    0.1,
    0.3,
    0.5,
    0.8,
    1.0,
    1.5,
    2.0,
    2.5,
    5.0,
    10.0,
    15.0,
    20.0,
    30.0,
    60.0,
    120.0,
)
COUNT_BUCKETS = tuple(map(float, (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, 20_000, 50_000)))


class Metrics:
    """Counters of one server.

    Args:
        model_name: The label of all of them.
        load: What is computed and what waits.
    """

    def __init__(self, model_name: str, load: Callable[[], Load]) -> None:
        self._registry = CollectorRegistry()
        self._label = model_name

        def gauge(name: str, what: str, value: Callable[[], float]) -> None:
            Gauge(name, what, ["model_name"], registry=self._registry).labels(model_name).set_function(value)

        def histogram(name: str, what: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(name, what, ["model_name"], registry=self._registry, buckets=buckets).labels(model_name)

        def counter(name: str, what: str, *labels: str) -> Counter:
            return Counter(name, what, ["model_name", *labels], registry=self._registry)

        gauge("vlhmm_num_requests_running", "Texts that are being computed.", lambda: load().running)
        gauge("vlhmm_num_requests_waiting", "Texts and questions that wait.", lambda: load().waiting)
        self._prompt_tokens = counter("vlhmm_prompt_tokens", "Tokens of prompts and texts.").labels(model_name)
        self._generated = counter("vlhmm_generation_tokens", "Tokens that were written.").labels(model_name)
        self._finished = counter("vlhmm_request_success", "Continuations that were finished.", "finished_reason")
        self._http = counter("vlhmm_http_requests", "Requests that were answered.", "method", "path", "status")
        self._first = histogram(
            "vlhmm_time_to_first_token_seconds", "From the request to its first token.", FIRST_TOKEN_BUCKETS
        )
        self._between = histogram("vlhmm_inter_token_latency_seconds", "Between two tokens of a text.", TOKEN_BUCKETS)
        self._whole = histogram("vlhmm_e2e_request_latency_seconds", "From request to answer.", REQUEST_BUCKETS)
        self._prompt_size = histogram("vlhmm_request_prompt_tokens", "Tokens of a request's prompts.", COUNT_BUCKETS)
        self._size = histogram("vlhmm_request_generation_tokens", "Tokens written for a request.", COUNT_BUCKETS)

    def text(self) -> bytes:
        """The text format of Prometheus."""
        return generate_latest(self._registry)

    def read(self, tokens: int) -> None:
        self._prompt_tokens.inc(tokens)

    def answered(self, method: str, path: str, status: int) -> None:
        self._http.labels(self._label, method, path, str(status)).inc()

    def written(self, begun: float, times: Sequence[float], reason: str) -> None:
        """One continuation: when the request came, when each token was there, why it ended."""
        self._finished.labels(self._label, reason).inc()
        self._generated.inc(len(times))
        if times:
            self._first.observe(times[0] - begun)
        for earlier, later in pairwise(times):
            self._between.observe(later - earlier)

    def completed(self, seconds: float, prompt_tokens: int, tokens: int) -> None:
        """One request to `/v1/completions`."""
        self._whole.observe(seconds)
        self._prompt_size.observe(prompt_tokens)
        self._size.observe(tokens)
