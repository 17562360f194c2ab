"""Repeated queries of one shape to a dense HMM on a GPU: what depends on its tables alone is computed once, the rest is a CUDA graph.

The kernels of a short text finish sooner than Python launches them. A graph is one launch. Whether the input is valid, and no number
underflows, is checked once, at the end. If the check fails nothing is returned, and the caller falls back to the path that reports
the error or computes in a wider range.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.capture import Graphed
from vlhmm.inference import scan
from vlhmm.inference.posterior import Counts, Posterior
from vlhmm.inference.viterbi import Paths
from vlhmm.memory import available_bytes
from vlhmm.ops import waiting
from vlhmm.ops.checked_tokens import Checked, checked_tokens
from vlhmm.ops.emission.word_rows import launch as word_rows
from vlhmm.ops.max_product import dense as max_dense
from vlhmm.ops.max_product.dense import Moves
from vlhmm.ops.recursion import dense, tilings
from vlhmm.ops.recursion.dense import DenseRun, Prepared, Text
from vlhmm.ops.recursion.scaled import Gradient
from vlhmm.tables import Tables

MAX_GRAPHS = 8
"""Shapes and queries kept at a time."""

IDLE_ASKS = 64
"""A shape that was not asked for so many questions is new again, and its graph makes room for another."""

MAX_REMEMBERED = 1000
"""Shapes remembered as asked before."""

MAX_LENGTH = 4096
"""Longer texts go in windows."""

MEMORY_PART = 16
"""What a graph holds may take one in so many bytes of the GPU."""


class Fixed:
    """Precomputed operands that depend on the tables alone, cached at first use. The tile of the matrix products takes as much memory as
    the transition table, in bf16 half of it; that of `moves` takes as much as the table."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables

    @cached_property
    def log_tile(self) -> Float[Tensor, "Z Z"]:
        only = torch.zeros(1, dtype=torch.int64, device=self.tables.device)
        support = self.tables.support
        return self.tables.transition.log_tiles(support, only, support, only)[0]

    @cached_property
    def prepared(self) -> Prepared:
        return dense.prepare(self.log_tile, self.tables.log_start[None], self.tables.precision)

    @cached_property
    def peaks(self) -> Float[Tensor, " X"]:
        return dense.row_peaks(self.tables.log_emission)

    @cached_property
    def moves(self) -> Moves:
        return max_dense.moves(self.log_tile)

    def no_past(self, size: int) -> Float[Tensor, "B Z"]:
        """For texts that begin at position 0."""
        return self.tables.log_emission.new_zeros(size, self.tables.num_states)

    def text(self, checked: Checked, no_past: Float[Tensor, "B Z"]) -> Text:
        emission = self.tables.log_emission
        return Text(emission, self.peaks, checked.tokens, checked.init_of, checked.lengths, no_past)

    def method(self, text: Text, in_graph: bool) -> tilings.Method:
        tables = self.tables
        return tilings.method_for(
            text.lengths.shape[0], tables.num_states, tables.device, tables.precision, in_graph=in_graph
        )

    def forward(self, text: Text, in_graph: bool, keep: bool) -> DenseRun:
        method = self.method(text, in_graph)
        return dense.forward(self.prepared, text, self.tables.precision, keep=keep, method=method)


@dataclass(frozen=True)
class Found:
    """What a graph leaves in its buffers."""

    tensors: tuple[Tensor, ...]
    underflow_level: Int[Tensor, " B"]
    """Not 0: this sequence has no answer here."""


# Compared and hashed by identity: it is part of a dictionary key that every query looks up.
@dataclass(frozen=True, eq=False)
class Query:
    work: Callable[[Fixed, Text, bool], Found]
    """What is captured; it is sync-free. The last says whether it is for a graph, where launches cost little."""
    answer: Callable[[Fixed, tuple[Tensor, ...]], tuple[Tensor, ...]]
    """The answers, in memory of their own: the next text is written over the buffers. Launched while the graph still runs."""
    room: int
    """Bytes that a position takes for each state."""


def _copies(fixed: Fixed, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.clone() for tensor in found)


