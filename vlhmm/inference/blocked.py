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
    if belief is None:
        first = torch.zeros_like(starts.group[:, 0])
    elif boundary is None:
        first = tables.support.group_of_word[belief.token]
    else:
        num_groups, size = tables.support.num_groups, batch.tokens.shape[0]
        first = torch.arange(num_groups, num_groups + size, device=tables.device)
        transition = _with_rows(transition, boundary)
    source = torch.cat([first[:, None], starts.group[:, :-1]], dim=1)
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
        return TableTransition(_joined(transition.log_prob, entering.log_prob))
    if isinstance(transition, SoftmaxTransition):
        assert isinstance(entering, SoftmaxTransition)
        log_normalizer = _joined(transition.log_normalizer, entering.log_normalizer)
        return SoftmaxTransition(_joined(transition.out, entering.out), transition.into, log_normalizer)
    assert isinstance(entering, BlockFactoredTransition)
    log_block = _joined(transition.log_block, entering.log_block)
    return BlockFactoredTransition(log_block, _joined(transition.out, entering.out), transition.into)


def _joined(first: Tensor, second: Tensor) -> Tensor:
    """The rows of both: where they were split from one tensor, that one, neither copied nor split on the way back."""
    whole, num_rows = first._base, first.shape[0] + second.shape[0]
    if whole is not None and whole is second._base and whole.shape == (num_rows, *first.shape[1:]):
        begins = whole.storage_offset()
        in_order = first.storage_offset() == begins and second.storage_offset() == begins + first.numel()
        if in_order and whole.is_contiguous():
            return whole
    return torch.cat([first, second])
