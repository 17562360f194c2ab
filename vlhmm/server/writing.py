"""Texts that are written side by side, one token of each at a time.

What a request draws depends on its seed alone, not on the requests beside it: each has random numbers of its own, drawn in the order
in which `LanguageModel.generate` draws them. Sums of a batch are rounded in another way than those of a single text, so where two tokens
are as good as equal, the text is read again by itself and the choice is made from that.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.control.generate import Choice
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.gather import Batch
from vlhmm.inference.predict import nothing_but
from vlhmm.inference.sampling import draw
from vlhmm.inference.score import score
from vlhmm.server.jobs import Choices, Piece, Top, Writing
from vlhmm.server.next_tokens import NextTokens
from vlhmm.tables import Belief

CLOSE = 1e-4
"""Nats within which two tokens are as good as equal; the rounding of a batch is a hundred times smaller."""


class Scribe:
    """Draws the next token of every text.

    Args:
        next_tokens: The HMM's next-token probabilities.
        opening: The belief before a text; None: the start distribution.
        eos_id: The token that ends a text; None: there is none.
        never: The token that is not drawn; None: all are.
    """

    def __init__(
        self, next_tokens: NextTokens, opening: Belief | None, eos_id: int | None, never: int | None = None
    ) -> None:
        self._next, self._opening, self._eos_id, self._never = next_tokens, opening, eos_id, never

    @torch.no_grad()
    def step(self, writings: Sequence[Writing]) -> list[tuple[Writing, Piece]]:
        """One more token of each continuation that has not ended; the pieces of those that want them."""
        pieces: list[tuple[Writing, Piece]] = []
        free = [writing for writing in writings if writing.following is None]
        if free:
            pieces += self._free_step(free)
        for writing in writings:
            if writing.following is not None:
                pieces += self._constrained_step(writing)
            writing.left -= 1
            writing.times.append(time.monotonic())
        return [(writing, piece) for writing, piece in pieces if writing.pieces]

    def _free_step(self, writings: Sequence[Writing]) -> Iterator[tuple[Writing, Piece]]:
        rows = [(writing, number) for writing in writings for number in writing.going()]
        log_ahead = self._next.log_ahead([writing.rows[number].belief for writing, number in rows])
        log_probs = self._next.log_probs(log_ahead)
        noise = torch.cat([self._noise(writing) for writing in writings])
        drawable = self._drawable(log_probs)
        self._refuse(rows, (drawable == -torch.inf).all(1))
        tokens, close = self._chosen([writing.choice for writing, _ in rows], drawable, noise)
        for place in close.nonzero()[:, 0].tolist():
            writing, number = rows[place]
            alone = self._next.log_probs(self._next.log_ahead([self._read_alone(writing, number)]))
            token, _ = self._chosen([writing.choice], self._drawable(alone), noise[place : place + 1])
            tokens[place] = token[0]
        following = self._next.after(log_ahead, tokens)
        drawn = _drawn(tokens, log_probs, [writing.top for writing, _ in rows])
        for (writing, number), belief, one in zip(rows, following, drawn, strict=True):
            if writing.refused is not None:
                continue
            writing.rows[number].belief = belief
            yield writing, _add(writing, number, one, self._eos_id)

    def _refuse(self, rows: Sequence[tuple[Writing, int]], stuck: Bool[Tensor, " R"]) -> None:
        """As `LanguageModel.generate` refuses what nothing can follow but the token that is never drawn."""
        for place in stuck.nonzero()[:, 0].tolist():
            writing, number = rows[place]
            assert self._never is not None
            writing.refused = ImpossibleTextError(
                f"{nothing_but(self._never)}, after {len(writing.rows[number].ids)} tokens: begin with another text, or ask for "
                "fewer tokens"
            )

    def _drawable(self, log_probs: Float[Tensor, "R X"]) -> Float[Tensor, "R X"]:
        if self._never is None:
            return log_probs
        log_probs = log_probs.clone()
        log_probs[:, self._never] = -torch.inf
        return log_probs

    def _noise(self, writing: Writing) -> Float[Tensor, "N X"]:
        """For every continuation, ended or not: what one becomes does not depend on where the others end."""
        tables = self._next.tables
        noise = tables.log_emission.new_ones(len(writing.rows), tables.num_words)
        if writing.choice.top_k != 1:
            noise.exponential_(generator=writing.generator)
        return noise[writing.going()]

    def _chosen(
        self, choices: Sequence[Choice], log_probs: Float[Tensor, "R X"], noise: Float[Tensor, "R X"]
    ) -> tuple[Int[Tensor, " R"], Bool[Tensor, " R"]]:
        """The token of each row, and whether another would have been as good."""
        by_choice: dict[Choice, list[int]] = {}
        for row, choice in enumerate(choices):
            by_choice.setdefault(choice, []).append(row)
        tokens = torch.empty(len(choices), dtype=torch.int64, device=log_probs.device)
        close = torch.empty(len(choices), dtype=torch.bool, device=log_probs.device)
        for choice, rows in by_choice.items():
            some, some_noise = log_probs[rows], noise[rows].log()
            best = (choice.log_weights(some) - some_noise).topk(min(2, some.shape[1]), dim=1)
            tokens[rows] = best.indices[:, 0]
            # With a single token there is no second one. Impossible tokens (-inf) are never close.
            gap = best.values[:, 0] - best.values[:, -1]
            close[rows] = (gap < CLOSE * max(1.0, 1 / choice.temperature)) & (best.indices[:, 0] != best.indices[:, -1])
            close[rows] |= _at_the_edge(choice, some, best.indices[:, 0], some_noise)
        return tokens, close

    def _read_alone(self, writing: Writing, number: int) -> Belief | None:
        """The belief after a continuation, recomputed from its first token and outside of the batch."""
        ids = [*writing.prompt, *writing.rows[number].ids]
        if not ids:
            return self._opening
        tables = self._next.tables
        ids = ids[ids[0] == self._eos_id :]
        if not ids:
            return self._opening
        batch = Batch(torch.tensor([ids], device=tables.device), torch.tensor([len(ids)], device=tables.device))
        belief = score(tables, batch, self._opening).belief
        return writing.rows[number].belief if bool(belief.log_probs.isinf().all()) else belief

    def _constrained_step(self, writing: Writing) -> Iterator[tuple[Writing, Piece]]:
        following = writing.following
        assert following is not None
        going = writing.going()
        log_ahead = torch.cat([writing.log_ahead[number] for number in going])
        found = following(log_ahead, [writing.constraint_states[number] for number in going], writing.left)
        drawn = draw(writing.choice.log_weights(found.log_joint), writing.generator)
        tokens: list[int] = drawn.tolist()
        states = following.next_states([writing.constraint_states[number] for number in going], tokens)
        if writing.left > 1:
            # Finished texts are removed from the batch, as in generation of a single text.
            on = [place for place, token in enumerate(tokens) if token != self._eos_id]
            if on:
                ahead = following.log_ahead_after(log_ahead[on], drawn[on])
                for place, row in zip(on, ahead.split(1), strict=True):
                    writing.log_ahead[going[place]] = row
        added = _drawn(drawn, found.log_prob, [writing.top] * len(going))
        for number, state, one in zip(going, states, added, strict=True):
            writing.constraint_states[number] = state
            yield writing, _add(writing, number, one, self._eos_id)


@dataclass(frozen=True)
class _Drawn:
    token: int
    log_prob: float
    top: Top


def _drawn(tokens: Int[Tensor, " R"], log_probs: Float[Tensor, "R X"], tops: Sequence[int]) -> list[_Drawn]:
    """The token of each row with its log-probability, and with as many of the most likely tokens as each asks for."""
    values = log_probs.gather(1, tokens[:, None])[:, 0].tolist()
    found = [_Drawn(token, value, []) for token, value in zip(tokens.tolist(), values, strict=True)]
    for row, top in enumerate(tops):
        if top:
            best = log_probs[row].topk(min(top, log_probs.shape[1]))
            entries = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            own = found[row]
            if all(token != own.token for token, _ in entries):
                entries.append((own.token, own.log_prob))
            found[row] = _Drawn(own.token, own.log_prob, entries)
    return found


def _add(writing: Writing, number: int, drawn: _Drawn, eos_id: int | None) -> Piece:
    """Adds a token to a continuation, which may end with it."""
    row = writing.rows[number]
    row.ids.append(drawn.token)
    row.log_probs.append(drawn.log_prob)
    if writing.top:
        row.tops.append(drawn.top)
    ends = drawn.token == eos_id
    piece = ""
    # Text that is not streamed is decoded at the end.
    if not ends and (writing.pieces or row.stops is not None):
        piece = _sent_on(row, row.writer.add([drawn.token]))
    if ends or (row.stops is not None and row.stops.found is not None):
        row.finish_reason = "stop"
    elif writing.left == 1:
        row.finish_reason = "length"
    if row.finish_reason is not None:
        piece += _last(row, writing, ends)
    row.text += piece
    return Piece(number, piece, len(row.ids), row.finish_reason)


def _sent_on(row: Choices, text: str) -> str:
    return text if row.stops is None else row.stops.add(text)


def _last(row: Choices, writing: Writing, ends: bool) -> str:
    """What is still to be said of a text that has ended."""
    if not writing.pieces and row.stops is None:
        return row.writer.add(row.ids[:-1] if ends else row.ids) + row.writer.rest()
    if row.stops is None:
        return row.writer.rest()
    # Once a stop string was found, nothing more is sent on.
    piece = row.stops.add(row.writer.rest()) + row.stops.rest()
    row.finish_reason = "stop" if row.stops.found is not None else row.finish_reason
    return piece


def _at_the_edge(
    choice: Choice, log_probs: Float[Tensor, "R X"], chosen: Int[Tensor, " R"], log_noise: Float[Tensor, "R X"]
) -> Bool[Tensor, " R"]:
    """Whether `top_k` or `top_p` includes or excludes a token by a margin within rounding error."""
    edge = torch.zeros_like(chosen, dtype=torch.bool)
    if choice.top_k is not None and choice.top_k < log_probs.shape[1]:
        last, next_one = log_probs.topk(choice.top_k + 1, dim=1).values[:, -2:].unbind(1)
        edge |= (last - next_one < CLOSE) & (next_one > -torch.inf)
    if choice.top_p is not None:
        for by in (1 - CLOSE, 1 + CLOSE):
            other = Choice(choice.temperature, choice.top_k, min(1.0, choice.top_p * by))
            edge |= (other.log_weights(log_probs) - log_noise).argmax(1) != chosen
    return edge
