"""Many texts at once: one forward pass for as many as the memory of a batch holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from jaxtyping import Int, Shaped
from torch import Tensor

from vlhmm.arguments import check_text
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.pauses import pause
from vlhmm.tables import Belief, Tables

Answer = TypeVar("Answer")

Texts = list[str] | tuple[str, ...]
"""Several texts, as arguments are annotated: a `str` is a sequence of texts too, so `Sequence[str]` would not tell them apart."""

BATCH_BYTES = 1 << 28
"""What the tensors of one batch take, about."""
COPIES = 8
"""Tensors over positions and states that a query makes."""


def as_texts(name: str, texts: Any) -> list[str]:
    """Several texts as a list of checked ones; an array or any other iterable with an order will do."""
    if isinstance(texts, bytes | Mapping | Set) or not isinstance(texts, Iterable):
        kind = type(texts).__name__
        raise ValueError(f"{name} is a {kind}, but a text (str) or a list of texts is needed")
    found = list(texts)
    for number, text in enumerate(found):
        check_text(f"{name}[{number}]", text)
    return found


def one_or_all(name: str, text: Any, answer: Callable[[list[str]], list[Answer]]) -> Answer | list[Answer]:
    """The answer to one text, or the list of answers to several."""
    if isinstance(text, str):
        check_text(name, text)
        return answer([text])[0]
    texts = as_texts(name, text)
    return answer(texts) if texts else []


def one_by_one(texts: list[str], answer: Callable[[str], Answer]) -> list[Answer]:
    """The answer to each text by itself; of several, one that is refused is named by its place."""
    if len(texts) == 1:
        return [answer(texts[0])]
    answers: list[Answer] = []
    for place, text in enumerate(texts):
        try:
            answers.append(answer(text))
        except ValueError as error:
            kind = ImpossibleTextError if isinstance(error, ImpossibleTextError) else ValueError
            raise kind(f"text {place} of the list (the first is 0): {error}") from None
    return answers


@dataclass(frozen=True)
class TextBatch:
    """Some of several texts, padded to one length."""

    places: list[int]
    """Where each stands among all texts."""
    tokens: Int[Tensor, "B T"]
    lengths: Int[Tensor, " B"]

    def rows(self, values: Shaped[Tensor, "B T *rest"]) -> list[list[Any]]:
        """What stands at each text's own positions, as lists."""
        return [row[:length].tolist() for row, length in zip(values, self.lengths.tolist(), strict=True)]


def in_batches(ids: Sequence[Sequence[int]], tables: Tables, limit_bytes: int = BATCH_BYTES) -> Iterator[TextBatch]:
    """All texts in batches of bounded size, in their order if one batch holds them, else those of similar length together."""
    per_token = COPIES * tables.support.states_per_word * tables.log_emission.element_size()
    tokens_at_once = max(1, limit_bytes // per_token)
    for places in _places([len(text) for text in ids], tokens_at_once):
        lengths = [len(ids[place]) for place in places]
        tokens = torch.zeros(len(places), max(lengths), dtype=torch.int64)
        for row, place in enumerate(places):
            tokens[row, : lengths[row]] = torch.tensor(ids[place])
        yield TextBatch(places, tokens, torch.tensor(lengths))


def _places(lengths: list[int], tokens_at_once: int) -> Iterator[list[int]]:
    if not lengths:
        return
    if max(lengths) * len(lengths) <= tokens_at_once:
        yield list(range(len(lengths)))
        return
    # Longest first: the first text of a batch is as long as all are padded to.
    order = sorted(range(len(lengths)), key=lambda place: -lengths[place])
    while order:
        size = max(1, tokens_at_once // lengths[order[0]])
        yield sorted(order[:size])
        order = order[size:]


def answers_of(
    ids: Sequence[Sequence[int]], tables: Tables, question: Callable[[TextBatch], Sequence[Answer]]
) -> list[Answer]:
    """What `question` answers to each text, in their order; a text of probability zero is named by its place."""
    answers: dict[int, Answer] = {}
    for batch in in_batches(ids, tables):
        pause()
        try:
            found = question(batch)
        except ImpossibleTextError:
            if len(ids) > 1:
                _name_impossible(batch, question)
            raise
        answers.update(zip(batch.places, found, strict=True))
    return [answers[place] for place in range(len(ids))]


def _name_impossible(batch: TextBatch, question: Callable[[TextBatch], Any]) -> None:
    """Ask again text by text: rows of a batch are not the caller's numbers."""
    for row, place in enumerate(batch.places):
        length = batch.lengths[row : row + 1]
        try:
            question(TextBatch([place], batch.tokens[row : row + 1, : int(length)], length))
        except ImpossibleTextError as error:
            raise ImpossibleTextError(f"text {place} of the list (the first is 0): {error}") from None


def repeated(belief: Belief | None, num: int) -> Belief | None:
    """One belief for `num` texts."""
    return None if belief is None else Belief(belief.token.expand(num), belief.log_probs.expand(num, -1))
