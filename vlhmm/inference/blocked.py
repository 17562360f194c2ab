"""Windows of a blocked HMM on a GPU: kernels that make the tiles where they are used."""

from __future__ import annotations

from importlib.util import find_spec

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.inference.gather import Batch, Boundary, window_starts
from vlhmm.ops.blocked_recursion import BlockedFactors, blocked_recursion
from vlhmm.tables import Belief, BlockFactoredTransition, SoftmaxTransition, Tables, TableTransition, Transition

MOST_STATES = 1024
"""States of a block that the kernels take."""


def kernels_take(tables: Tables) -> bool:
    support = tables.support
    return (
        tables.device.type == "cuda"
        and tables.dtype == torch.float32
        and support.num_groups > 1
        # Without a partition tiles are made of the states of two words: for that a row needs no more than its features.
        and (support.partition or isinstance(tables.transition, SoftmaxTransition))
        and support.states_per_word <= MOST_STATES
        and torch.cuda.get_device_capability(tables.device) >= (8, 0)
        and find_spec("triton") is not None
    )


def blocked_window(
    tables: Tables, batch: Batch, belief: Belief | None, boundary: Boundary | None
) -> tuple[Float[Tensor, "B T"], Float[Tensor, "B K"]] | None:
    """log p(x_t | x_<t) and the last log message; None if a number came near the smallest of its type.

    Nothing here waits for the GPU while a graph is captured, so there the second case goes unnoticed.
    """
    run = blocked_recursion(blocked_factors(tables, batch, belief, boundary), tables.precision)
    if not torch.cuda.is_current_stream_capturing() and bool(run.suspect.any()):
        return None
    return run.token_log_probs, run.log_last


def blocked_factors(tables: Tables, batch: Batch, belief: Belief | None, boundary: Boundary | None) -> BlockedFactors:
    """The factors of a window, the rows of a boundary behind those of the tables."""
    starts = window_starts(tables, batch, belief)
    transition = tables.transition
    source = torch.zeros_like(starts.group)
    source[:, 1:] = starts.group[:, :-1]
    if belief is not None and boundary is None:
        source[:, 0] = tables.support.group_of_word[belief.token]
    elif belief is not None and boundary is not None:
        sequences = torch.arange(batch.tokens.shape[0], device=tables.device)
        source[:, 0] = tables.support.num_groups + sequences
        transition = _with_rows(transition, boundary)
    return BlockedFactors(
        starts.log_previous,
        starts.log_inits,
        starts.init_of,
        transition,
        source,
        starts.group,
        tables.emissions_of(batch.tokens),
        batch.lengths,
        None if tables.support.partition else tables.support.states_of_group,
    )


def _with_rows(transition: Transition, boundary: Boundary) -> Transition:
    entering = boundary.transition
    if isinstance(transition, TableTransition):
        assert isinstance(entering, TableTransition)
        return TableTransition(torch.cat([transition.log_prob, entering.log_prob]))
    if isinstance(transition, SoftmaxTransition):
        assert isinstance(entering, SoftmaxTransition)
        return SoftmaxTransition(
            torch.cat([transition.out, entering.out]),
            transition.into,
            torch.cat([transition.log_normalizer, entering.log_normalizer]),
        )
    assert isinstance(entering, BlockFactoredTransition)
    return BlockFactoredTransition(
        torch.cat([transition.log_block, entering.log_block]),
        torch.cat([transition.out, entering.out]),
        transition.into,
    )
