"""Gaps in a text: all numbers of tokens that they may have, side by side."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.data import Tokenizer
from vlhmm.hmm import HMM
from vlhmm.inference.errors import ImpossibleTextError
from vlhmm.inference.gather import Batch
from vlhmm.inference.infill import Infiller, filled_log_prob
from vlhmm.inference.sampling import draw, require_drawn
from vlhmm.pauses import pause
from vlhmm.tables import Belief
from vlhmm.text.answers import FilledGap, Filling, Infilling
from vlhmm.text.pieces import Gap

MAX_ALTERNATIVES = 1000
"""Combinations of numbers of tokens; each is a text of its own."""


def infill_text(
    hmm: HMM,
    tokenizer: Tokenizer,
    belief: Belief | None,
    pieces: list[list[int]],
    gaps: Sequence[Gap],
    exclude: Sequence[int],
    num: int,
    top: int,
    generator: torch.Generator | None,
) -> Infilling:
    """What stands between the pieces; no token in `exclude` does."""
    count = math.prod(gap.most - gap.least + 1 for gap in gaps)
    if count > MAX_ALTERNATIVES:
        raise ValueError(
            f"the gaps have {count} combinations of lengths, but {MAX_ALTERNATIVES} is the limit: give narrower bounds or fewer gaps"
        )
    longest = sum(map(len, pieces)) + sum(gap.most for gap in gaps)
    # The draw of its lengths, its tokens, the states it is scored over, and its text.
    per_sample = 8 * (3 * count + 20 * longest + 6 * hmm.tables.support.states_per_word)
    require_drawn(num, per_sample, f"{num:,} fillings of a text of {longest:,} tokens", hmm.tables.device)
    lengths = list(itertools.product(*(range(gap.least, gap.most + 1) for gap in gaps)))
    alternatives = _Alternatives(hmm, belief, pieces, lengths, exclude)
    infiller = alternatives.infiller
    total = infiller.log_prob.logsumexp(0)
    if bool(total.isinf()):
        raise ImpossibleTextError(
            "infill: the text has probability zero whatever is filled in; give other words, or wider bounds"
        )
    posterior = (infiller.log_prob - total).exp().tolist()
    likeliest = int(infiller.log_prob.argmax())

    def filling(number: int, tokens: Int[Tensor, " T"], log_prob: float) -> Filling:
        pause()
        row = tokens[tokens >= 0].tolist()
        spans = alternatives.spans(number)
        inside = [tokenizer.decode(row[first:end]).strip() for first, end in spans]
        return Filling(tokenizer.decode(row), inside, min(0.0, log_prob))

    # The best filling of every alternative, then the samples.
    rows = draw(infiller.log_prob.expand(num, -1), generator)
    texts = torch.cat([infiller.best(), infiller.sample(rows, generator)])
    numbers = [*range(count), *rows.tolist()]
    log_probs = (alternatives.log_prob(texts, numbers) - total).tolist()
    fillings = [filling(*one) for one in zip(numbers, texts, log_probs, strict=True)]
    _, _, probs = infiller.probs(rows.new_tensor([likeliest]))
    likely = probs.topk(min(top, probs.shape[1]), dim=1)
    positions = [
        [(tokenizer.token(token), prob) for token, prob in zip(tokens, token_probs, strict=True) if prob > 0]
        for tokens, token_probs in zip(likely.indices.tolist(), likely.values.tolist(), strict=True)
    ]
    ends = [0, *itertools.accumulate(lengths[likeliest])]
    return Infilling(
        float(total) - math.log(count),
        [
            FilledGap(_marginal(lengths, posterior, gap), positions[ends[gap] : ends[gap + 1]])
            for gap in range(len(gaps))
        ],
        max(fillings[:count], key=lambda one: one.log_prob),
        fillings[count:],
    )


def _marginal(lengths: list[tuple[int, ...]], posterior: list[float], gap: int) -> list[tuple[int, float]]:
    """p(number of tokens in one gap | the rest), likeliest first."""
    probs: dict[int, float] = {}
    for numbers, prob in zip(lengths, posterior, strict=True):
        probs[numbers[gap]] = probs.get(numbers[gap], 0.0) + prob
    return sorted(probs.items(), key=lambda item: -item[1])


class _Alternatives:
    """The text with each combination of lengths, one row each."""

    def __init__(
        self,
        hmm: HMM,
        belief: Belief | None,
        pieces: list[list[int]],
        lengths: list[tuple[int, ...]],
        exclude: Sequence[int],
    ) -> None:
        self._pieces, self._lengths, self._tables = pieces, lengths, hmm.tables
        known, count = sum(map(len, pieces)), len(lengths)
        sizes = torch.tensor([known + sum(numbers) for numbers in lengths])
        tokens = torch.zeros(count, int(sizes.max()), dtype=torch.int64)
        for row, numbers in enumerate(lengths):
            ids = [token for piece, n in zip(pieces, (*numbers, 0), strict=True) for token in [*piece, *[-1] * n]]
            tokens[row, : len(ids)] = torch.tensor(ids)
        missing, tokens = tokens < 0, tokens.clamp(min=0)
        device = hmm.tables.device
        self._batch = Batch(tokens.to(device), sizes.to(device))
        self._belief = belief
        if belief is not None:
            self._belief = Belief(belief.token.expand(count), belief.log_probs.expand(count, -1))
        allowed = torch.ones(hmm.num_words, dtype=torch.bool, device=device)
        allowed[list(exclude)] = False
        self.infiller = Infiller(hmm.tables, self._batch, missing.to(device), self._belief, allowed)

    def spans(self, number: int) -> list[tuple[int, int]]:
        """Where each gap begins and ends."""
        spans, end = [], 0
        for piece, length in zip(self._pieces[:-1], self._lengths[number], strict=True):
            first = end + len(piece)
            end = first + length
            spans.append((first, end))
        return spans

    def log_prob(self, filled: Int[Tensor, "N T"], numbers: list[int]) -> Float[Tensor, " N"]:
        """log p(filled text), each of an alternative."""
        belief = self._belief
        if belief is not None:
            belief = belief.of(numbers)
        return filled_log_prob(self._tables, filled, self._batch.lengths[numbers], belief)
