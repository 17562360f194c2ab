"""Looking inside a trained HMM: which states a text uses, how sure they are, what they mean, how far back they remember."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from vlhmm.data import Tokens
from vlhmm.distributed import ALONE, World, gather_when_done, shard
from vlhmm.inference.predict import next_state_probs, next_token_probs
from vlhmm.inspection.reading import Reading, read_text
from vlhmm.inspection.recall import Recall, Stationary, recall, stationary
from vlhmm.inspection.summary import (
    FREQUENCIES,
    LINE_POSITIONS,
    BlockUsage,
    Range,
    Usage,
    by_range,
    line_positions,
    usage,
    usage_by_block,
)
from vlhmm.lm import LanguageModel
from vlhmm.progress import Progress, result_of
from vlhmm.support import Support
from vlhmm.tables import Belief, Tables
from vlhmm.text.answers import NamedState

__all__ = ["Inspection", "Memory", "Progress", "StateUse", "inspect_text", "inspecting"]

STATES_OF_A_BLOCK = 2
"""Of the most used states: the blocks of frequent words would fill the list."""
RECALL_STREAMS = 32
"""On a GPU; they change no number."""
RECALL_TOKENS = 1 << 13
"""Of the text, that one rank reads at a time."""


@dataclass(frozen=True)
class StateUse:
    """A state that a text uses much, what it emits and where it leads."""

    state: NamedState
    num_tokens: float
    """Expected number of tokens that it emits."""
    next_words: list[tuple[str, float]]
    """The likeliest next words with p(word | state)."""
    next_states: list[tuple[NamedState, float]]
    """The likeliest next states with p(next | state)."""


@dataclass(frozen=True)
class Memory:
    """Perplexity of a token given only the tokens just before it."""

    perplexity: list[float]
    """By the number of tokens that are known: 0, 1, ..., longest. Before these, states have their stationary distribution."""
    unlimited: float
    """The same tokens, given the whole text before them."""
    num_tokens: int
    """All but the first `longest`."""
    stationary: Stationary

    @property
    def longest(self) -> int:
        return len(self.perplexity) - 1


@dataclass(frozen=True)
class Inspection:
    reading: Reading
    perplexity: float
    usage: Usage
    blocks: list[BlockUsage]
    """Blocks with most tokens first; none where states are in no blocks."""
    states: list[StateUse]
    """The most used ones, at most STATES_OF_A_BLOCK of a block."""
    by_line_position: list[Range]
    """None where the tokenizer has no EOS."""
    by_frequency: list[Range]
    """By how often a word is in the training text; none where that is unknown."""
    memory: Memory | None


def inspect_text(
    lm: LanguageModel,
    tokens: Tokens,
    *,
    train_counts: NDArray[Any] | None = None,
    streams: int = 1,
    memory: int = 64,
    top: int = 12,
) -> Inspection:
    """What `lm` does on a text; `train_counts` says how often each word is in the text it was trained on.

    `memory` is the longest context whose perplexity is asked for, 0 for none. One stream is exact.
    """
    return result_of(inspecting(lm, tokens, train_counts=train_counts, streams=streams, memory=memory, top=top))


def inspecting(
    lm: LanguageModel,
    tokens: Tokens,
    *,
    train_counts: NDArray[Any] | None = None,
    streams: int = 1,
    memory: int = 64,
    top: int = 12,
    here: World = ALONE,
) -> Generator[Progress, None, Inspection]:
    """`inspect_text`, telling how far it is. All ranks read the text, and share the question how far back it is remembered."""
    tables = lm.hmm.tables
    _check(tables, tokens, streams, memory, top)
    reading = yield from _told("reading", 2 * len(tokens), read_text(tables, tokens, streams))
    remembered = None
    if memory:
        settled = yield from _settled(tables, reading)
        recalled = yield from _recalled(tables, tokens, settled.probs, memory, here)
        remembered = _memory(recalled, reading, settled)
    yield Progress("naming states", 0, None)
    ids, eos = tokens.ids[:], lm.tokenizer.eos_id
    places = [] if eos is None else by_range(line_positions(ids, eos), reading.token_log_probs, LINE_POSITIONS)
    frequencies = [] if train_counts is None else by_range(train_counts[ids], reading.token_log_probs, FREQUENCIES)
    return Inspection(
        reading=reading,
        perplexity=_perplexity(float(reading.token_log_probs.double().sum()), len(tokens)),
        usage=usage(reading.occupancy),
        blocks=usage_by_block(reading.occupancy, tables.support),
        states=_most_used(lm, reading, top),
        by_line_position=places,
        by_frequency=frequencies,
        memory=remembered,
    )


def _check(tables: Tables, tokens: Tokens, streams: int, memory: int, top: int) -> None:
    for name, value, least in (("streams", streams, 1), ("memory", memory, 0), ("top", top, 0)):
        if value < least:
            raise ValueError(f"{name} is {value}, but must be at least {least}")
    if len(tokens) <= memory or not len(tokens):
        raise ValueError(
            f"the text has {len(tokens)} tokens, but contexts of {memory} need at least {memory + 1}: "
            "ask for shorter ones with memory, or give more text"
        )
    largest = int(np.max(tokens.ids))
    if largest >= tables.num_words:
        raise ValueError(
            f"the text has token {largest}, but the model's vocabulary ends at {tables.num_words - 1}: "
            "read the text with the model's own tokenizer"
        )


def _told(what: str, total: int, steps: Generator[int, None, Any], done: int = 0) -> Generator[Progress, None, Any]:
    while True:
        try:
            yield Progress(what, done + next(steps), total)
        except StopIteration as stop:
            return stop.value


def _settled(tables: Tables, reading: Reading) -> Generator[Progress, None, Stationary]:
    """From the text's own occupancy, which is near it, so that few steps are needed."""
    steps = stationary(tables, reading.occupancy)
    while True:
        try:
            iteration, moved = next(steps)
            yield Progress(f"stationary states, step {iteration}", moved, tables.num_states)
        except StopIteration as stop:
            settled: Stationary = stop.value
            return settled


