"""Smoothing: what the whole text says about the state at each position, and how often each table entry was used."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.inference.gather import Batch, default_window, window_factors, windows
from vlhmm.inference.score import score
from vlhmm.memory import require_memory
from vlhmm.ops.recursion import recursion
from vlhmm.records import shown
from vlhmm.tables import Belief, Tables
from vlhmm.transitions import TableTransition, is_table, log_table


@dataclass(frozen=True)
class Posterior:
    """p(z_t | x) at each position, stored for the K states that can emit x_t.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> posterior = hmm.posterior([[0, 1, 2]])
        >>> posterior.states[0, 0], posterior.probs[0, 0]
        (tensor([0, 1]), tensor([0.8765, 0.1235]))
    """

    probs: Float[Tensor, "*B T K"]
    """p(z_t | x) over `states`, 0 past the length."""
    states: Int[Tensor, "*B T K"]
    """The states that can emit x_t."""
    num_states: int
    """Number of states of the HMM, Z."""

    __repr__ = shown

    def dense(self) -> Float[Tensor, "*B T Z"]:
        """Spread p(z_t | x) over all Z states.

        Returns:
            Probabilities (B, T, Z), 0 for states that cannot emit x_t and past the length.

        Raises:
            ValueError: The result does not fit in memory.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.5, 0.5], [[0.9, 0.1], [0.2, 0.8]], [[1.0, 0.0], [0.3, 0.7]])
            >>> hmm.posterior([[0, 1]]).dense()
            tensor([[[0.2941, 0.7059],
                     [0.0000, 1.0000]]])
        """
        *size, num_positions, _ = self.probs.shape
        require_memory(
            math.prod(size) * num_positions * self.num_states * self.probs.element_size(),
            f"the posterior of {' x '.join(map(str, [*size, num_positions]))} tokens over all {self.num_states} states",
            "use .probs and .states, which hold only the states that can emit each token",
            self.probs.device,
        )
        dense = self.probs.new_zeros(*size, num_positions, self.num_states)
        return dense.scatter_(-1, self.states.expand_as(self.probs), self.probs)


@torch.no_grad()
def posterior(tables: Tables, batch: Batch, belief: Belief | None = None, window: int | None = None) -> Posterior:
    """p(z_t | x) over the states that can emit x_t: the gradient of log p(x) in the log emission at t."""
    window = window or default_window(tables, batch.tokens.shape[0])
    size, num_positions = batch.tokens.shape
    states = tables.support.states_per_word
    # One forward pass for the beliefs between windows. Then each window is recomputed, last first, with the backward message behind it.
    entering: list[Belief | None] = []
    log_last, token = tables.log_emission.new_zeros(size, states), batch.tokens[:, 0].clone()
    parts = list(windows(batch, window))
    for first, rows, part in parts:
        if first == 0:
            carried = belief
        else:
            carried = Belief(token[rows], log_last[rows])
        entering.append(carried)
        if len(parts) > 1:
            log_last[rows] = recursion(window_factors(tables, part, carried), tables.precision)[1]
            token[rows] = part.last_tokens()
    probs = tables.log_emission.new_zeros(size, num_positions, states)
    last_cotangent = torch.zeros_like(log_last)
    for (first, rows, part), carried in zip(reversed(parts), reversed(entering), strict=True):
        factors = window_factors(tables, part, carried)
        with torch.enable_grad():
            log_emission = factors.log_emission.detach().requires_grad_()
            log_previous = factors.log_previous.detach().requires_grad_()
            leaves = replace(factors, log_emission=log_emission, log_previous=log_previous)
            outputs = recursion(leaves, tables.precision)
            from_emission, from_previous = torch.autograd.grad(
                outputs, (log_emission, log_previous), (torch.ones_like(outputs[0]), last_cotangent[rows])
            )
        if part.num_positions == num_positions:
            # Copying a large tensor costs as much as many steps of the recursion.
            probs = from_emission
        else:
            probs[rows, first : first + part.num_positions] = from_emission
            last_cotangent[rows] = from_previous
    # Rounding may leave -1e-9 where a state is impossible.
    return Posterior(probs.clamp_(min=0), tables.support.states_of(batch.tokens), tables.num_states)


@dataclass(frozen=True)
class Counts:
    """E[how often each table entry is used | x], summed over the batch; counts can be added.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> counts = hmm.expected_counts([[0, 1, 2]]) + hmm.expected_counts([[2, 0]])
        >>> f"{counts.emission.sum():.3f}"  # the number of tokens
        '5.000'
    """

    start: Float[Tensor, " Z"]
    """How often each state is drawn from the start distribution."""
    transition: Float[Tensor, "Z Z"]
    """How often each source state (row) is followed by each target state."""
    emission: Float[Tensor, "X K"]
    """How often each word is emitted by each of the K states that can emit it; no rows after log-likelihoods, which have no words."""

    __repr__ = shown

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.start + other.start, self.transition + other.transition, self.emission + other.emission)


def as_table(tables: Tables) -> Tables:
    """The same HMM with its transition stored whole."""
    if is_table(tables.transition):
        return tables
    require_memory(
        tables.num_states**2 * tables.log_emission.element_size(),
        f"the transition table of {tables.num_states} states",
        "use fewer states, or a query that reads the factors",
        tables.device,
    )
    every_state = torch.arange(tables.num_states, device=tables.device)
    return replace(tables, transition=TableTransition(tables.transition.log_rows(every_state)))


def expected_counts(tables: Tables, batch: Batch) -> tuple[Counts, Float[Tensor, "B T"]]:
    """The gradient of log p(x) in the log tables, and log p(x_t | x_<t)."""
    tables = as_table(tables)
    with torch.enable_grad():
        start = tables.log_start.detach().requires_grad_()
        table = log_table(tables.transition)
        # A view, so that results cached for the table are found here too.
        transition = (table.detach() if table.requires_grad else table.view_as(table)).requires_grad_()
        emission = tables.log_emission.detach().requires_grad_()
        leaves = replace(tables, log_start=start, transition=TableTransition(transition), log_emission=emission)
        token_log_probs = score(leaves, batch).token_log_probs
        gradients = torch.autograd.grad(
            token_log_probs,
            (start, transition, emission),
            torch.ones_like(token_log_probs),
            allow_unused=True,
        )
    of_start, of_transition, of_emission = (
        torch.zeros_like(leaf) if gradient is None else gradient
        for gradient, leaf in zip(gradients, (start, transition, emission), strict=True)
    )
    # Only the rows of words that occur: pages of all other rows, most of a large table, are never touched.
    words = batch.tokens.unique()
    of_emission[words] = of_emission[words].clamp_(min=0)
    counts = Counts(of_start.clamp_(min=0), of_transition.clamp_(min=0), of_emission)
    return counts, token_log_probs.detach()
