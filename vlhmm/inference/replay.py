"""A dense HMM on a GPU asked for texts of one shape again and again: what depends on its tables alone is made once, the rest is a CUDA graph.

A short text is over before Python has launched all kernels that it takes. A graph is one launch, so whether the input was right,
and no number too small for its type, is asked once, at the end. Where the answer is no, nothing is returned, and the caller takes the
way that can say why, or do better.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.capture import captured
from vlhmm.inference.posterior import Counts, Posterior
from vlhmm.inference.viterbi import Paths
from vlhmm.ops.checked_tokens import Checked, checked_tokens
from vlhmm.ops.max_product import dense as max_dense
from vlhmm.ops.max_product.dense import Moves
from vlhmm.ops.recursion import dense
from vlhmm.ops.recursion.dense import DenseRun, Prepared, Text
from vlhmm.ops.recursion.scaled import Gradient
from vlhmm.ops.word_rows import launch as word_rows
from vlhmm.tables import Tables, requires_grad

MOST_GRAPHS = 8
"""Shapes and queries kept at a time."""

IDLE_ASKS = 64
"""A graph that was not asked for so many questions makes room for another."""

MOST_REMEMBERED = 1000
"""Shapes remembered as asked before."""

LONGEST = 4096
"""Longer texts go in windows."""

MEMORY_PART = 16
"""What a graph holds may take one in so many bytes of the GPU."""


class Fixed:
    """What the tables of a dense HMM alone decide, made when it is first needed and kept: the matrix products' tile takes half the
    transition table's memory, that of `moves` all of it."""

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

    def text(self, checked: Checked) -> Text:
        emission = self.tables.log_emission
        log_previous = emission.new_zeros(checked.tokens.shape[0], emission.shape[1])
        return Text(emission, self.peaks, checked.tokens, checked.init_of, checked.lengths, log_previous)

    def method(self, text: Text) -> dense.Method:
        tables = self.tables
        return dense.method_for(
            text.lengths.shape[0], tables.num_states, tables.device, tables.precision, in_graph=True
        )

    def forward(self, text: Text, keep: bool) -> DenseRun:
        return dense.forward(self.prepared, text, self.tables.precision, keep=keep, method=self.method(text))


@dataclass(frozen=True)
class Found:
    """What a graph leaves in its buffers."""

    tensors: tuple[Tensor, ...]
    doubt: Int[Tensor, " B"]
    """Not 0: this sequence has no answer here."""


@dataclass(frozen=True)
class Query:
    work: Callable[[Fixed, Checked], Found]
    """What is captured; it asks the device nothing."""
    answer: Callable[[Fixed, tuple[Tensor, ...]], tuple[Tensor, ...]]
    """The answers, in memory of their own: the next text is written over the buffers. Launched while the graph still runs."""
    room: int
    """Bytes that a position takes for each state."""


def _copies(fixed: Fixed, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.clone() for tensor in found)


def _token_log_probs(fixed: Fixed, checked: Checked) -> Found:
    run = fixed.forward(fixed.text(checked), keep=False)
    return Found((run.token_log_probs,), run.doubt)


def _log_prob(fixed: Fixed, checked: Checked) -> Found:
    found = _token_log_probs(fixed, checked)
    # A million terms of one sign lose digits in float32.
    return Found((found.tensors[0].sum(1, dtype=torch.float64).float(),), found.doubt)


def _posterior(fixed: Fixed, checked: Checked) -> Found:
    """p(z_t | x)."""
    run, gradient = _both_ways(fixed, fixed.text(checked), counts=False)
    return Found((gradient.log_emission,), run.doubt)


def _expected_counts(fixed: Fixed, checked: Checked) -> Found:
    run, gradient = _both_ways(fixed, fixed.text(checked), counts=True)
    probs = gradient.log_emission.flatten(0, 1)
    # Past the length there is no probability to count.
    start = (checked.init_of == 0).flatten().float() @ probs
    return Found((start, gradient.log_tiles[0], probs, checked.tokens.flatten()), run.doubt)


