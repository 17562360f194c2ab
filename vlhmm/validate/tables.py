"""Tables and supports as a whole: shapes that fit together, rows that are distributions."""

from __future__ import annotations

from typing import Any, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.arguments import check_tensor, is_integer
from vlhmm.ops.row_logsumexp import row_logsumexp
from vlhmm.precision import Precision
from vlhmm.records import named_tensors, named_values
from vlhmm.support import Support
from vlhmm.tables import Tables
from vlhmm.validate.numbers import check_dtype, check_logs, check_totals, tolerance_of

SAMPLED_ROWS = 16
"""Rows whose sums are taken of a transition that normalises itself, or whose normaliser was computed from its features just now."""
ENTRIES_AT_ONCE = 1 << 24
"""Entries of a transition that are made at once to be checked."""


def check_tables(tables: Tables, *, normalized: bool = False) -> None:
    """Shapes that fit together and rows that are distributions.

    Every row of what is stored is checked. `normalized`: the normaliser of a softmax transition was computed from its features,
    which costs Z^2 and need not be done again.
    """
    if not isinstance(tables, Tables):
        raise ValueError(
            f"tables is a {type(tables).__name__}, but Tables are needed: those of a model are model.tables().detach(), "
            "and HMM.from_probabilities takes arrays"
        )
    support = tables.support
    for name, part in (("group_of_word", support.group_of_word), ("states_of_group", support.states_of_group)):
        check_tensor(f"support.{name}", part)
    for name, part in (("log_start", tables.log_start), ("log_emission", tables.log_emission)):
        check_tensor(name, part)
    for name, part in named_values(tables.transition).items():
        check_tensor(f"transition.{name}", part)
    check_support(support)
    if tuple(tables.log_emission.shape) != (support.num_words, support.states_per_word):
        raise ValueError(
            f"log_emission has shape {tuple(tables.log_emission.shape)}, but the support needs (words, states per word) = "
            f"({support.num_words}, {support.states_per_word})"
        )
    if tables.log_start.shape != (tables.num_states,):
        raise ValueError(
            f"log_start has shape {tuple(tables.log_start.shape)}, but there are {tables.num_states} states"
        )
    if tables.reset_token is not None and not is_integer(tables.reset_token):
        raise ValueError(f"reset_token is {tables.reset_token!r}, but a token id is an integer, or None for no reset")
    precision: Any = tables.precision
    if precision not in get_args(Precision):
        raise ValueError(f"precision is {tables.precision!r}, but must be one of {', '.join(get_args(Precision))}")
    if tables.reset_token is not None and not 0 <= tables.reset_token < tables.num_words:
        raise ValueError(
            f"reset_token is {tables.reset_token}, but ids must be between 0 and {tables.num_words - 1}, or None for no reset"
        )
    parts = {"log_start": tables.log_start, "log_emission": tables.log_emission}
    for name, part in named_tensors(tables.transition).items():
        parts[f"transition.{name}"] = part
        if part.shape[0] != tables.num_states:
            raise ValueError(
                f"transition.{name} has {part.shape[0]} rows, but there are {tables.num_states} states: a row a state is needed"
            )
    for name, part in parts.items():
        check_dtype(part.dtype)
        if part.dtype != tables.dtype or part.device != tables.device:
            raise ValueError(
                f"{name} is {part.dtype} on {part.device}, but log_emission is {tables.dtype} on {tables.device}: "
                "convert the tables as a whole with .to()"
            )
    with torch.no_grad():
        check_logs("log_start", tables.log_start)
        check_logs("log_emission", tables.log_emission)
        check_totals("start", tables.log_start.double().exp().sum()[None], tables.dtype)
        _check_emission(tables)
        _check_transition(tables, normalized)


