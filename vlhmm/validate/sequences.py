"""Token ids of sequences, and which of them are missing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vlhmm.arguments import as_tensor, check_count, is_integer
from vlhmm.inference.gather import Batch
from vlhmm.tables import Tables


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


def check_window(window: int | None) -> None:
    if window is not None:
        check_count("window", window)
