"""Fitting tables to sequences of tokens: Baum-Welch, full and in mini-batches, and gradient ascent."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.inference.errors import raise_impossible
from vlhmm.inference.gather import Batch
from vlhmm.inference.posterior import Counts, as_table, expected_counts
from vlhmm.inference.score import score
from vlhmm.inference.small import small_queries
from vlhmm.ops.emission import normalize_over_words
from vlhmm.support import Support
from vlhmm.tables import Tables
from vlhmm.transitions import TableTransition, log_table

TOKENS_AT_ONCE = 1 << 14
"""Sequences are scored in batches of about this many tokens."""


@dataclass(frozen=True)
class Data:
    """What is fitted to: sequences of token ids, and what is known of their states."""

    sequences: Sequence[Tensor]
    states: Sequence[Tensor] | None = None
    """Of each sequence the state at each position, -1 where it is unknown; None: none is known."""
    evidence: Sequence[Tensor] | None = None
    """Of each sequence log-likelihoods (T, Z) of all states in place of tokens; then the sequences are words of `evidence_tables`."""

    @property
    def num_tokens(self) -> int:
        return sum(len(sequence) for sequence in self.sequences)

    def of(self, numbers: Sequence[int]) -> Data:
        states = None if self.states is None else [self.states[number] for number in numbers]
        evidence = None if self.evidence is None else [self.evidence[number] for number in numbers]
        return Data([self.sequences[number] for number in numbers], states, evidence)

    def batches(self, tables: Tables) -> Iterator[tuple[list[int], Batch]]:
        for chosen, batch in batches(self.sequences):
            if self.evidence is not None:
                of_states = torch.nn.utils.rnn.pad_sequence([self.evidence[n] for n in chosen], batch_first=True)
                batch = replace(batch, log_evidence=of_states)
            if self.states is not None:
                members = [self.states[number] for number in chosen]
                padded = torch.nn.utils.rnn.pad_sequence(members, batch_first=True, padding_value=-1)
                batch = with_states(batch, padded, tables)
            yield chosen, batch


def with_states(batch: Batch, states: Int[Tensor, "B T"], tables: Tables) -> Batch:
    """The batch with its states known, where they are not -1: all others are impossible."""
    known, emitting = states[:, :, None], tables.support.states_of(batch.tokens)
    possible = (known < 0) | (emitting == known)
    evidence = torch.zeros(possible.shape, dtype=tables.dtype, device=tables.device)
    return replace(batch, log_evidence=batch.with_evidence(evidence.masked_fill_(~possible, -torch.inf)))


@dataclass(frozen=True)
class Fixed:
    """Which probabilities stay as they are; the others of their distribution share what these leave."""

    start: Bool[Tensor, " Z"]
    transition: Bool[Tensor, "Z Z"]
    emission: Bool[Tensor, "X K"]
    """In the layout of `Tables.log_emission`."""

    def counts(self, counts: Counts) -> Counts:
        return Counts(
            counts.start.masked_fill(self.start, 0.0),
            counts.transition.masked_fill(self.transition, 0.0),
            counts.emission.masked_fill(self.emission, 0.0),
        )

    def shares(self, shares: Tables, tables: Tables) -> Tables:
        """The free probabilities as shares of what the fixed ones leave, put beside these: distributions."""
        old, new = _logs(tables), _logs(shares)
        rooms = (
            old[0].exp().masked_fill(self.start, 0.0).sum(),
            old[1].exp().masked_fill(self.transition, 0.0).sum(1, keepdim=True),
            state_totals(old[2].exp().masked_fill(self.emission, 0.0), tables.support),
        )
        masks = (self.start, self.transition, self.emission)
        parts = [
            torch.where(mask, one, other + room.log())
            for mask, one, other, room in zip(masks, old, new, rooms, strict=True)
        ]
        return replace(tables, log_start=parts[0], transition=TableTransition(parts[1]), log_emission=parts[2])

    def kept(self, tables: Tables, before: Tables) -> Tables:
        """`tables` with the fixed probabilities of `before`, bit for bit."""
        masks = (self.start, self.transition, self.emission)
        parts = [torch.where(*three) for three in zip(masks, _logs(before), _logs(tables), strict=True)]
        return replace(tables, log_start=parts[0], transition=TableTransition(parts[1]), log_emission=parts[2])


def _logs(tables: Tables) -> tuple[Tensor, Tensor, Tensor]:
    return tables.log_start, log_table(tables.transition), tables.log_emission


def batches(sequences: Sequence[Tensor], tokens_at_once: int = TOKENS_AT_ONCE) -> Iterator[tuple[list[int], Batch]]:
    """The sequences in batches of similar lengths, each with the numbers of its sequences."""
    order = sorted(range(len(sequences)), key=lambda i: len(sequences[i]))
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
    start, transition, emission = (
        values + pseudocount for values in (counts.start, counts.transition, counts.emission)
    )
    return replace(
        tables,
        log_start=_log_ratio(start, start.sum(), tables.log_start),
        transition=TableTransition(
            _log_ratio(transition, transition.sum(1, keepdim=True), log_table(tables.transition))
        ),
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

    log_rate, log_rest = torch.tensor([rate, 1 - rate], dtype=torch.float64).log().tolist()

    def mix(one: Tensor, other: Tensor) -> Tensor:
        probs = rate * one.exp() + (1 - rate) * other.exp()
        # A positive probability that underflows stays possible.
        small = probs < torch.finfo(probs.dtype).tiny / torch.finfo(probs.dtype).eps
        return torch.where(small, torch.logaddexp(one + log_rate, other + log_rest), probs.log())

    return replace(
        new,
        log_start=mix(new.log_start, old.log_start),
        transition=TableTransition(mix(log_table(new.transition), log_table(old.transition))),
        log_emission=mix(new.log_emission, old.log_emission),
    )


@dataclass(frozen=True)
class Restrictions:
    """What fitting keeps to."""

    fixed: Fixed | None = None
    pseudocount: float = 0.0
    """Added to every count of a probability that is free."""

    def maximized(self, counts: Counts, tables: Tables) -> Tables:
        """The M step: what is most likely given the counts, among the tables that differ in free probabilities only."""
        if self.fixed is None:
            return maximized(counts, tables, self.pseudocount)
        if self.pseudocount:
            counts = Counts(*(getattr(counts, name) + self.pseudocount for name in ("start", "transition", "emission")))
        free = self.fixed.counts(counts)
        shares = _logs(self.fixed.shares(maximized(free, tables), tables))
        # A distribution without free counts is left unchanged.
        used = (
            free.start.sum() > 0,
            free.transition.sum(1, keepdim=True) > 0,
            state_totals(free.emission, tables.support) > 0,
        )
        parts = [torch.where(*three) for three in zip(used, shares, _logs(tables), strict=True)]
        return replace(tables, log_start=parts[0], transition=TableTransition(parts[1]), log_emission=parts[2])


def em_steps(tables: Tables, data: Data, restrictions: Restrictions) -> Iterator[tuple[Tables, float]]:
    """Full-batch Baum-Welch. Iterates indefinitely: the tables after each step, and log p of the sequences before it."""
    tables = as_table(tables)
    # Padded batches are built once. Evidence of known states takes a number for each state and position, so it is rebuilt each time.
    numbered = list(data.batches(tables)) if data.states is None and data.evidence is None else None
    while True:
        counts, log_prob = total_counts(tables, data.batches(tables) if numbered is None else numbered)
        tables = restrictions.maximized(counts, tables)
        yield tables, log_prob


def minibatch_em_steps(
    tables: Tables,
    data: Data,
    restrictions: Restrictions,
    batch_size: int,
    rate: float,
    generator: torch.Generator | None,
) -> Iterator[tuple[Tables, float]]:
    """Mini-batch Baum-Welch. Iterates indefinitely: the tables after each pass over the sequences, and log p as seen during it."""
    tables = as_table(tables)
    while True:
        log_prob = 0.0
        for chosen in torch.randperm(len(data.sequences), generator=generator).split(batch_size):
            numbers = chosen.tolist()
            part = ((_numbered(numbers, some), batch) for some, batch in data.of(numbers).batches(tables))
            counts, part_log_prob = total_counts(tables, part)
            new = mixed(restrictions.maximized(counts, tables), tables, rate)
            tables = new if restrictions.fixed is None else restrictions.fixed.kept(new, tables)
            log_prob += part_log_prob
        yield tables, log_prob


def _numbered(numbers: Sequence[int], chosen: Sequence[int]) -> list[int]:
    return [numbers[number] for number in chosen]


def adam_steps(
    tables: Tables, data: Data, restrictions: Restrictions, learning_rate: float
) -> Iterator[tuple[Tables, float]]:
    """Gradient ascent on log p. Iterates indefinitely: the tables after each pass, and log p as seen during it."""
    tables, fixed = as_table(tables), restrictions.fixed
    # Logits are initialised with log-probabilities; a probability of 0 stays 0, since its gradient is 0.
    logits = [table.detach().clone().requires_grad_() for table in _logs(tables)]
    optimizer = torch.optim.Adam(logits, lr=learning_rate)

    def normalized() -> Tables:
        if fixed is None:
            return _normalized(logits, tables)
        masks = (fixed.start, fixed.transition, fixed.emission)
        open_logits = [one.masked_fill(mask, -torch.inf) for one, mask in zip(logits, masks, strict=True)]
        return fixed.shares(_normalized(open_logits, tables), tables)

    while True:
        log_prob = 0.0
        for chosen, batch in data.batches(tables):
            current = normalized()
            token_log_probs = score(current, batch).token_log_probs
            raise_impossible(token_log_probs.detach(), 0, torch.tensor(chosen), "fit")
            optimizer.zero_grad()
            (-token_log_probs.sum() / batch.lengths.sum()).backward()
            optimizer.step()
            log_prob += float(token_log_probs.detach().double().sum())
        with torch.no_grad():
            fitted = normalized()
        yield fitted, log_prob


@torch.no_grad()
def total_log_prob(tables: Tables, data: Data) -> float:
    """log p of all sequences (and of what is known of their states), in float64."""
    small, total = small_queries(tables), 0.0
    for _, batch in data.batches(tables):
        found = None if small is None else small.token_log_probs_of(batch)
        total += float((score(tables, batch).token_log_probs if found is None else found).double().sum())
    return total


def _normalized(logits: Sequence[Tensor], tables: Tables) -> Tables:
    start, transition, emission = logits
    return replace(
        tables,
        log_start=start.log_softmax(0),
        transition=TableTransition(transition.log_softmax(1)),
        log_emission=normalize_over_words(emission, tables.support),
    )