def _recalled(
    tables: Tables, tokens: Tokens, begin: Float[Tensor, " Z"], longest: int, here: World
) -> Generator[Progress, None, Recall]:
    """`recall` of all of the text, part by part: ranks share the parts, which are the same for any number of them."""
    firsts = shard(range(longest, len(tokens), RECALL_TOKENS), here)
    streams = RECALL_STREAMS if tables.device.type == "cuda" else 1
    own = list[Tensor]()
    for first in firsts:
        ids = tokens.ids[first - longest : first + RECALL_TOKENS]
        steps = recall(tables, Tokens(ids, np.array([0, len(ids)], np.int64)), begin, longest, streams)
        own.append((yield from _told("forgetting", len(tokens), steps, done=first - longest)).log_probs.cpu())
    total = torch.zeros(longest + 1, dtype=torch.float64)
    for part in gather_when_done(own, here, "forgetting"):
        for log_probs in part:
            total += log_probs
    return Recall(total, len(tokens) - longest)


def _memory(recalled: Recall, reading: Reading, settled: Stationary) -> Memory:
    whole = float(reading.token_log_probs[recalled.longest :].double().sum())
    return Memory(
        perplexity=[_perplexity(log_prob, recalled.num_tokens) for log_prob in recalled.log_probs.tolist()],
        unlimited=_perplexity(whole, recalled.num_tokens),
        num_tokens=recalled.num_tokens,
        stationary=settled,
    )


def _perplexity(log_prob: float, num_tokens: int) -> float:
    per_token = -log_prob / num_tokens
    return math.exp(per_token) if per_token < 700 else math.inf


def _most_used(lm: LanguageModel, reading: Reading, top: int, following: int = 5) -> list[StateUse]:
    tables = lm.hmm.tables
    chosen = _chosen(reading.occupancy, tables.support, top)
    if not chosen:
        return []
    belief = _certain(tables, chosen)
    words = next_token_probs(tables, belief).topk(min(following, tables.num_words))
    after = next_state_probs(tables, belief).topk(min(following, tables.num_states))
    return [
        StateUse(
            lm.name_state(state),
            num_tokens,
            [(lm.tokenizer.token(word), prob) for word, prob in zip(*word_row, strict=True)],
            [(lm.name_state(other), prob) for other, prob in zip(*state_row, strict=True)],
        )
        for state, num_tokens, word_row, state_row in zip(
            chosen,
            reading.occupancy[chosen].tolist(),
            zip(words.indices.tolist(), words.values.tolist(), strict=True),
            zip(after.indices.tolist(), after.values.tolist(), strict=True),
            strict=True,
        )
    ]


def _chosen(occupancy: Float[Tensor, " Z"], support: Support, top: int) -> list[int]:
    order: list[int] = occupancy.argsort(descending=True).tolist()
    if not support.partition or support.num_groups == 1:
        return order[:top]
    chosen: list[int] = []
    of_block: Counter[int] = Counter()
    for state in order:
        block = state // support.states_per_word
        if len(chosen) < top and of_block[block] < STATES_OF_A_BLOCK:
            of_block[block] += 1
            chosen.append(state)
    return chosen


def _certain(tables: Tables, states: Sequence[int]) -> Belief:
    """Each of `states` for certain, after a token of its that resets nothing, if it has one."""
    support = tables.support
    tokens, slots = [], []
    for state in states:
        group, slot = (support.states_of_group == state).nonzero()[0].tolist()
        words = (support.group_of_word == group).nonzero()[:, 0].tolist()
        tokens.append(next((word for word in words if word != tables.reset_token), words[0]))
        slots.append(slot)
    token: Int[Tensor, " B"] = torch.tensor(tokens, device=tables.device)
    log_probs = tables.log_emission.new_full((len(slots), support.states_per_word), -torch.inf)
    return Belief(token, log_probs.scatter(1, torch.tensor(slots, device=tables.device)[:, None], 0.0))
