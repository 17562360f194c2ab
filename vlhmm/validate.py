"""Validation of input: one error that names the number, the limit and the remedy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, get_args

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.arguments import as_device, as_tensor, check_count, check_tensor, is_integer
from vlhmm.inference.evidence import NO_TOKEN
from vlhmm.inference.gather import Batch
from vlhmm.ops.row_logsumexp import row_logsumexp
from vlhmm.precision import Precision
from vlhmm.records import named_tensors, named_values
from vlhmm.support import Support
from vlhmm.tables import Belief, Tables


def as_integers(values: Any, name: str, device: torch.device | None = None) -> Int[Tensor, ...]:
    """`values` as int64 on `device` (None: where they are); floats and ragged lists are refused."""
    values = as_tensor(name, values, "one array of integers")
    if values.ndim and not values.numel() and values.is_floating_point():
        # As an empty list is read.
        raise ValueError(f"{name} is empty, but at least one integer is needed")
    if values.is_floating_point() or values.is_complex() or values.dtype == torch.bool:
        raise ValueError(f"{name} has dtype {values.dtype}, but token ids are integers: convert it, e.g. to int64")
    integers: Tensor = values.to(device=device, dtype=torch.int64)
    return integers


@dataclass(frozen=True)
class Vocabulary:
    """What token ids are checked against where there are no tables yet."""

    num_words: int
    device: torch.device


def as_batch(tokens: Any, lengths: Any, tables: Tables | Vocabulary) -> Batch:
    """Checked tokens (B, T) and lengths; ids past a length are set to 0.

    They are checked where they are, so that a GPU is not waited for on account of what comes from the CPU; of what is on the
    GPU already four numbers are asked for at once.
    """
    ids = as_integers(tokens, "tokens")
    if ids.ndim != 2:
        raise ValueError(
            f"tokens has {ids.ndim} dimension(s) {tuple(ids.shape)}, but 2 are needed, (batch, time): for one sequence use tokens[None]"
        )
    size, num_positions = ids.shape
    if size == 0 or num_positions == 0:
        raise ValueError(f"tokens has shape {tuple(ids.shape)}, but at least one sequence of one token is needed")
    within, extremes = ids, []
    if lengths is None:
        counts = torch.full((size,), num_positions, device=tables.device)
    else:
        counts = as_integers(lengths, "lengths", ids.device)
        if counts.shape != (size,):
            raise ValueError(f"lengths has shape {tuple(counts.shape)}, but one length a sequence is needed: ({size},)")
        within = torch.where(torch.arange(num_positions, device=ids.device) < counts[:, None], ids, 0)
        extremes = list(counts.aminmax())
    *of_lengths, lowest, highest = torch.stack([*extremes, *within.aminmax()]).tolist()
    if of_lengths and not 1 <= of_lengths[0] <= of_lengths[1] <= num_positions:
        row = int(((counts < 1) | (counts > num_positions)).nonzero()[0, 0])
        raise ValueError(
            f"lengths[{row}] is {int(counts[row])}, but it must be between 1 and T = {num_positions}: leave out empty sequences, pad longer ones"
        )
    if not 0 <= lowest <= highest < tables.num_words:
        row, position = ((within < 0) | (within >= tables.num_words)).nonzero()[0].tolist()
        raise ValueError(
            f"tokens[{row}, {position}] is {int(within[row, position])}, but ids must be between 0 and {tables.num_words - 1} "
            f"(vocabulary of {tables.num_words}): map unknown words to an id of the vocabulary"
        )
    # Kernels read them as they lie in memory.
    return Batch(within.contiguous().to(tables.device), counts.contiguous().to(tables.device))


def as_lengths(lengths: Any, size: int, num_positions: int, device: torch.device) -> Int[Tensor, " B"]:
    """Checked lengths of `size` sequences; None: all have `num_positions`."""
    if lengths is None:
        return torch.full((size,), num_positions, device=device)
    counts = as_integers(lengths, "lengths", device)
    if counts.shape != (size,):
        raise ValueError(f"lengths has shape {tuple(counts.shape)}, but one length a sequence is needed: ({size},)")
    bad = (counts < 1) | (counts > num_positions)
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"lengths[{row}] is {int(counts[row])}, but it must be between 1 and T = {num_positions}: leave out empty sequences, pad longer ones"
        )
    return counts


def as_missing(tokens: Any, missing: Any, lengths: Any, tables: Tables) -> tuple[Batch, Bool[Tensor, "B T"]]:
    """Checked tokens and the mask of those that are missing, at least one in each sequence; missing ids are never read."""
    mask = as_tensor("missing", missing, "one mask of True and False")
    ids = as_integers(tokens, "tokens", tables.device)
    if mask.dtype != torch.bool or mask.shape != ids.shape:
        raise ValueError(
            f"missing is {mask.dtype} of shape {tuple(mask.shape)}, but a mask of True and False is needed, shaped as tokens: {tuple(ids.shape)}"
        )
    mask = mask.to(tables.device)
    batch = as_batch(torch.where(mask, 0, ids), lengths, tables)
    mask = mask & batch.within()
    whole = ~mask.any(1)
    if bool(whole.any()):
        row = int(whole.nonzero()[0, 0])
        raise ValueError(
            f"sequence {row} has 0 missing tokens, but at least 1 is needed: use log_prob for a text without gaps"
        )
    return batch, mask


def as_sequences(sequences: Any, lengths: Any, tables: Tables | Vocabulary) -> list[Int[Tensor, " T"]]:
    """Sequences of any lengths as a list of checked 1-D tensors."""
    if isinstance(sequences, Sequence) and not len(sequences):
        raise ValueError("0 sequences given, at least 1 is needed")
    if isinstance(sequences, Sequence) and is_integer(sequences[0]):
        sequences = as_integers(sequences, "sequences")
    if getattr(sequences, "ndim", 2) == 1 and lengths is None:
        sequences = sequences[None]
    ragged = (
        isinstance(sequences, Sequence) and lengths is None and len(sequences) > 0 and not isinstance(sequences, str)
    )
    if ragged:
        # As in `as_batch` checked where they are.
        rows = [as_integers(sequence, f"sequences[{number}]") for number, sequence in enumerate(sequences)]
        for number, row in enumerate(rows):
            if row.ndim != 1 or row.shape[0] == 0:
                raise ValueError(
                    f"sequences[{number}] has shape {tuple(row.shape)}, but each sequence is one-dimensional with at least 1 token"
                )
            bad = (row < 0) | (row >= tables.num_words)
            if bool(bad.any()):
                position = int(bad.nonzero()[0, 0])
                raise ValueError(
                    f"sequences[{number}][{position}] is {int(row[position])}, but ids must be between 0 and {tables.num_words - 1}"
                )
        return [row.to(tables.device) for row in rows]
    batch = as_batch(sequences, lengths, tables)
    return [tokens[:length] for tokens, length in zip(batch.tokens, batch.lengths.tolist(), strict=True)]


def check_belief(belief: Belief | None, batch: Batch | None, tables: Tables) -> None:
    """A belief of these tables, and of as many sequences as `batch` has."""
    if belief is None:
        return
    if not isinstance(belief, Belief):
        raise ValueError(
            f"belief is a {type(belief).__name__}, but a Belief is needed: that of hmm.filter(...) is its .belief"
        )
    check_tensor("the belief's token", belief.token)
    check_tensor("the belief's log_probs", belief.log_probs)
    if belief.token.ndim != 1 or belief.token.dtype.is_floating_point or belief.token.dtype == torch.bool:
        raise ValueError(
            f"the belief's token is {belief.token.dtype} of shape {tuple(belief.token.shape)}, but one integer a sequence is needed"
        )
    for name, part in (("token", belief.token), ("log_probs", belief.log_probs)):
        if part.device != tables.device:
            raise ValueError(
                f"the belief's {name} is on {part.device}, but the tables are on {tables.device}: move it there with .to()"
            )
    if belief.log_probs.dtype != tables.dtype:
        raise ValueError(
            f"the belief's log_probs are {belief.log_probs.dtype}, but the tables {tables.dtype}: "
            "carry the belief of the same model, or convert it with .to()"
        )
    size = belief.token.shape[0] if batch is None else batch.tokens.shape[0]
    # After log-likelihoods, where there is no token, every state is possible.
    soft = belief.token == NO_TOKEN
    expected = (size, tables.num_states if bool(soft.any()) else tables.support.states_per_word)
    if tuple(belief.log_probs.shape) != expected or belief.token.shape[0] != size:
        raise ValueError(
            f"the belief has shape {tuple(belief.log_probs.shape)} (sequences, states), but tokens and tables need {expected}: "
            "carry the belief of the same sequences and the same model"
        )
    bad = ((belief.token < 0) & ~soft) | (belief.token >= tables.num_words)
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        raise ValueError(
            f"the belief's token {row} is {int(belief.token[row])}, but ids must be between 0 and {tables.num_words - 1}: "
            "carry the belief of the same model"
        )
    _check_logs("the belief", belief.log_probs)


def check_window(window: int | None) -> None:
    if window is not None:
        check_count("window", window)


def check_dtype(dtype: torch.dtype | None) -> None:
    if dtype not in (None, torch.float32, torch.float64):
        raise ValueError(f"dtype is {dtype}, but tables are float32 or float64")


@dataclass(frozen=True)
class Distributions:
    start: Float[Tensor, " Z"]
    transition: Float[Tensor, "Z Z"]
    emission: Float[Tensor, "Z X"]
    dtype: torch.dtype


def check_distributions(
    start: Any, transition: Any, emission: Any, dtype: torch.dtype | None, device: torch.device | str | None
) -> Distributions:
    """Array-likes as float64 tensors whose rows are distributions; `dtype` becomes that of the tables."""
    check_dtype(dtype)
    device = as_device(device)
    arrays = {"start": start, "transition": transition, "emission": emission}
    given = {name: as_tensor(name, values, "one array of probabilities") for name, values in arrays.items()}
    for (name, values), rank in zip(given.items(), (1, 2, 2), strict=True):
        if values.is_complex():
            raise ValueError(f"{name} has dtype {values.dtype}, but probabilities are real numbers")
        if values.ndim != rank:
            raise ValueError(f"{name} has {values.ndim} dimension(s) {tuple(values.shape)}, but {rank} are needed")
        if values.numel() == 0:
            raise ValueError(f"{name} has shape {tuple(values.shape)}, but at least one state and one word are needed")
    num_states = given["start"].shape[0]
    if given["transition"].shape != (num_states, num_states):
        raise ValueError(
            f"transition has shape {tuple(given['transition'].shape)}, but start has {num_states} states: ({num_states}, {num_states}) is needed"
        )
    if given["emission"].shape[0] != num_states:
        raise ValueError(
            f"emission has {given['emission'].shape[0]} rows, but start has {num_states} states: a row a state is needed"
        )
    if dtype is None:
        # Lists have no precision of their own.
        typed = [given[name].dtype for name, values in arrays.items() if hasattr(values, "dtype")]
        dtype = torch.float64 if torch.float64 in typed else torch.float32
    # Checked, and later turned to logs, in float64: a probability too small for float32 has a log that is not.
    precise = {name: values.to(dtype=torch.float64, device=device) for name, values in given.items()}
    for name, values in precise.items():
        _check_rows(name, values if values.ndim == 2 else values[None], given[name].dtype)
    return Distributions(**precise, dtype=dtype)


def _check_rows(name: str, rows: Float[Tensor, "N W"], given_as: torch.dtype) -> None:
    if bool(rows.isnan().any()):
        row, column = rows.isnan().nonzero()[0].tolist()
        raise ValueError(f"{name} has NaN at row {row}, column {column}: probabilities must be numbers")
    if bool((rows < 0).any()):
        row, column = (rows < 0).nonzero()[0].tolist()
        raise ValueError(
            f"{name} is {float(rows[row, column])} at row {row}, column {column}, but probabilities are not negative"
        )
    _check_totals(name, rows.sum(1), given_as, float64_tolerance=1e-6)


def _check_totals(
    name: str,
    totals: Float[Tensor, " N"],
    dtype: torch.dtype,
    numbers: Int[Tensor, " N"] | None = None,
    float64_tolerance: float = 1e-4,
) -> None:
    tolerance = _tolerance(dtype, float64_tolerance)
    bad = ~((totals - 1).abs() <= tolerance)
    if bool(bad.any()):
        row = int(bad.nonzero()[0, 0])
        number = row if numbers is None else int(numbers[row])
        raise ValueError(
            f"{name}: row {number} sums to {float(totals[row]):.6g}, but a distribution sums to 1 (within {tolerance:g}): divide each row by its sum"
        )


def _tolerance(dtype: torch.dtype, of_float64: float = 1e-4) -> float:
    """Rounding of a row of many float32 numbers, not modelling errors. Tables in float64 may have been made from such."""
    return of_float64 if dtype == torch.float64 else 1e-3


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
        _check_logs("log_start", tables.log_start)
        _check_logs("log_emission", tables.log_emission)
        _check_totals("start", tables.log_start.double().exp().sum()[None], tables.dtype)
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
        _check_logs(name, log_probs)
        _check_totals(name, log_probs.logsumexp(1).double().exp(), tables.dtype)
    for name, part in named_tensors(transition).items():
        _check_logs(f"transition.{name}", part)
    operands = transition.operands()
    if operands is not None and operands.into is not None and not operands.per_block:
        _check_logits(operands.out, operands.into)
        if operands.row_term is not None and not normalized:
            log_sums = row_logsumexp(operands.out, operands.into, precision="highest")
            _check_totals("transition", (log_sums - operands.row_term).double().exp(), tables.dtype)
    step = max(1, num_states // SAMPLED_ROWS)
    rows = torch.arange(0, num_states, step, device=tables.device)
    _check_totals("transition", transition.log_rows(rows).double().exp().sum(1), tables.dtype, rows)


def _check_logits(out: Float[Tensor, "Z H"], into: Float[Tensor, "Y H"]) -> None:
    """Every row's logits must be small enough that their rounding does not move the row's sum by the tolerance.

    Normaliser and logits are rounded apart from each other, so that the sum of a row with large ones can be anything, and
    another one in every product. |out . in| is at most the product of the norms: few rows, if any, have to be made.
    """
    largest = _tolerance(out.dtype) / torch.finfo(out.dtype).eps
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


def _check_logs(name: str, log_probs: Tensor) -> None:
    if bool(log_probs.isnan().any()) or bool((log_probs == torch.inf).any()):
        raise ValueError(f"{name} has NaN or +inf: a log-probability is a number at most 0, or -inf")


def _check_emission(tables: Tables) -> None:
    support = tables.support
    states = support.states_of(torch.arange(support.num_words, device=tables.device))
    totals = tables.log_emission.new_zeros(support.num_states, dtype=torch.float64)
    totals.index_add_(0, states.reshape(-1), tables.log_emission.double().exp().reshape(-1))
    emits = torch.zeros(support.num_states, dtype=torch.bool, device=tables.device)
    emits[states.reshape(-1)] = True
    # A state that no word drew emits nothing; it must not be reachable.
    _check_totals("emission", torch.where(emits, totals, 1.0), tables.dtype)
    if bool((tables.log_start[~emits] > -torch.inf).any()):
        state = int(((tables.log_start > -torch.inf) & ~emits).nonzero()[0, 0])
        raise ValueError(
            f"state {state} emits no word but has start probability {float(tables.log_start[state].exp()):.3g}: it must be 0"
        )
