"""Windows of a blocked HMM on a GPU: kernels that make the tiles where they are used."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.inference.gather import Batch, Boundary, log_inits, log_previous, window_factors
from vlhmm.ops import dispatch
from vlhmm.ops.blocked_recursion import BlockedFactors, blocked_recursion
from vlhmm.ops.groups.of_window import window_groups
from vlhmm.ops.recursion import Watched, recursion
from vlhmm.tables import AnyTables, Belief


def kernels_take(tables: AnyTables) -> bool:
    support = tables.support
    return (
        support.num_groups > 1
        and dispatch.BLOCKED_RECURSION.run(tables.dtype, tables.device, size=support.states_per_word)
        and _read_by_kernels(tables)
    )


def _read_by_kernels(tables: AnyTables) -> bool:
    operands = tables.transition.operands()
    if operands is None:
        return False
    # Without a partition a tile joins the states of any two words: that needs a transition whose rows follow from their features alone.
    return tables.support.partition or not (operands.is_table or operands.per_block)


def blocked_window(tables: AnyTables, batch: Batch, belief: Belief | None, boundary: Boundary | None) -> Watched:
    """log p(x_t | x_<t) and the last log message; sequences with underflow are recomputed by `plain_window`.

    During graph capture there is no host-device synchronisation, so these sequences are only reported, in the third result.
    """
    run = blocked_recursion(blocked_factors(tables, batch, belief, boundary), tables.precision)
    unlooked = run.token_log_probs, run.log_last, run.underflow
    if torch.cuda.is_current_stream_capturing():
        return unlooked
    rows = run.underflow.nonzero()[:, 0]
    if not len(rows):
        return unlooked
    if boundary is not None or run.token_log_probs.requires_grad:
        # The whole batch: a boundary has rows for every sequence, and no gradient may flow through underflowed numbers.
        return *plain_window(tables, batch, belief, boundary), run.underflow
    part = batch.of(rows)
    carried = None if belief is None else belief.of(rows)
    log_probs, log_last = plain_window(tables, part, carried, None)
    log_probs, log_last = run.token_log_probs.index_copy(0, rows, log_probs), run.log_last.index_copy(0, rows, log_last)
    return log_probs, log_last, run.underflow


def plain_window(
    tables: AnyTables, batch: Batch, belief: Belief | None, boundary: Boundary | None
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"]]:
    """The same without the kernels, from features rounded as the kernels read them."""
    if tables.precision == "bf16":
        # The normaliser was computed from rounded features: with features that are not rounded, rows would not sum to one.
        tables = replace(tables, transition=tables.transition.rounded())
        boundary = None if boundary is None else Boundary(boundary.transition.rounded())
    return recursion(window_factors(tables, batch, belief, boundary), tables.precision)


def blocked_factors(
    tables: AnyTables, batch: Batch, belief: Belief | None, boundary: Boundary | None
) -> BlockedFactors:
    """The factors of a window; source rows of a boundary are appended to those of the tables."""
    support, transition = tables.support, tables.transition
    past, first_entered = None if belief is None else belief.token, None
    if belief is not None and boundary is not None:
        first_entered = support.num_groups
        transition = transition.join_rows(boundary.transition)
    operands = transition.operands()
    assert operands is not None, "kernels_take"
    groups = window_groups(batch.tokens, support.group_of_word, tables.reset_token, past, first_entered)
    return BlockedFactors(
        log_previous(tables, batch, belief),
        log_inits(tables),
        groups.init_of,
        operands,
        groups.source,
        groups.target,
        batch.with_evidence(tables.emissions_of(batch.tokens)),
        batch.lengths,
        None if support.partition else support.states_of_group,
    )
