"""Fitting tables to sequences of tokens: Baum-Welch, full and in mini-batches, and gradient ascent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.inference.errors import raise_impossible
from vlhmm.inference.gather import Batch
from vlhmm.inference.posterior import Counts, as_table, expected_counts
from vlhmm.inference.score import score
from vlhmm.inference.small import small_queries
from vlhmm.ops.emission import normalize_over_words
from vlhmm.support import Support
from vlhmm.tables import Tables
from vlhmm.transitions import TableTransition

TOKENS_AT_ONCE = 1 << 14
"""Sequences are scored in batches of about this many tokens."""


def batches(
    sequences: Sequence[Tensor], numbers: Sequence[int] | None = None, tokens_at_once: int = TOKENS_AT_ONCE
) -> Iterator[tuple[list[int], Batch]]:
    """The sequences (or those numbered so) in batches of similar lengths, each with the numbers of its sequences."""
    order = sorted(range(len(sequences)) if numbers is None else numbers, key=lambda i: len(sequences[i]))
    while order:
        longest = len(sequences[order[-1]])
        chosen = order[-max(1, tokens_at_once // longest) :]
        del order[-len(chosen) :]
        members = [sequences[i] for i in chosen]
        lengths = torch.tensor([len(member) for member in members], device=members[0].device)
        yield chosen, Batch(torch.nn.utils.rnn.pad_sequence(members, batch_first=True), lengths)


def total_counts(tables: Tables, numbered: Iterable[tuple[Sequence[int], Batch]]) -> tuple[Counts, float]:
    """Expected counts and log p summed over numbered batches; raises where a sequence is impossible."""
    total: Counts | None = None
    log_prob = 0.0
    small = small_queries(tables)
    for numbers, batch in numbered:
        found = None if small is None else small.counts_of(batch)
        counts, token_log_probs = expected_counts(tables, batch) if found is None else found
        raise_impossible(token_log_probs, 0, torch.tensor(numbers), "em")
        total = counts if total is None else total + counts
        log_prob += float(token_log_probs.double().sum())
    if total is None:
        raise ValueError("0 sequences to count, at least 1 is needed")
    return total, log_prob


def maximized(counts: Counts, tables: Tables, pseudocount: float = 0.0) -> Tables:
    """The tables under which the counts, each with `pseudocount` more, are most likely; a row without any stays as it is."""
    assert isinstance(tables.transition, TableTransition)
    start, transition, emission = (
        values + pseudocount for values in (counts.start, counts.transition, counts.emission)
    )
    return replace(
        tables,
        log_start=_log_ratio(start, start.sum(), tables.log_start),
        transition=TableTransition(_log_ratio(transition, transition.sum(1, keepdim=True), tables.transition.log_prob)),
        log_emission=_log_ratio(emission, state_totals(emission, tables.support), tables.log_emission),
    )


def _log_ratio(counts: Tensor, totals: Tensor, otherwise: Tensor) -> Tensor:
    used = totals > 0
    return torch.where(used, (counts / torch.where(used, totals, 1.0)).log(), otherwise)


def state_totals(per_word: Float[Tensor, "X K"], support: Support) -> Float[Tensor, "X K"]:
    """The sum over all words of each cell's state, set at every cell."""
    states = support.states_of(torch.arange(support.num_words, device=per_word.device))
    totals = per_word.new_zeros(support.num_states).index_add_(0, states.flatten(), per_word.flatten())
    return totals[states]


def mixed(new: Tables, old: Tables, rate: float) -> Tables:
    """rate * new + (1 - rate) * old, in probabilities: the step of mini-batch Baum-Welch."""
    assert isinstance(new.transition, TableTransition)
    assert isinstance(old.transition, TableTransition)

    def mix(one: Tensor, other: Tensor) -> Tensor:
        return (rate * one.exp() + (1 - rate) * other.exp()).log()

    return replace(
        new,
        log_start=mix(new.log_start, old.log_start),
        transition=TableTransition(mix(new.transition.log_prob, old.transition.log_prob)),
        log_emission=mix(new.log_emission, old.log_emission),
    )


def em_steps(tables: Tables, sequences: Sequence[Tensor]) -> Iterator[tuple[Tables, float]]:
    """Full-batch Baum-Welch for ever: the tables after each step, and log p of the sequences before it."""
    tables, numbered = as_table(tables), list(batches(sequences))
    while True:
        counts, log_prob = total_counts(tables, numbered)
        tables = maximized(counts, tables)
        yield tables, log_prob


def minibatch_em_steps(
    tables: Tables,
    sequences: Sequence[Tensor],
    batch_size: int,
    rate: float,
    generator: torch.Generator | None,
) -> Iterator[tuple[Tables, float]]:
    """Mini-batch Baum-Welch for ever: the tables after each pass over the sequences, and log p as seen during it."""
    tables = as_table(tables)
    while True:
        log_prob = 0.0
        for chosen in torch.randperm(len(sequences), generator=generator).split(batch_size):
            counts, part_log_prob = total_counts(tables, batches(sequences, chosen.tolist()))
            tables = mixed(maximized(counts, tables), tables, rate)
            log_prob += part_log_prob
        yield tables, log_prob


def adam_steps(tables: Tables, sequences: Sequence[Tensor], learning_rate: float) -> Iterator[tuple[Tables, float]]:
    """Gradient ascent on log p for ever: the tables after each pass, and log p as seen during it."""
    tables = as_table(tables)
    assert isinstance(tables.transition, TableTransition)
    # Logits start from the logs; a zero stays a zero, since its gradient is 0.
    logits = [
        table.detach().clone().requires_grad_()
        for table in (tables.log_start, tables.transition.log_prob, tables.log_emission)
    ]
    optimizer = torch.optim.Adam(logits, lr=learning_rate)
    while True:
        log_prob = 0.0
        for chosen, batch in batches(sequences):
            current = _normalized(logits, tables)
            token_log_probs = score(current, batch).token_log_probs
            raise_impossible(token_log_probs.detach(), 0, torch.tensor(chosen), "fit")
            optimizer.zero_grad()
            (-token_log_probs.sum() / batch.lengths.sum()).backward()
            optimizer.step()
            log_prob += float(token_log_probs.detach().double().sum())
        with torch.no_grad():
            fitted = _normalized(logits, tables)
        yield fitted, log_prob


def _normalized(logits: Sequence[Tensor], tables: Tables) -> Tables:
    start, transition, emission = logits
    return replace(
        tables,
        log_start=start.log_softmax(0),
        transition=TableTransition(transition.log_softmax(1)),
        log_emission=normalize_over_words(emission, tables.support),
    )
