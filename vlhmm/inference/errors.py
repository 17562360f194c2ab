"""Probability zero where an answer needs a possible text."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops import waiting


class ImpossibleTextError(ValueError):
    """The model gives the text probability zero, so the question has no answer."""


def raise_impossible(token_log_probs: Float[Tensor, "R T"], first: int, rows: Int[Tensor, " R"], question: str) -> None:
    """Raise if a token is impossible, naming its row and position."""
    impossible = token_log_probs.isinf().nonzero()
    waiting.check(token_log_probs.device)
    if impossible.shape[0]:
        row, position = impossible[0].tolist()
        raise ImpossibleTextError(
            f"{question}: sequence {int(rows[row])} has probability zero from position {first + position} on; "
            "leave it out, or smooth the tables so that every token is possible"
        )