def _token_log_probs(fixed: Fixed, text: Text, in_graph: bool) -> Found:
    run = fixed.forward(text, in_graph, keep=False)
    return Found((run.token_log_probs,), run.underflow_level)


def _log_prob(fixed: Fixed, text: Text, in_graph: bool) -> Found:
    run = fixed.forward(text, in_graph, keep=False)
    assert run.log_prob is not None
    return Found((run.log_prob,), run.underflow_level)


def _posterior(fixed: Fixed, text: Text, in_graph: bool) -> Found:
    """p(z_t | x)."""
    run, gradient = _both_ways(fixed, text, in_graph, counts=False)
    return Found((gradient.log_emission,), run.underflow_level)


def _expected_counts(fixed: Fixed, text: Text, in_graph: bool) -> Found:
    run, gradient = _both_ways(fixed, text, in_graph, counts=True)
    probs = gradient.log_emission
    if fixed.tables.reset_token is None:
        start = probs[:, 0].sum(dim=0)
    else:
        # Positions past the length have posterior 0.
        start = torch.where((text.init_of == 0)[:, :, None], probs, 0.0).sum(dim=(0, 1))
    return Found((start, gradient.log_tiles[0], probs.flatten(0, 1), text.row_of.flatten()), run.underflow_level)


def _counts_answer(fixed: Fixed, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Of start, transition and emission."""
    start, transition, probs, tokens = found
    # The largest tensor, written only once.
    emission = word_rows.sum_by_word(probs, tokens, fixed.tables.num_words)
    # Rounding may leave -1e-9 where a move is impossible.
    return start.clone(), transition.clamp(min=0), emission


def _best_path(fixed: Fixed, text: Text, in_graph: bool) -> Found:
    """The best path, -1 past the length, and its log p(x, z)."""
    inits = (fixed.tables.log_start[None], text.init_of, text.log_previous)
    gains, log_best, backtrace = max_dense.best_scores(
        fixed.moves, text.log_rows, text.row_of, *inits, text.lengths, keep_backtrace=True
    )
    assert backtrace is not None
    path, _ = max_dense.trace(text.init_of, text.lengths, backtrace, log_best.argmax(1))
    return Found((path, gains.sum(1, dtype=torch.float64).float()), (gains == -torch.inf).any(1).to(torch.int8))


TOKEN_LOG_PROBS = Query(_token_log_probs, _copies, 3)
LOG_PROB = Query(_log_prob, _copies, 3)
POSTERIOR = Query(_posterior, _copies, 14)
EXPECTED_COUNTS = Query(_expected_counts, _counts_answer, 16)
BEST_PATH = Query(_best_path, _copies, 5)


def _both_ways(fixed: Fixed, text: Text, in_graph: bool, counts: bool) -> tuple[DenseRun, Gradient]:
    """The forward and the backward pass: posteriors and, if requested, transition counts."""
    run = fixed.forward(text, in_graph, keep=True)
    gradient = dense.backward(
        *(fixed.prepared, text, run, torch.ones_like(run.token_log_probs), None, fixed.tables.precision),
        tile_gradient=counts,
        init_gradient=False,
        nonnegative=True,
        method=fixed.method(text, in_graph),
    )
    return run, gradient


class _Shape:
    """One query for texts of one shape, in buffers of fixed place."""

    def __init__(self, query: Query, fixed: Fixed, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> None:
        self._query, self._fixed = query, fixed
        self._tokens, self._lengths = tokens.clone(), lengths.clone()
        self._no_past = fixed.no_past(tokens.shape[0])
        refused = torch.zeros(tokens.shape[0], dtype=torch.int8, pin_memory=tokens.is_cuda)
        # A NumPy view of the same pinned memory: reading it takes less time than reading a tensor.
        self._refused, self._seen = refused, refused.numpy()
        self.asked_at = 0
        """The number of the last question, of all questions."""

    def _work(self) -> tuple[Tensor, ...]:
        found = _checked(self._query, self._fixed, self._tokens, self._lengths, self._no_past, in_graph=True)
        self._refused.copy_(found.underflow_level, non_blocking=True)
        return found.tensors

    def answer(
        self, graphed: Graphed[tuple[Tensor, ...]], key: Hashable, tokens: Tensor, lengths: Tensor | None
    ) -> tuple[Tensor, ...] | None:
        self._tokens.copy_(tokens)
        if lengths is not None:
            self._lengths.copy_(lengths)
        found = graphed(self._work, key)
        # The GPU runs asynchronously from here to the synchronisation.
        with torch.cuda.device_of(self._tokens):
            answers = self._query.answer(self._fixed, found)
            if self._tokens.is_cuda:
                torch.cuda.current_stream().synchronize()
        waiting.check(self._tokens.device)
        return None if self._seen.any() else answers


def _checked(query: Query, fixed: Fixed, tokens: Tensor, lengths: Tensor, no_past: Tensor, *, in_graph: bool) -> Found:
    checked = checked_tokens(tokens, lengths, fixed.tables.num_words, fixed.tables.reset_token)
    found = query.work(fixed, fixed.text(checked, no_past), in_graph)
    return Found(found.tensors, torch.maximum(found.underflow_level, checked.wrong))


class Replays:
    """The CUDA graphs of one dense HMM on a GPU whose tables do not require gradients. Returns None if unsupported.

    The first text of a shape is answered kernel by kernel, the second, if it comes soon, is captured. All graphs share one memory pool,
    which is freed with the last of them: queries run one at a time, and each result has its own memory.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._parts = [tables.log_start, tables.log_emission, *vars(tables.transition).values()]
        self._one_at_a_time = threading.Lock()
        self._asks = 0
        on_gpu = tables.device.type == "cuda"
        self._memory: int = torch.cuda.get_device_properties(tables.device).total_memory if on_gpu else 1 << 62
        self._graphed = Graphed[tuple[Tensor, ...]](
            tables.device, eager_calls=1, launching=partial(_to_be_kept, tables)
        )
        self._forget()

    def __reduce__(self) -> tuple[type[Replays], tuple[Tables]]:
        """A copy makes graphs of its own."""
        return Replays, (self._tables,)

    def log_prob(self, tokens: Any, lengths: Any) -> Float[Tensor, " B"] | None:
        found = self._ask(LOG_PROB, tokens, lengths)
        return None if found is None else found[0]

    def token_log_probs(self, tokens: Any, lengths: Any) -> Float[Tensor, "B T"] | None:
        found = self._ask(TOKEN_LOG_PROBS, tokens, lengths)
        return None if found is None else found[0]

    def posterior(self, tokens: Any, lengths: Any) -> Posterior | None:
        found = self._ask(POSTERIOR, tokens, lengths)
        if found is None:
            return None
        return Posterior(found[0], self._tables.support.states_of(tokens), self._tables.num_states)

    def expected_counts(self, tokens: Any, lengths: Any) -> Counts | None:
        found = self._ask(EXPECTED_COUNTS, tokens, lengths)
        return None if found is None else Counts(*found)

    def best_path(self, tokens: Any, lengths: Any) -> Paths | None:
        found = self._ask(BEST_PATH, tokens, lengths)
        return None if found is None else Paths(found[0][:, None], found[1][:, None])

    def _ask(self, query: Query, tokens: Any, lengths: Any) -> tuple[Tensor, ...] | None:
        if torch.is_grad_enabled() and any(part.requires_grad for part in self._parts):
            return None
        # The key includes dtypes: an input refused for its dtype never matches an entry.
        key = (query, _kind(tokens), _kind(lengths))
        with self._one_at_a_time:
            if self._versions != self._versions_now():
                self._forget()
            self._asks += 1
            shape = self._shapes.get(key)
            if shape is None:
                if not self._takes(query, tokens, lengths):
                    return None
                counts = torch.full(tokens.shape[:1], tokens.shape[1]) if lengths is None else lengths
                with _to_be_kept(self._tables):
                    return self._by_kernels(key, query, self._placed(tokens), self._placed(counts))
            self._shapes.move_to_end(key)
            shape.asked_at = self._asks
            return shape.answer(self._graphed, key, tokens, lengths)

    def _by_kernels(self, key: Any, query: Query, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, ...] | None:
        """By single kernel launches, or, if the shape recurs, by a new CUDA graph."""
        if self._comes_again(key) and self._room_for_one_more(query, tokens):
            # These buffers stay in use: a graph reads and writes the memory that it was captured with.
            shape = self._shapes[key] = _Shape(query, self._fixed, tokens, lengths)
            shape.asked_at = self._asks
            # The first call is eager: it compiles and loads the kernels that the graph launches.
            if shape.answer(self._graphed, key, tokens, lengths) is None:
                return None
            return shape.answer(self._graphed, key, tokens, lengths)
        found = _checked(query, self._fixed, tokens, lengths, self._fixed.no_past(tokens.shape[0]), in_graph=False)
        refused = bool(found.underflow_level.any())
        waiting.check(tokens.device)
        if refused:
            return None
        return query.answer(self._fixed, found.tensors)

    def _placed(self, values: Tensor) -> Tensor:
        return values.to(self._tables.device, torch.int64).contiguous()

    def _comes_again(self, key: Any) -> bool:
        """Whether this shape was queried recently; records the query."""
        if len(self._asked) >= MAX_REMEMBERED:
            self._asked.clear()
        last, self._asked[key] = self._asked.get(key), self._asks
        return last is not None and self._asks - last < IDLE_ASKS

    def _room_for_one_more(self, query: Query, tokens: Tensor) -> bool:
        """Whether a graph may be added. A graph in recent use is not evicted: if more shapes alternate than are cached, each would be
        captured again and again (cache thrashing)."""
        if self._room(query, tokens) > available_bytes(self._tables.device):
            return False
        if len(self._shapes) < MAX_GRAPHS:
            return True
        oldest = next(iter(self._shapes))
        if self._asks - self._shapes[oldest].asked_at < IDLE_ASKS:
            return False
        # Evict all: the memory that one graph frees in the shared memory pool seldom fits another (fragmentation).
        self._asked |= {key: shape.asked_at for key, shape in self._shapes.items()}
        self._shapes.clear()
        self._graphed.forget()
        return True

    def _takes(self, query: Query, tokens: Any, lengths: Any) -> bool:
        if not _integers(tokens, 2) or tokens.numel() == 0:
            return False
        if lengths is not None and not (_integers(lengths, 1) and lengths.shape[0] == tokens.shape[0]):
            return False
        # Inference tensors have no version counter.
        if any(part.is_inference() for part in self._parts):
            return False
        if query in (LOG_PROB, TOKEN_LOG_PROBS) and scan.pays(self._tables, *tokens.shape):
            return False
        return tokens.shape[1] <= MAX_LENGTH and self._room(query, tokens) * MEMORY_PART <= self._memory

    def _room(self, query: Query, tokens: Tensor) -> int:
        # Buffers of all positions, and the tile in its several layouts.
        states = self._tables.num_states
        return query.room * tokens.numel() * states + 16 * states**2

    def _forget(self) -> None:
        """Clears all caches: the tables have been changed in place."""
        self._versions = self._versions_now()
        self._fixed = Fixed(self._tables)
        self._graphed.forget()
        self._shapes: OrderedDict[Hashable, _Shape] = OrderedDict()
        """Those that come again."""
        self._asked: dict[Any, int] = {}
        """The number of the last question of a shape that has no graph."""

    def _versions_now(self) -> list[int]:
        return [0 if part.is_inference() else part._version for part in self._parts]


@contextmanager
def _to_be_kept(tables: Tables) -> Iterator[None]:
    """Tensors created within are no inference tensors, so they can be cached for later queries."""
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.device_of(tables.log_emission):
        yield


def _kind(values: Any) -> Any:
    return (values.shape, values.dtype) if isinstance(values, Tensor) else type(values)


def _integers(values: Any, rank: int) -> bool:
    return (
        isinstance(values, Tensor)
        and values.ndim == rank
        and not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    )