def _counts_answer(fixed: Fixed, found: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Of start, transition and emission."""
    start, transition, probs, tokens = found
    # The largest of them, written but once.
    emission = word_rows.sum_by_word(probs, tokens, fixed.tables.num_words)
    # Rounding may leave -1e-9 where a move is impossible.
    return start.clone(), transition.clamp(min=0), emission


def _best_path(fixed: Fixed, checked: Checked) -> Found:
    """The best path, -1 past the length, and its log p(x, z)."""
    tables = fixed.tables
    log_previous = tables.log_emission.new_zeros(checked.tokens.shape[0], tables.num_states)
    inits = (tables.log_start[None], checked.init_of, log_previous)
    gains, log_best, way = max_dense.best_scores(
        fixed.moves, tables.log_emission, checked.tokens, *inits, checked.lengths, keep_way=True
    )
    assert way is not None
    path, _ = max_dense.trace(checked.init_of, checked.lengths, way, log_best.argmax(1))
    return Found((path, gains.sum(1, dtype=torch.float64).float()), (gains == -torch.inf).any(1).to(torch.int8))


TOKEN_LOG_PROBS = Query(_token_log_probs, _copies, 3)
LOG_PROB = Query(_log_prob, _copies, 3)
POSTERIOR = Query(_posterior, _copies, 14)
EXPECTED_COUNTS = Query(_expected_counts, _counts_answer, 16)
BEST_PATH = Query(_best_path, _copies, 5)


def _both_ways(fixed: Fixed, text: Text, counts: bool) -> tuple[DenseRun, Gradient]:
    """Forward, and back to the posteriors and, if they are asked for, the transition counts."""
    run = fixed.forward(text, keep=True)
    # An impossible token asks for nothing.
    asked = (run.token_log_probs > -torch.inf).float()
    of_last = torch.zeros_like(text.log_previous)
    precision, method = fixed.tables.precision, fixed.method(text)
    gradient = dense.backward(
        *(fixed.prepared, text, run, asked, of_last, precision),
        tile_gradient=counts,
        init_gradient=False,
        nonnegative=True,
        method=method,
    )
    return run, gradient


class _Graph:
    """One query for texts of one shape, in buffers of fixed place."""

    def __init__(self, query: Query, fixed: Fixed, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> None:
        self._query, self._fixed = query, fixed
        self._tokens, self._lengths = tokens.clone(), lengths.clone()
        self._refused = torch.zeros(1, dtype=torch.int8, pin_memory=tokens.is_cuda)
        self._found: tuple[Tensor, ...] = ()
        self.asked_at = 0
        """The number of the last question, of all questions."""
        self._graph = captured(self._work)

    def _work(self) -> None:
        found = _checked(self._query, self._fixed, self._tokens, self._lengths)
        self._found = found.tensors
        self._refused.copy_(found.doubt.amax(0, keepdim=True), non_blocking=True)

    def answer(self, tokens: Tensor, lengths: Tensor | None) -> tuple[Tensor, ...] | None:
        self._tokens.copy_(tokens)
        if lengths is not None:
            self._lengths.copy_(lengths)
        self._graph.replay()
        answers = self._query.answer(self._fixed, self._found)
        if self._tokens.is_cuda:
            torch.cuda.current_stream(self._tokens.device).synchronize()
        return None if int(self._refused) else answers


def _checked(query: Query, fixed: Fixed, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"]) -> Found:
    checked = checked_tokens(tokens, lengths, fixed.tables.num_words, fixed.tables.reset_token)
    found = query.work(fixed, checked)
    return Found(found.tensors, torch.maximum(found.doubt, checked.wrong))


class Replays:
    """The graphs of one dense HMM on a GPU, whose tables no gradient is asked of. Each query gives None where this is no way to answer it.

    The first text of a shape is answered kernel by kernel, the second is captured.
    """

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._parts = [tables.log_start, tables.log_emission, *vars(tables.transition).values()]
        self._one_at_a_time = threading.Lock()
        self._asks = 0
        on_gpu = tables.device.type == "cuda"
        self._memory: int = torch.cuda.get_device_properties(tables.device).total_memory if on_gpu else 1 << 62
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
        if requires_grad(self._tables) or not self._takes(query, tokens, lengths):
            return None
        key = (query, *tokens.shape, lengths is None)
        with self._one_at_a_time, torch.no_grad():
            if self._versions != self._versions_now():
                self._forget()
            self._asks += 1
            graph = self._graphs.pop(key, None)
            if graph is None:
                counts = torch.full(tokens.shape[:1], tokens.shape[1]) if lengths is None else lengths
                placed = [given.to(self._tables.device, torch.int64).contiguous() for given in (tokens, counts)]
                if key not in self._asked or not self._room_for_one_more():
                    # Kernels are compiled, and tables prepared, outside of any graph.
                    self._remember(key)
                    found = _checked(query, self._fixed, *placed)
                    return None if bool(found.doubt.any()) else query.answer(self._fixed, found.tensors)
                graph = _Graph(query, self._fixed, *placed)
            self._graphs[key] = graph
            graph.asked_at = self._asks
            return graph.answer(tokens, lengths)

    def _remember(self, key: Any) -> None:
        if len(self._asked) >= MOST_REMEMBERED:
            self._asked.clear()
        self._asked.add(key)

    def _room_for_one_more(self) -> bool:
        """Whether a graph may be added. One that is still in use is not given up: where more shapes take turns than are kept, all of
        them would be captured over and over."""
        if len(self._graphs) < MOST_GRAPHS:
            return True
        oldest = next(iter(self._graphs))
        if self._asks - self._graphs[oldest].asked_at < IDLE_ASKS:
            return False
        del self._graphs[oldest]
        return True

    def _takes(self, query: Query, tokens: Any, lengths: Any) -> bool:
        if not _integers(tokens, 2) or tokens.numel() == 0:
            return False
        if lengths is not None and not (_integers(lengths, 1) and lengths.shape[0] == tokens.shape[0]):
            return False
        states = self._tables.num_states
        # Beside the positions, the tile in its several forms.
        room = query.room * tokens.numel() * states + 14 * states**2
        return bool(tokens.shape[1] <= LONGEST and room * MEMORY_PART <= self._memory)

    def _forget(self) -> None:
        """Tables changed in place: everything is made anew."""
        self._versions = self._versions_now()
        self._fixed = Fixed(self._tables)
        self._graphs: OrderedDict[Any, _Graph] = OrderedDict()
        self._asked: set[Any] = set()

    def _versions_now(self) -> list[int]:
        # Tensors of inference mode are not counted.
        return [0 if part.is_inference() else part._version for part in self._parts]


def _integers(values: Any, rank: int) -> bool:
    return (
        isinstance(values, Tensor)
        and values.ndim == rank
        and not (values.is_floating_point() or values.is_complex() or values.dtype == torch.bool)
    )
