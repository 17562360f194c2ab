"""Texts drawn from an HMM under a constraint."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from vlhmm.arguments import check_count, check_number
from vlhmm.control.tokens import ConstrainedTokens
from vlhmm.inference.past import Past
from vlhmm.inference.sampling import Generators, exponential_noise

BATCH_BYTES = 1 << 28
"""So many texts are drawn at once that the probabilities of their next tokens take about this."""
CACHE_BYTES = 1 << 30
"""What the look-aheads of earlier constraints may take together."""


MIN_TEMPERATURE = 1e-30
"""Temperatures below it choose as it does: the likeliest token, and of tokens that are exactly as likely each as often as the others.
The reciprocal of a smaller one is beyond float32."""


@dataclass(frozen=True)
class Choice:
    """How a token is chosen from the probabilities of all: each as likely as it is, unless said otherwise."""

    temperature: float = 1.0
    """Below 1: likelier tokens; above 1: more surprising ones."""
    top_k: int | None = None
    """Only the so many likeliest tokens."""
    top_p: float | None = None
    """Only the likeliest tokens that have this probability together."""

    def __post_init__(self) -> None:
        check_number("temperature", self.temperature)
        if not 0 < self.temperature < math.inf:
            raise ValueError(
                f"temperature is {self.temperature}, but must be finite and above 0: use top_k=1 for the likeliest token"
            )
        if self.top_k is not None:
            check_count("top_k", self.top_k)
        if self.top_p is not None:
            check_number("top_p", self.top_p)
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise ValueError(f"top_p is {self.top_p}, but must be above 0 and at most 1")

    def log_weights(self, log_probs: Float[Tensor, "N X"]) -> Float[Tensor, "N X"]:
        """What to draw from; tokens of probability zero keep it."""
        log_weights = log_probs
        if self.temperature != 1:
            # Relative to the best token of each row, division by the temperature overflows only to -inf, for very unlikely tokens.
            best = log_probs.amax(1, keepdim=True)
            log_weights = (log_probs - best.masked_fill(best.isinf(), 0.0)) / max(self.temperature, MIN_TEMPERATURE)
        if self.top_k is not None and self.top_k < log_weights.shape[1]:
            likeliest = log_weights.topk(self.top_k, dim=1)
            log_weights = torch.full_like(log_weights, -torch.inf).scatter_(1, likeliest.indices, likeliest.values)
        if self.top_p is not None:
            ordered = log_weights.sort(dim=1, descending=True)
            probs = ordered.values.softmax(1)
            # A token stays while those before it do not yet reach top_p: the first always does.
            beyond = probs.cumsum(1) - probs >= self.top_p
            beyond[:, 0] = False
            log_weights = log_weights.masked_fill(beyond.gather(1, ordered.indices.argsort(1)), -torch.inf)
        return log_weights


@torch.no_grad()
def sample_constrained(
    following: ConstrainedTokens,
    past: Past,
    num: int,
    steps: int,
    *,
    eos_id: int | None = None,
    choice: Choice | None = None,
    generators: Generators = (None,),
) -> list[list[int]]:
    """`num` continuations of each text, of `steps` tokens or up to `eos_id`, x ~ p(x | constraint): exact where `choice` is
    left as it is. Those of one text are side by side.

    Whatever the choice, every continuation is accepted. The constraint must be possible after each text.
    """
    tables = following.tables
    rows_at_once = max(
        1, BATCH_BYTES // (8 * (tables.num_words + tables.num_states) * tables.log_emission.element_size())
    )
    texts: list[list[int]] = []
    # Whole texts together, or parts of one: with a generator each, a text becomes what it would be alone.
    texts_at_once = max(1, rows_at_once // num)
    for first in range(0, past.num, texts_at_once):
        some = past.of(slice(first, first + texts_at_once))
        first_ahead = some.ask(lambda rows, belief: following.log_ahead(belief).expand(len(rows), -1))
        owner = [first + row // num for row in range(some.num * num)]
        for start in range(0, len(owner), rows_at_once):
            owners = owner[start : start + rows_at_once]
            log_ahead = first_ahead[[text - first for text in owners]]
            texts += _sample_rows(following, log_ahead, steps, eos_id, choice or Choice(), owners, generators)
    return texts


def _sample_rows(
    following: ConstrainedTokens,
    log_ahead: Float[Tensor, "N Z"],
    steps: int,
    eos_id: int | None,
    choice: Choice,
    owners: list[int],
    generators: Generators,
) -> list[list[int]]:
    rows = list(range(log_ahead.shape[0]))
    texts: list[list[int]] = [[] for _ in rows]
    states = [following.ahead.automaton.start] * len(rows)
    for left in range(steps, 0, -1):
        log_weights = choice.log_weights(following(log_ahead, states, left).log_joint)
        noise = exponential_noise(torch.empty_like(log_weights), [owners[row] for row in rows], generators)
        drawn = (log_weights - noise.log()).argmax(-1)
        tokens: list[int] = drawn.tolist()
        for row, token in zip(rows, tokens, strict=True):
            texts[row].append(token)
        # Finished texts are removed from the batch.
        going = [place for place, token in enumerate(tokens) if token != eos_id]
        if not going or left == 1:
            break
        rows, tokens = [rows[place] for place in going], [tokens[place] for place in going]
        states = following.next_states([states[place] for place in going], tokens)
        log_ahead = following.log_ahead_after(log_ahead[going], drawn[going])
    return texts


class LookaheadCache:
    """The look-aheads of the constraints used last, as many as fit into so many bytes."""

    def __init__(self, limit_bytes: int = CACHE_BYTES) -> None:
        self.limit_bytes = limit_bytes
        self._kept: OrderedDict[Hashable, ConstrainedTokens] = OrderedDict()

    @property
    def num_bytes(self) -> int:
        return sum(kept.num_bytes for kept in self._kept.values())

    def get(self, key: Hashable, steps: int, make: Callable[[], ConstrainedTokens]) -> ConstrainedTokens:
        """What is kept under `key` if it reaches `steps` tokens ahead, else a new one."""
        found = self._kept.get(key)
        if found is None or found.ahead.steps < steps:
            self._kept.pop(key, None)
            found = self._kept[key] = make()
        self._kept.move_to_end(key)
        while self.num_bytes > self.limit_bytes and self._kept:
            self._kept.popitem(last=False)
        return found
