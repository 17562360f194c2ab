"""How many states: fits of several sizes compared by the likelihood of sequences that were held out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from vlhmm.arguments import as_generator, check_count
from vlhmm.hmm import HMM, Fit
from vlhmm.validate import Vocabulary, as_sequences

MAX_WORDS = 1 << 31
"""Of a vocabulary whose size is not given: ids are at least checked to be ids."""


@dataclass(frozen=True)
class Candidate:
    """One number of states of `select_num_states`.

    Example:
        >>> data = vlhmm.HMM.random(2, 3, seed=0).sample(num=6, length=10, seed=0).tokens
        >>> candidate = vlhmm.select_num_states(data, [2], folds=2).candidates[0]
        >>> candidate.num_states, candidate.fit.hmm
        (2, HMM(2 states, 3 words, torch.float32, cpu))
    """

    num_states: int
    """Number of states, Z."""
    held_out: float
    """log p per token of sequences that were held out, by models fitted to the others; -inf if one was impossible."""
    fit: Fit
    """The fit to all sequences."""


@dataclass(frozen=True)
class Selection:
    """The result of `select_num_states`: a table of candidates.

    Example:
        >>> data = vlhmm.HMM.random(2, 3, seed=0).sample(num=6, length=10, seed=0).tokens
        >>> selection = vlhmm.select_num_states(data, [1, 2], folds=2)
        >>> print(selection)  # doctest: +ELLIPSIS
        states  held out/token  log p/token ...
    """

    candidates: tuple[Candidate, ...]
    """In the order of the numbers that were given."""

    @property
    def best(self) -> Candidate:
        """The candidate of largest held-out likelihood; of equal ones the one of fewest states."""
        return max(self.candidates, key=lambda one: (one.held_out, -one.num_states))

    @property
    def hmm(self) -> HMM:
        """The best candidate's HMM, fitted to all sequences."""
        return self.best.fit.hmm

    def __str__(self) -> str:
        header = ("states", "held out/token", "log p/token", "parameters", "AIC", "BIC", "converged", "")
        rows = [header]
        for one in self.candidates:
            fit = one.fit
            rows.append(
                (
                    f"{one.num_states:,}",
                    f"{one.held_out:.4f}",
                    f"{fit.log_prob / fit.num_tokens:.4f}",
                    f"{fit.num_parameters:,}",
                    f"{fit.aic:.1f}",
                    f"{fit.bic:.1f}",
                    "yes" if fit.converged else "no",
                    "<- best" if one is self.best else "",
                )
            )
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)


def select_num_states(
    sequences: Sequence[Any] | Tensor,
    num_states: Sequence[int],
    num_words: int | None = None,
    *,
    lengths: Any = None,
    folds: int = 5,
    pseudocount: float = 0.1,
    restarts: int = 0,
    seed: int | torch.Generator = 0,
    dtype: torch.dtype | None = None,
    device: torch.device | str | None = None,
    **settings: Any,
) -> Selection:
    """Compare numbers of states by cross-validation: log p of each fold by HMMs fitted to the others.

    Each candidate is then fitted to all sequences, so that AIC and BIC stand beside the held-out likelihood.

    Args:
        sequences: A list of sequences of token ids, or an array (B, T); at least as many as `folds`.
        num_states: The numbers of states to compare.
        num_words: Size of the vocabulary; None: the largest id + 1.
        lengths: Length of each sequence (B,), for an array; None: all are T long.
        folds: Parts into which the sequences are divided, at random.
        pseudocount: Of `HMM.fit`; 0 makes a held-out word that the others lack impossible.
        restarts: Further fits from random parameters, of which the best is kept.
        seed: A number, or a `torch.Generator`: folds and random parameters.
        dtype: float32 or float64; None: float32.
        device: Where HMMs are fitted; None: on the CPU.
        **settings: Further arguments of `HMM.fit`, e.g. `iterations` and `tolerance`.

    Returns:
        The table of candidates, and the best one.

    Raises:
        ValueError: A token id or a setting is out of range, or there are fewer sequences than folds.

    Example:
        >>> truth = vlhmm.HMM.from_probabilities([0.5, 0.5], [[0.1, 0.9], [0.9, 0.1]], [[0.9, 0.1], [0.1, 0.9]])
        >>> data = truth.sample(num=30, length=20, seed=0).tokens
        >>> vlhmm.select_num_states(data, [1, 2], folds=3, iterations=20).best.num_states
        2
    """
    counts = [check_count(f"num_states[{number}]", one) for number, one in enumerate(num_states)]
    if not counts:
        raise ValueError("num_states is empty, but at least one number of states is needed")
    check_count("folds", folds, at_least=2)
    draws = as_generator(seed, None, torch.device("cpu"))
    known = MAX_WORDS if num_words is None else check_count("num_words", num_words)
    data = as_sequences(sequences, lengths, Vocabulary(known, torch.device("cpu")))
    words = num_words or 1 + max(int(sequence.max()) for sequence in data)
    if len(data) < folds:
        raise ValueError(
            f"{len(data)} sequences cannot be divided into {folds} folds: cut long ones into parts, or use fewer folds"
        )
    fold_of = torch.randperm(len(data), generator=draws) % folds

    def fitted(states: int, chosen: list[Tensor]) -> Fit:
        begin = HMM.random(states, words, _number(draws), dtype=dtype, device=device)
        return begin.fit(chosen, pseudocount=pseudocount, restarts=restarts, seed=_number(draws), **settings)

    candidates = []
    for states in counts:
        held_out = 0.0
        for fold in range(folds):
            others, own = ([data[i] for i in (fold_of == fold).eq(part).nonzero()[:, 0]] for part in (False, True))
            held_out += float(fitted(states, others).hmm.log_prob(own).double().sum())
        candidates.append(Candidate(states, held_out / sum(map(len, data)), fitted(states, data)))
    return Selection(tuple(candidates))


def _number(generator: torch.Generator | None) -> int:
    return int(torch.randint(1 << 62, (), generator=generator))
