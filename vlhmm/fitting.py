"""Fitting an HMM to sequences: what is known and what stays fixed, restarts, and the record of the result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Literal

import torch
from jaxtyping import Bool
from torch import Tensor

from vlhmm.arguments import as_tensor, check_count, check_number
from vlhmm.inference.evidence import evidence_tables
from vlhmm.inference.fit import (
    Data,
    Fixed,
    Restrictions,
    adam_steps,
    em_steps,
    minibatch_em_steps,
    total_log_prob,
    with_states,
)
from vlhmm.inference.gather import Batch
from vlhmm.inference.posterior import Counts, as_table
from vlhmm.sequences import as_evidence, read
from vlhmm.support import Support
from vlhmm.tables import Tables
from vlhmm.transitions import log_table
from vlhmm.validate import as_integers, as_sequences

PARAMS = {"s": "start", "t": "transition", "e": "emission"}
"""The letters of `params`, as hmmlearn has them."""


@dataclass(frozen=True)
class FitSettings:
    """How `HMM.fit` fits."""

    method: Literal["em", "adam"]
    iterations: int
    tolerance: float
    batch_size: int | None
    learning_rate: float | None
    pseudocount: float
    restarts: int

    def check(self) -> None:
        check_count("iterations", self.iterations)
        check_number("tolerance", self.tolerance)
        check_number("pseudocount", self.pseudocount)
        check_count("restarts", self.restarts, at_least=0)
        if self.method not in ("em", "adam"):
            raise ValueError(f"method is {self.method!r}, but it must be 'em' or 'adam'")
        if not 0 <= self.pseudocount < math.inf:
            raise ValueError(f"pseudocount is {self.pseudocount}, but must be at least 0 and finite")
        if self.pseudocount and self.method == "adam":
            raise ValueError(f"pseudocount is {self.pseudocount}, but adam counts nothing: use method='em'")
        if self.learning_rate is not None:
            check_number("learning_rate", self.learning_rate)
        if self.batch_size is not None:
            check_count("batch_size", self.batch_size)
        if self.method == "em" and self.batch_size is not None and not 0 < self.rate <= 1:
            raise ValueError(f"learning_rate is {self.rate}, but mini-batch Baum-Welch needs one in (0, 1]")

    @property
    def rate(self) -> float:
        if self.learning_rate is None:
            return 0.05 if self.method == "adam" else 0.1
        return self.learning_rate

    def steps(
        self, tables: Tables, data: Data, restrictions: Restrictions, generator: torch.Generator | None
    ) -> Iterator[tuple[Tables, float]]:
        if self.method == "adam":
            return adam_steps(tables, data, restrictions, self.rate)
        if self.batch_size is None:
            return em_steps(tables, data, restrictions)
        return minibatch_em_steps(tables, data, restrictions, self.batch_size, self.rate, generator)


@dataclass(frozen=True)
class _Run:
    tables: Tables
    log_probs: list[float]
    log_prob: float
    converged: bool


@dataclass(frozen=True)
class Observed:
    """What is fitted to, still to be checked: sequences of tokens, or log-likelihoods of states in their place."""

    sequences: Any
    log_likelihoods: Any
    lengths: Any
    states: Any

    def checked(self, tables: Tables) -> Data:
        """`tables`: those that are fitted, `evidence_tables` for log-likelihoods."""
        if self.log_likelihoods is not None:
            return as_evidence_data(self.log_likelihoods, self.lengths, self.states, tables)
        return as_data([] if self.sequences is None else self.sequences, self.lengths, self.states, tables)


@dataclass(frozen=True)
class Fitted:
    """The best run, with the tables that come of it."""

    tables: Tables
    run: _Run
    num_parameters: int
    num_tokens: int
    of_restarts: tuple[float, ...]


def fit_given(
    tables: Tables,
    observed: Observed,
    settings: FitSettings,
    params: str,
    fixed: Mapping[str, Any] | None,
    generator: torch.Generator | None,
) -> Fitted:
    if observed.sequences is not None and observed.log_likelihoods is not None:
        raise ValueError("sequences and log_likelihoods are both given, but one takes the place of the other")
    soft = observed.log_likelihoods is not None
    to_fit = evidence_tables(tables) if soft else tables
    masks = check_fixed(to_fit, check_emission_apart(params, fixed) if soft else params, fixed)
    data = observed.checked(to_fit)
    restricted = bool(masks) or settings.pseudocount > 0
    entries = fixed_of(to_fit, masks)
    run, of_restarts = fit_tables(to_fit, data, settings, entries if restricted else None, generator)
    found = run.tables
    if soft:
        found = replace(tables, log_start=found.log_start, transition=found.transition)
    return Fitted(found, run, free_parameters(to_fit, entries), data.num_tokens, of_restarts)


def fit_tables(
    tables: Tables,
    data: Data,
    settings: FitSettings,
    fixed: Fixed | None,
    generator: torch.Generator | None,
) -> tuple[_Run, tuple[float, ...]]:
    """The best run from these tables and from random ones, and the log p of every run."""
    tables = as_table(tables)
    restrictions = Restrictions(fixed, settings.pseudocount)
    best = _run(tables, data, settings, restrictions, generator)
    if not settings.restarts:
        return best, ()
    found = [best.log_prob]
    # Zeros and what is fixed are the same at every beginning.
    within = fixed or fixed_of(tables, {})
    for _ in range(settings.restarts):
        run = _run(randomized(tables, within, generator), data, settings, restrictions, generator)
        found.append(run.log_prob)
        if run.log_prob > best.log_prob:
            best = run
    return best, tuple(found)


def _run(
    tables: Tables,
    data: Data,
    settings: FitSettings,
    restrictions: Restrictions,
    generator: torch.Generator | None,
) -> _Run:
    log_probs, converged = list[float](), False
    for current, log_prob in islice(settings.steps(tables, data, restrictions, generator), settings.iterations):
        tables = current
        log_probs.append(log_prob)
        if len(log_probs) > 1 and (log_probs[-1] - log_probs[-2]) / data.num_tokens < settings.tolerance:
            converged = True
            break
    return _Run(tables, log_probs, total_log_prob(tables, data), converged)


def randomized(tables: Tables, fixed: Fixed, generator: torch.Generator | None) -> Tables:
    """Each free share drawn uniformly, from a Dirichlet distribution of concentration 1."""
    parts = (fixed.start, fixed.transition, fixed.emission)
    start, transition, emission = (
        torch.empty(mask.shape, dtype=torch.float64).exponential_(generator=generator).to(mask.device, tables.dtype)
        for mask in parts
    )
    return Restrictions(fixed).maximized(Counts(start, transition, emission), tables)


def fixed_of(tables: Tables, masks: Mapping[str, Tensor | bool]) -> Fixed:
    """The masks in the layout of the tables, zeros always among them."""
    tables = as_table(tables)
    parts = {"start": tables.log_start, "transition": log_table(tables.transition), "emission": tables.log_emission}
    found: dict[str, Bool[Tensor, ...]] = {}
    for name, log_probs in parts.items():
        mask = masks.get(name, False)
        if isinstance(mask, bool):
            mask = torch.full_like(log_probs, mask, dtype=torch.bool)
        elif name == "emission":
            words = torch.arange(tables.num_words, device=tables.device)
            mask = mask.T.gather(1, tables.support.states_of(words))
        found[name] = mask | (log_probs == -torch.inf)
    return Fixed(**found)


def check_emission_apart(params: str, fixed: Mapping[str, Any] | None) -> str:
    """The letters of what is fitted to log-likelihoods, which take the place of the emission."""
    if fixed and "emission" in fixed:
        raise ValueError(
            "fixed has 'emission', but log_likelihoods take the place of the emission, which stays as it is: name start and transition only"
        )
    return params.replace("e", "") if isinstance(params, str) else params


def check_fixed(tables: Tables, params: str, fixed: Mapping[str, Any] | None) -> dict[str, Tensor | bool]:
    """Checked masks of what stays as it is; empty: nothing does."""
    if not isinstance(params, str) or not set(params) <= PARAMS.keys():
        raise ValueError(f"params is {params!r}, but must be letters of 'ste': s start, t transition, e emission")
    shapes = {
        "start": (tables.num_states,),
        "transition": (tables.num_states, tables.num_states),
        "emission": (tables.num_states, tables.num_words),
    }
    masks: dict[str, Tensor | bool] = {}
    for name, given in (fixed or {}).items():
        if name not in shapes:
            raise ValueError(f"fixed has {name!r}, but names start, transition or emission")
        if isinstance(given, bool):
            masks[name] = given
            continue
        mask = as_tensor(f"fixed[{name!r}]", given, "one mask of True and False")
        if mask.dtype != torch.bool or tuple(mask.shape) != shapes[name]:
            raise ValueError(
                f"fixed[{name!r}] is {mask.dtype} of shape {tuple(mask.shape)}, but a mask of True and False of shape "
                f"{shapes[name]} is needed, or True for all"
            )
        masks[name] = mask.to(tables.device)
    return masks | {name: True for letter, name in PARAMS.items() if letter not in params}


def as_data(sequences: Any, lengths: Any, states: Any, tables: Tables) -> Data:
    """Checked sequences, and the states that are known."""
    return with_known_states(Data(as_sequences(sequences, lengths, tables)), lengths, states, tables)


def as_evidence_data(log_likelihoods: Any, lengths: Any, states: Any, tables: Tables) -> Data:
    """The same of log-likelihoods of states; `tables` are `evidence_tables`."""
    given = read(None, lengths, log_likelihoods)
    batch = as_evidence(given.log_likelihoods, given.lengths, tables)
    assert batch.log_evidence is not None
    sizes: list[int] = batch.lengths.tolist()
    evidence = [values[:size] for values, size in zip(batch.log_evidence.detach(), sizes, strict=True)]
    words = [row[:size] for row, size in zip(batch.tokens, sizes, strict=True)]
    return with_known_states(Data(words, None, evidence), given.lengths, states, tables)


def with_known_states(given: Data, lengths: Any, states: Any, tables: Tables) -> Data:
    if states is None:
        return given
    data = given.sequences
    single = len(data) == 1 and not _has_rows(states)
    rows = [states] if single else list(states)
    if len(rows) != len(data):
        raise ValueError(f"states has {len(rows)} sequences, but there are {len(data)} of tokens: give each its states")
    padded = lengths is not None
    known = [_known(number, row, data[number], padded, tables) for number, row in enumerate(rows)]
    return replace(given, states=known)


def _has_rows(states: Any) -> bool:
    if isinstance(states, Sequence) and len(states):
        return (isinstance(states[0], Tensor) and states[0].ndim > 0) or hasattr(states[0], "__len__")
    return getattr(states, "ndim", 2) > 1


def _known(number: int, row: Any, tokens: Tensor, padded: bool, tables: Tables) -> Tensor:
    """The states of one sequence; each must be able to emit its token."""
    known = as_integers(row, f"states[{number}]", tables.device)
    if known.ndim == 1 and padded:
        known = known[: tokens.shape[0]]
    if known.shape != tokens.shape:
        raise ValueError(
            f"states[{number}] has shape {tuple(known.shape)}, but the sequence has {tokens.shape[0]} tokens: -1 stands for "
            "a state that is unknown"
        )
    bad = (known < -1) | (known >= tables.num_states)
    if bool(bad.any()):
        position = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"states[{number}][{position}] is {int(known[position])}, but states are 0 to {tables.num_states - 1}, or -1 where "
            "unknown"
        )
    batch = Batch(tokens[None], torch.tensor([tokens.shape[0]], device=tokens.device))
    evidence = with_states(batch, known[None], tables).with_evidence(tables.emissions_of(tokens[None]))[0]
    impossible = (known >= 0) & (evidence == -torch.inf).all(1)
    if bool(impossible.any()):
        position = int(impossible.nonzero()[0, 0])
        raise ValueError(
            f"states[{number}][{position}] is {int(known[position])}, a state that cannot emit token {int(tokens[position])} "
            "there: use -1, or an HMM in which it can"
        )
    return known


def num_parameters(tables: Tables) -> int:
    """Of every stored distribution the outcomes that are not 0, less one; of features all."""
    states = tables.support.states_of(torch.arange(tables.num_words, device=tables.device))
    free = _free_of_rows(tables.log_start[None]) + _free_of_states(
        tables.log_emission > -torch.inf, states, tables.support
    )
    stored = [log_probs for _, log_probs in tables.transition.distributions()]
    features = [getattr(tables.transition, name, None) for name in ("out", "into")]
    free += sum(_free_of_rows(log_probs) for log_probs in stored)
    return free + sum(part.numel() for part in features if isinstance(part, Tensor))


def free_parameters(tables: Tables, fixed: Fixed) -> int:
    """Of each distribution the outcomes that are not fixed, less one."""
    states = tables.support.states_of(torch.arange(tables.num_words, device=tables.device))
    return (
        _less_one(~fixed.start[None])
        + _less_one(~fixed.transition)
        + _free_of_states(~fixed.emission, states, tables.support)
    )


def _free_of_rows(log_probs: Tensor) -> int:
    return _less_one(log_probs > -torch.inf)


def _less_one(free: Bool[Tensor, "N W"]) -> int:
    return int((free.sum(1) - 1).clamp(min=0).sum())


def _free_of_states(free: Bool[Tensor, "X K"], states: Tensor, support: Support) -> int:
    per_state = torch.zeros(support.num_states, dtype=torch.int64, device=free.device)
    per_state.index_add_(0, states.flatten(), free.flatten().long())
    return int((per_state - 1).clamp(min=0).sum())
