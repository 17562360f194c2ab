"""What `CategoricalHMM` computes, apart from scikit-learn: sequences of symbols in columns, an HMM of them, and the progress of its
fit."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vlhmm.hmm import HMM
from vlhmm.inference.fit import Data, total_counts

Array = NDArray[Any]
SEQUENCES_AT_ONCE = 1 << 15
"""Samples, with the padding between their sequences, that are processed at a time."""


@dataclass
class ConvergenceMonitor:
    """The progress of a fit, as hmmlearn has it.

    Example:
        >>> from vlhmm.integrations.sklearn import CategoricalHMM
        >>> model = CategoricalHMM(2, n_iter=5, random_state=0).fit([[0], [1], [0], [2]])
        >>> model.monitor_.iter, model.monitor_.converged
        (5, True)
    """

    tol: float
    """Gain of log p below which fitting ends."""
    n_iter: int
    """Iterations at most."""
    verbose: bool = False
    """Whether each iteration is printed to the standard error stream."""
    history: list[float] = field(default_factory=list)
    """log p of the data in each iteration, before its update."""

    @property
    def iter(self) -> int:
        """Iterations done."""
        return len(self.history)

    @property
    def converged(self) -> bool:
        """Whether the gain was below `tol`, or all iterations were done."""
        return self.iter == self.n_iter or (self.iter > 1 and self.history[-1] - self.history[-2] < self.tol)

    def report(self, log_prob: float) -> None:
        """Add an iteration.

        Args:
            log_prob: log p of the data.
        """
        if self.verbose:
            gain = log_prob - self.history[-1] if self.history else math.nan
            print(f"{self.iter + 1:>10d} {log_prob:>16.8f} {gain:>+16.8f}", file=sys.stderr)
        self.history.append(log_prob)


@dataclass(frozen=True)
class ColumnHMM:
    """An HMM of symbols in columns, which are independent given the state."""

    hmm: HMM
    """In float64; where there are several columns, for log-likelihoods alone."""
    columns: Array
    """The emission of each column."""

    @classmethod
    def of(cls, start: Array, transition: Array, columns: Array, device: Any) -> ColumnHMM:
        """From probabilities, whose rows sum to one nearly."""
        emission = columns[0] if len(columns) == 1 else np.ones((len(start), 1))
        # Here they do exactly.
        rows = [values / values.sum(axis=-1, keepdims=True) for values in (start, transition, emission)]
        return cls(HMM.from_probabilities(*rows, dtype=torch.float64, device=device), columns)

    def question(self, sequences: list[Array]) -> dict[str, Any]:
        """The arguments of a query of `hmm`."""
        if len(self.columns) == 1:
            return {"tokens": [torch.as_tensor(sequence[:, 0]) for sequence in sequences]}
        with np.errstate(divide="ignore"):
            logs = [np.log(column).T for column in self.columns]
        evidence = [sum(log[sequence[:, j]] for j, log in enumerate(logs)) for sequence in sequences]
        return {"log_likelihoods": [torch.as_tensor(values) for values in evidence]}

    def counts(self, X: Array, cuts: Array) -> tuple[Tensor, Tensor, Tensor, float]:
        """Expected counts of first states, of transitions and of each column's symbols, and log p."""
        if len(self.columns) > 1:
            return self._soft_counts(X, cuts)
        tables = self.hmm.tables
        data = Data([torch.as_tensor(part[:, 0]).to(tables.device) for part in np.split(X, cuts)])
        counts, log_prob = total_counts(tables, data.batches(tables))
        return counts.start, counts.transition, counts.emission.T[None], log_prob

    def _soft_counts(self, X: Array, cuts: Array) -> tuple[Tensor, Tensor, Tensor, float]:
        hmm, columns = self.hmm, self.columns
        num_states = columns.shape[1]
        start, transition = torch.zeros(num_states), torch.zeros(num_states, num_states)
        start, transition = start.double(), transition.double()
        emission, log_prob = np.zeros(columns.shape), 0.0
        for _, part in chunks(X, cuts):
            question = self.question(part)
            counts = hmm.expected_counts(**question)
            start, transition = start + counts.start.cpu(), transition + counts.transition.cpu()
            log_prob += float(hmm.log_prob(**question).sum())
            posteriors = hmm.posterior(**question).probs.cpu().numpy()
            for sequence, row in zip(part, posteriors, strict=True):
                for j in range(len(columns)):
                    np.add.at(emission[j].T, sequence[:, j], row[: len(sequence)])
        return start, transition, torch.as_tensor(emission), log_prob


def maximized(counts: Array, prior: Any, old: Array, keep_zeros: bool) -> Array:
    """The most likely probabilities given counts and a Dirichlet prior; a row without any stays as it was."""
    weights = np.maximum(counts + np.asarray(prior) - 1, 0)
    if keep_zeros:
        weights = np.where(old == 0, 0, weights)
    totals = weights.sum(axis=-1, keepdims=True)
    probs: Array = np.where(totals > 0, weights / np.where(totals > 0, totals, 1), old)
    return probs


def refuse_lengths_as_y(y: Any, lengths: Any, num_samples: int) -> None:
    """hmmlearn has lengths in second place: unseen, all would be one sequence."""
    if y is not None and lengths is None and np.ndim(y) == 1 and np.size(y) != num_samples:
        raise ValueError(
            f"y has {np.size(y)} values, but X has {num_samples} samples: if they are lengths, give them by name, lengths=..."
        )


def cuts_of(lengths: Any, num_samples: int) -> Array:
    """Where sequences after the first begin."""
    if lengths is None:
        return np.empty(0, dtype=np.int64)
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or not np.issubdtype(sizes.dtype, np.integer) or (sizes < 1).any() or sizes.sum() != num_samples:
        raise ValueError(
            f"lengths must be positive integers that sum to the number of samples, {num_samples}, but they sum to {sizes.sum()}"
        )
    return np.cumsum(sizes)[:-1]


def chunks(X: Array, cuts: Array) -> Iterator[tuple[list[slice], list[Array]]]:
    """Sequences of similar lengths, a few at a time, and their places in X."""
    begins, ends = [0, *cuts.tolist()], [*cuts.tolist(), len(X)]
    places = sorted((slice(*pair) for pair in zip(begins, ends, strict=True)), key=lambda one: one.stop - one.start)
    while places:
        longest = places[-1].stop - places[-1].start
        some = places[-max(1, SEQUENCES_AT_ONCE // longest) :]
        del places[-len(some) :]
        yield some, [X[place] for place in some]


def drawn_sequence(
    start: Array, transition: Array, columns: Array, length: Any, first: Any, random: Any
) -> tuple[Array, Array]:
    """Symbols (length, columns) and states (length,), drawn one after the other; `first`: the first state, None: drawn too."""
    states = np.empty(length, dtype=np.int64)
    symbols = np.empty((length, len(columns)), dtype=np.int64)
    for t in range(length):
        if t == 0 and first is not None:
            states[t] = first
        else:
            states[t] = _draw(start if t == 0 else transition[states[t - 1]], random)
        symbols[t] = [_draw(column[states[t]], random) for column in columns]
    return symbols, states


def _draw(probs: Array, random: Any) -> int:
    return int(random.choice(len(probs), p=probs / probs.sum()))
