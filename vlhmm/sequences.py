"""What queries are asked about: one sequence or a batch, padded or ragged, of tokens or of log-likelihoods of states."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, NamedTuple, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.arguments import as_tensor, is_integer
from vlhmm.inference.evidence import before_tokens, evidence_batch, evidence_tables, over_all_states
from vlhmm.inference.gather import Batch
from vlhmm.memory import require_memory
from vlhmm.tables import Belief, Tables
from vlhmm.validate import as_batch, as_integers, as_lengths, check_belief

Answer = TypeVar("Answer")


class Given(NamedTuple):
    """The sequences of a query with a batch axis, still to be checked. A named tuple: a frozen dataclass takes 0.6 us more to make, of
    the 6 us of a short query."""

    tokens: Any
    """Token ids (B, T); None where log-likelihoods are given."""
    log_likelihoods: Any
    """(B, T, Z); None where tokens are given."""
    lengths: Any
    single: bool
    """One sequence was given without a batch axis, and so are its answers."""

    def shaped(self, answer: Answer) -> Answer:
        """The answer without its batch axis if the question had none; a belief, which continues a batch, always has it."""
        return _first(answer) if self.single else answer

    def on(self, tables: Tables, belief: Belief | None) -> tuple[Tables, Batch, Belief | None]:
        """Checked: the tables that answer, the batch, and the belief that it continues."""
        if self.log_likelihoods is None:
            batch = as_batch(self.tokens, self.lengths, tables)
            check_belief(belief, batch, tables)
            return tables, batch, None if belief is None else before_tokens(belief, tables)
        batch = as_evidence(self.log_likelihoods, self.lengths, tables)
        check_belief(belief, batch, tables)
        return evidence_tables(tables), batch, None if belief is None else over_all_states(belief, tables)

    @property
    def requires_grad(self) -> bool:
        evidence = self.log_likelihoods
        return torch.is_grad_enabled() and isinstance(evidence, Tensor) and evidence.requires_grad


def read(tokens: Any, lengths: Any, log_likelihoods: Any = None) -> Given:
    """Tokens (T,), (B, T) or ragged, or log-likelihoods (T, Z), (B, T, Z) or ragged, with a batch axis and lengths."""
    if tokens is None and log_likelihoods is None:
        raise ValueError(
            "neither tokens nor log_likelihoods are given: give token ids (B, T), or log-likelihoods (B, T, Z)"
        )
    if tokens is not None and log_likelihoods is not None:
        raise ValueError(
            "tokens and log_likelihoods are both given, but one takes the place of the other: "
            "add hmm.emission[:, tokens].log() to the log-likelihoods for both"
        )
    if log_likelihoods is None:
        # As most questions are.
        if isinstance(tokens, Tensor) and tokens.ndim == 2:
            return Given(tokens, None, lengths, False)
        values, lengths, single = padded("tokens", tokens, lengths)
        return Given(values, None, lengths, single)
    values, lengths, single = padded("log_likelihoods", log_likelihoods, lengths, axes=1)
    return Given(None, values, lengths, single)


def padded(name: str, values: Any, lengths: Any, axes: int = 0, empty: bool = False) -> tuple[Any, Any, bool]:
    """`values` with a batch axis, rows of different lengths filled up with 0, the lengths, and whether there was one sequence.

    A position has `axes` axes of its own. `empty`: sequences of no position may be among others. What is no batch of sequences
    is returned as it is, for `as_batch` to refuse.
    """
    rows = _rows(name, values) if isinstance(values, list | tuple) and values else None
    if rows is not None and {row.ndim for row in rows} != {axes}:
        return *_pad(name, rows, lengths, axes, empty), False
    if rows is not None and len({row.shape for row in rows}) == 1:
        values = torch.stack(rows)
    if not isinstance(values, Tensor):
        values = as_tensor(name, values, "one array of numbers")
    if values.ndim != 1 + axes:
        return values, lengths, False
    if lengths is not None:
        raise ValueError(f"lengths is given with one sequence, but is for batches: cut {name} to the length instead")
    return values[None], None, True


def _rows(name: str, values: Sequence[Any]) -> list[Tensor] | None:
    """What a list holds, if it holds tensors, or sequences of different lengths."""
    if is_integer(values[0]) or not all(hasattr(row, "__len__") and not isinstance(row, str | bytes) for row in values):
        return None
    if not isinstance(values[0], Tensor) and len({len(row) for row in values}) == 1:
        return None
    return [as_tensor(f"{name}[{number}]", row, "one array of numbers") for number, row in enumerate(values)]


def _pad(name: str, rows: list[Tensor], lengths: Any, axes: int, empty: bool) -> tuple[Tensor, Any]:
    for number, row in enumerate(rows):
        if row.ndim != 1 + axes or (row.shape[0] == 0 and not empty) or row.shape[1:] != rows[0].shape[1:]:
            needed = "one-dimensional" if axes == 0 else "of shape (positions, states)"
            raise ValueError(
                f"{name}[{number}] has shape {tuple(row.shape)}, but each sequence is {needed}, with at least 1 position"
            )
    found = [row.shape[0] for row in rows]
    ragged = len(set(found)) > 1
    if lengths is not None and ragged:
        raise ValueError(
            f"lengths is given, but {name} is a list of sequences of different lengths, which have their own: leave lengths out"
        )
    # An empty list is read as one of floats.
    rows = [row if row.shape[0] else row.long() for row in rows]
    if axes == 0 and rows[0].dtype != torch.bool:
        rows = [as_integers(row, f"{name}[{number}]") for number, row in enumerate(rows)]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True), found if ragged else lengths


def as_evidence(log_likelihoods: Any, lengths: Any, tables: Tables) -> Batch:
    """Checked log-likelihoods (B, T, Z); numbers past a length are never read."""
    values = as_tensor("log_likelihoods", log_likelihoods, "one array of numbers")
    if values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"log_likelihoods has dtype {values.dtype}, but log-likelihoods are real numbers")
    if values.ndim != 3 or values.shape[2] != tables.num_states:
        raise ValueError(
            f"log_likelihoods has shape {tuple(values.shape)}, but (batch, time, states) is needed, or (time, states) for one "
            f"sequence, with log p(what is seen | z) of all {tables.num_states} states z"
        )
    if values.shape[0] == 0 or values.shape[1] == 0:
        raise ValueError(
            f"log_likelihoods has shape {tuple(values.shape)}, but at least one sequence of one position is needed"
        )
    values = values.to(tables.device, tables.dtype)
    size, num_positions = values.shape[:2]
    counts = as_lengths(lengths, size, num_positions, tables.device)
    batch = evidence_batch(values, counts)
    if lengths is not None:
        batch = replace(batch, log_evidence=torch.where(batch.within()[:, :, None], values, 0.0))
    _check_evidence(batch.log_evidence)
    return batch


def _check_evidence(log_evidence: Float[Tensor, "B T Z"] | None) -> None:
    assert log_evidence is not None
    bad = log_evidence.detach().isnan() | (log_evidence.detach() == torch.inf)
    if bool(bad.any()):
        row, position, state = bad.nonzero()[0].tolist()
        raise ValueError(
            f"log_likelihoods[{row}, {position}, {state}] is {float(log_evidence[row, position, state])}, but a log-likelihood is "
            "a number, or -inf where the state is impossible"
        )


def _first(answer: Any) -> Any:
    if isinstance(answer, Tensor):
        return answer[0]
    if isinstance(answer, Belief) or not is_dataclass(answer) or isinstance(answer, type):
        return answer
    return replace(answer, **{field.name: _first(getattr(answer, field.name)) for field in fields(answer)})


def require_per_position(tables: Tables, batch: Batch, what: str) -> None:
    size, num_positions = batch.tokens.shape
    states = tables.support.states_per_word
    require_memory(
        size * num_positions * states * tables.log_emission.element_size(),
        f"{what} of {size} x {num_positions} tokens over {states} states each",
        "ask for fewer tokens at a time and carry the belief on",
        tables.device,
    )
