"""Texts that are scored side by side, a part of each at a time."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.inference.gather import Batch
from vlhmm.inference.score import log_filtered_states, score
from vlhmm.server.jobs import Read, Reading, Top
from vlhmm.server.next_tokens import NextTokens, split
from vlhmm.server.slices import Pace
from vlhmm.tables import Belief, Tables

MIN_PART_TOKENS, PART_TOKENS = 32, 1024
"""So many tokens of a text are read before others have their turn, at least and at most."""
FIRST_TOKENS, MAX_TOKENS = 4096, 1 << 16
"""Of all texts of a turn: at first, and at most. How many fit into a turn is measured."""
TOP_BYTES = 1 << 26
"""Most likely tokens are looked for in so many bytes of probabilities at a time."""


class Reader:
    """Reads texts in batches.

    Args:
        tables: The HMM.
        next_tokens: Its next-token probabilities.
    """

    def __init__(self, tables: Tables, next_tokens: NextTokens) -> None:
        self._tables, self._next = tables, next_tokens
        self._pace = {with_tops: Pace(FIRST_TOKENS, MIN_PART_TOKENS, MAX_TOKENS) for with_tops in (False, True)}

    def read(self, texts: Sequence[Reading]) -> None:
        """The next part of each text; those without a belief begin from the start distribution."""
        # Batched separately: top-k tokens of each position cost far more than scoring.
        for with_tops, pace in self._pace.items():
            alike = [text for text in texts if bool(text.top) == with_tops]
            if not alike:
                continue
            # Short parts of many texts would be dominated by overhead: take longer parts of fewer texts.
            alike = alike[: max(1, pace.size // MIN_PART_TOKENS)]
            part_tokens = min(PART_TOKENS, max(MIN_PART_TOKENS, pace.size // len(alike)))
            fresh = [text for text in alike if text.belief is None]
            begun = [text for text in alike if text.belief is not None]
            before, left = time.monotonic(), sum(text.left for text in alike)
            for part in (fresh, begun):
                if part:
                    self._read(part, part_tokens)
            pace.took(left - sum(text.left for text in alike), time.monotonic() - before)

    @torch.no_grad()
    def _read(self, texts: Sequence[Reading], part_tokens: int) -> None:
        device = self._tables.device
        parts = [text.ids[text.position : text.position + part_tokens] for text in texts]
        lengths = [len(part) for part in parts]
        longest = max(lengths)
        padded = [part + [0] * (longest - len(part)) for part in parts]
        batch = Batch(torch.tensor(padded, device=device), torch.tensor(lengths, device=device))
        past = _joined([text.belief for text in texts])
        scored = score(self._tables, batch, past)
        rows: list[list[float]] = scored.token_log_probs.tolist()
        log_probs = [values[:length] for values, length in zip(rows, lengths, strict=True)]
        wanted = [row for row, text in enumerate(texts) if text.top]
        if wanted:
            self._tops(
                [texts[row] for row in wanted], [parts[row] for row in wanted], [log_probs[row] for row in wanted]
            )
        for text, part, values, belief in zip(texts, parts, log_probs, split(scored.belief), strict=True):
            text.log_probs += values
            text.position += len(part)
            text.belief = belief

    def _tops(self, texts: Sequence[Reading], parts: Sequence[list[int]], log_probs: Sequence[list[float]]) -> None:
        rows_at_once = max(1, TOP_BYTES // self._next.bytes_per_row)
        for text, part, values in zip(texts, parts, log_probs, strict=True):
            before = self._beliefs_before(text.belief, part)
            for first in range(0, len(part), rows_at_once):
                some = slice(first, first + rows_at_once)
                found = self._next.log_probs(self._next.log_ahead(before[some]))
                text.tops += tops_of(found, part[some], values[some], text.top)

    def _beliefs_before(self, belief: Belief | None, part: list[int]) -> list[Belief | None]:
        """The belief before each token of a part."""
        device = self._tables.device
        ids = torch.tensor(part, device=device)
        batch = Batch(ids[None], torch.tensor([len(part)], device=device))
        log_probs, _ = log_filtered_states(self._tables, batch, belief)
        return [belief, *split(Belief(ids[:-1], log_probs[0, :-1]))]


def _joined(beliefs: Sequence[Belief | None]) -> Belief | None:
    known = [belief for belief in beliefs if belief is not None]
    if not known:
        return None
    return Belief(torch.cat([one.token for one in known]), torch.cat([one.log_probs for one in known]))


def tops_of(log_probs: Float[Tensor, "T X"], ids: Sequence[int], values: Sequence[float], top: int) -> list[Top]:
    """The most likely tokens of each position and the token that stands there.

    The token has its log-probability in `values`, and the others are measured against it: where no token is more likely, none
    has a larger number, whatever the rounding of either computation.
    """
    tokens = torch.tensor(ids, device=log_probs.device)
    own = log_probs.gather(1, tokens[:, None])
    best = log_probs.topk(min(top, log_probs.shape[1]), dim=1)
    ratios = (best.values.double() - own.double()).tolist()
    found: list[Top] = []
    for token, value, others, ratio, absolute in zip(
        ids, values, best.indices.tolist(), ratios, best.values.tolist(), strict=True
    ):
        finite = value > -float("inf") and ratio[0] < float("inf")
        entries = [
            (one, value + by if finite else log_prob) for one, by, log_prob in zip(others, ratio, absolute, strict=True)
        ]
        if token not in others:
            entries.append((token, value))
        found.append(entries)
    return found


def answer_of(text: Reading) -> Read:
    return Read(text.log_probs, text.tops, text.belief)