def check_support(support: Support) -> None:
    """Groups and states within their numbers, and a partition where it says so."""
    groups, states = support.group_of_word, support.states_of_group
    if bool((groups < 0).any()) or bool((groups >= support.num_groups).any()):
        word = int(((groups < 0) | (groups >= support.num_groups)).nonzero()[0, 0])
        raise ValueError(
            f"word {word} is in group {int(groups[word])}, but groups are numbered from 0 to {support.num_groups - 1}"
        )
    if bool((states < 0).any()) or bool((states >= support.num_states).any()):
        group, slot = ((states < 0) | (states >= support.num_states)).nonzero()[0].tolist()
        raise ValueError(
            f"group {group} has state {int(states[group, slot])}, but states are numbered from 0 to {support.num_states - 1}"
        )
    # Counted before numbers are made to compare with: a wrong count may be of any size.
    whole = states.numel() == support.num_states
    if support.partition and not (
        whole and torch.equal(states.reshape(-1), torch.arange(support.num_states, device=states.device))
    ):
        raise ValueError(
            f"the support says it is a partition, but its groups do not hold the states 0 to {support.num_states - 1} "
            "once each and in order: say partition=False"
        )


def _check_transition(tables: Tables, normalized: bool) -> None:
    transition, num_states = tables.transition, tables.num_states
    transition.check_support(tables.support)
    for name, log_probs in transition.distributions():
        check_logs(name, log_probs)
        check_totals(name, log_probs.logsumexp(1).double().exp(), tables.dtype)
    for name, part in named_tensors(transition).items():
        check_logs(f"transition.{name}", part)
    operands = transition.operands()
    if operands is not None and operands.into is not None and not operands.per_block:
        _check_logits(operands.out, operands.into)
        if operands.row_term is not None and not normalized:
            log_sums = row_logsumexp(operands.out, operands.into, precision="highest")
            check_totals("transition", (log_sums - operands.row_term).double().exp(), tables.dtype)
    step = max(1, num_states // SAMPLED_ROWS)
    rows = torch.arange(0, num_states, step, device=tables.device)
    check_totals("transition", transition.log_rows(rows).double().exp().sum(1), tables.dtype, rows)


def _check_logits(out: Float[Tensor, "Z H"], into: Float[Tensor, "Y H"]) -> None:
    """Every row's logits must be small enough that their rounding does not move the row's sum by the tolerance.

    Normaliser and logits are rounded apart from each other, so that the sum of a row with large ones can be anything, and
    another one in every product. |out . in| is at most the product of the norms: few rows, if any, have to be made.
    """
    largest = tolerance_of(out.dtype) / torch.finfo(out.dtype).eps
    # -inf is the barrier before states that cannot be entered. Norms of large numbers overflow float32.
    longest = into.double().masked_fill(into == -torch.inf, 0.0).norm(dim=1).max()
    rows = (~(out.double().norm(dim=1) * longest <= largest)).nonzero().flatten()
    for some in rows.split(max(1, ENTRIES_AT_ONCE // into.shape[0])):
        logits = out[some] @ into.T
        reach = logits.masked_fill(logits == -torch.inf, 0.0).abs().amax(1)
        bad = ~(reach <= largest)
        if bool(bad.any()):
            row = int(bad.nonzero()[0, 0])
            raise ValueError(
                f"transition: row {int(some[row])} has logits up to {float(reach[row]):.3g}, but {out.dtype} holds the "
                f"probabilities of logits up to {largest:.3g} alone: make out or into smaller"
            )


def _check_emission(tables: Tables) -> None:
    support = tables.support
    states = support.states_of(torch.arange(support.num_words, device=tables.device))
    totals = tables.log_emission.new_zeros(support.num_states, dtype=torch.float64)
    totals.index_add_(0, states.reshape(-1), tables.log_emission.double().exp().reshape(-1))
    emits = torch.zeros(support.num_states, dtype=torch.bool, device=tables.device)
    emits[states.reshape(-1)] = True
    # A state that no word drew emits nothing; it must not be reachable.
    check_totals("emission", torch.where(emits, totals, 1.0), tables.dtype)
    if bool((tables.log_start[~emits] > -torch.inf).any()):
        state = int(((tables.log_start > -torch.inf) & ~emits).nonzero()[0, 0])
        raise ValueError(
            f"state {state} emits no word but has start probability {float(tables.log_start[state].exp()):.3g}: it must be 0"
        )
