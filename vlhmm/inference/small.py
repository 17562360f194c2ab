"""Queries of a dense HMM with few states on a CPU, answered by compiled loops.

As `replay` does on a GPU, it reads the tables once and returns None if unsupported; the caller falls back.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.inference.by_products import by_products
from vlhmm.inference.gather import Batch
from vlhmm.inference.posterior import Counts, Posterior
from vlhmm.inference.sampling import Sample, require_drawn
from vlhmm.inference.viterbi import Paths
from vlhmm.ops.small_dense import NO_LENGTHS, SmallDense, SmallText, served
from vlhmm.tables import Tables


def small_queries(tables: Tables) -> SmallQueries | None:
    """None if the compiled loops do not support this HMM."""
    support = tables.support
    # A low-rank transition is not expanded to a table.
    if by_products(tables) or not (
        support.dense and served(support.num_states, support.num_words, tables.dtype, tables.device)
    ):
        return None
    return SmallQueries(tables)


class SmallQueries:
    """The queries of one HMM for texts without a belief and without a window."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables
        self._parts = [tables.log_start, tables.log_emission, *vars(tables.transition).values()]
        # Inference tensors have no version counter.
        self._uncounted = any(part.is_inference() for part in self._parts)
        self._reset = -1 if tables.reset_token is None else tables.reset_token
        self._states = tables.support.states_of_group[0]
        self._loops: SmallDense | None = None
        self._versions: list[int] = []

    def __reduce__(self) -> tuple[type[SmallQueries], tuple[Tables]]:
        """Copies and pickles hold the tables alone, and rebuild the layouts for the loops."""
        return SmallQueries, (self._tables,)

    def log_prob(self, tokens: Any, lengths: Any) -> Float[Tensor, " B"] | None:
        loops, text = self._ready(), self._text(tokens, lengths)
        if loops is None or text is None or (found := loops.log_prob(text)) is None:
            return None
        return torch.from_numpy(found)

    def token_log_probs(self, tokens: Any, lengths: Any) -> Float[Tensor, "B T"] | None:
        loops, text = self._ready(), self._text(tokens, lengths)
        if loops is None or text is None or (found := loops.token_log_probs(text)) is None:
            return None
        return torch.from_numpy(found)

    def posterior(self, tokens: Any, lengths: Any) -> Posterior | None:
        loops, text = self._ready(), self._text(tokens, lengths)
        if loops is None or text is None or (probs := loops.posterior(text)) is None:
            return None
        states = self._states.expand(probs.shape)
        return Posterior(torch.from_numpy(probs), states, self._tables.num_states)

    def expected_counts(self, tokens: Any, lengths: Any) -> Counts | None:
        text = self._text(tokens, lengths)
        found = None if text is None else self._counts(text)
        return None if found is None else found[0]

    def counts_of(self, batch: Batch) -> tuple[Counts, Float[Tensor, "B T"]] | None:
        """Expected counts and log p(x_t | x_<t) of a validated batch; None if it has evidence of states."""
        if batch.log_evidence is not None:
            return None
        return self._counts(SmallText(batch.tokens.numpy(), batch.lengths.numpy(), self._reset))

    def token_log_probs_of(self, batch: Batch) -> Float[Tensor, "B T"] | None:
        """log p(x_t | x_<t) of a checked batch."""
        if batch.log_evidence is not None:
            return None
        return self.token_log_probs(batch.tokens, batch.lengths)

    def best_path(self, tokens: Any, lengths: Any) -> Paths | None:
        loops, text = self._ready(), self._text(tokens, lengths)
        if loops is None or text is None or (found := loops.best_paths(text)) is None:
            return None
        paths, log_probs = found
        return Paths(torch.from_numpy(paths[:, None]), torch.from_numpy(log_probs[:, None]))

    def sample(self, num: int, length: int, generator: torch.Generator | None) -> Sample | None:
        """By inverse transform sampling, from two numbers a token."""
        loops = self._ready()
        if loops is None:
            return None
        what = f"{num:,} texts of {length:,} tokens with their states"
        require_drawn(num, 2 * 16 * length, what, self._tables.device)
        uniforms = torch.rand(num, length, 2, dtype=torch.float64, generator=generator)
        states, tokens = (torch.from_numpy(part) for part in loops.sample(uniforms.numpy(), self._reset))
        return Sample(states, tokens)

    def _counts(self, text: SmallText) -> tuple[Counts, Tensor] | None:
        loops = self._ready()
        if loops is None or (found := loops.expected_counts(text)) is None:
            return None
        start, moves, emissions, log_probs = (
            torch.from_numpy(part) for part in (found.start, found.moves, found.emissions, found.token_log_probs)
        )
        return Counts(start, moves, emissions), log_probs

    def _ready(self) -> SmallDense | None:
        """The loops over the tables as they are now; None if they may require gradients."""
        if self._uncounted:
            return None
        if torch.is_grad_enabled():
            # Short queries take microseconds: a generator would take one of them.
            for part in self._parts:
                if part.requires_grad:
                    return None
        versions = [part._version for part in self._parts]
        if self._loops is None or versions != self._versions:
            tables, only = self._tables, torch.zeros(1, dtype=torch.int64)
            with torch.no_grad():
                log_moves = tables.transition.log_tiles(tables.support, only, tables.support, only)[0]
            parts = (tables.log_start, log_moves, tables.log_emission)
            self._loops, self._versions = SmallDense(*(part.detach().numpy() for part in parts)), versions
        return self._loops

    def _text(self, tokens: Any, lengths: Any) -> SmallText | None:
        """None for anything but a matrix of integers, and lengths as many as it has rows."""
        ids = _integers(tokens)
        if ids is None or ids.ndim != 2 or ids.size == 0:
            return None
        if lengths is None:
            return SmallText(ids, NO_LENGTHS, self._reset)
        counts = _integers(lengths)
        if counts is None or counts.shape != ids.shape[:1]:
            return None
        return SmallText(ids, counts, self._reset)


def _integers(values: Any) -> Any:
    """As a contiguous array of int64, on the CPU; None where they are something else."""
    if isinstance(values, Tensor):
        if not values.is_cpu or values.layout != torch.strided:
            return None
        if values.dtype == torch.int64 and values.is_contiguous():
            return values.numpy()
        values = values.detach().numpy()
    elif not isinstance(values, np.ndarray):
        try:
            values = np.array(values)
        except (TypeError, ValueError, RuntimeError):
            return None
    if values.dtype.kind not in "iu":
        return None
    return np.ascontiguousarray(values, np.int64)
