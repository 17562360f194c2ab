"""Better blocks by exchange: annealing first, so that the start does not decide, then only upwards."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from vlhmm.cluster.exchange import MAX_WORDS, Exchange
from vlhmm.progress import Progress

SWEEPS = 32
"""Sweeps of annealing."""
CLIMBS = 8
"""Sweeps that only go up, at most."""
COLDEST = 0.008
"""The last temperature, in nats a bigram."""
SHARE = 4e-3
"""Words of at most this share of the text are drawn together, against the same counts."""
RARE_EVERY = 4
"""The rarest words are annealed in every fourth sweep only: they are many, and weigh little."""
ANNEALING = 0.9
"""The share of a limited time that is for annealing."""
MIN_RISE = 1e-5
"""In nats; a sweep that raises the information by less is the last."""
MIN_GAIN = 1e-3
"""In nats over the whole text; gains are partly in single precision, smaller ones would be noise."""


@dataclass(frozen=True)
class Clock:
    """When the search began and how long it may take."""

    started: float
    max_seconds: float | None

    @classmethod
    def start(cls, max_seconds: float | None) -> "Clock":
        if max_seconds is not None and not max_seconds > 0:
            raise ValueError(f"max_seconds is {max_seconds}; it must be more than 0, or None for no limit")
        return cls(time.monotonic(), max_seconds)

    def spent(self) -> float:
        """The share of the time that is gone; 0 without a limit."""
        return 0.0 if self.max_seconds is None else (time.monotonic() - self.started) / self.max_seconds


def refining(state: Exchange, generator: np.random.Generator, clock: Clock) -> Iterator[Progress]:
    """Anneals, then climbs to where single moves hardly help. Never ends below where it began."""
    start, start_information = state.block_of_word.copy(), state.information
    total = SWEEPS + CLIMBS

    def report(done: int, stage: str) -> Progress:
        return Progress("clustering words", done, total, note=f"{stage}, {state.information:.4f} nats")

    yield report(0, "brown")
    batches = state.batches(SHARE)
    common = [batch for batch in batches if batch[1] - batch[0] < MAX_WORDS] or batches
    # The more blocks, the less a word minds in which of them it is: found by trial at 64, 128 and 256 blocks.
    hottest = min(0.15, 7.5 / state.open_blocks)
    for sweep in range(SWEEPS):
        # Short of time, cool faster.
        done = max(sweep / SWEEPS, clock.spent() / ANNEALING)
        if done >= 1 or state.open_blocks == 1:
            break
        temperature = hottest * min(1.0, COLDEST / hottest) ** done
        anneal(state, temperature, batches if sweep % RARE_EVERY == 0 else common, generator, clock)
        yield report(sweep + 1, "annealing")
    if state.information < start_information and clock.spent() >= ANNEALING:
        state.set_blocks(start)
    small_batches = state.batches(SHARE / 4)
    for sweep in range(CLIMBS):
        before = state.information
        climb(state, small_batches, clock)
        yield report(SWEEPS + sweep + 1, "exchange")
        if state.information < before + MIN_RISE or clock.spent() >= 1:
            break
    if state.information < start_information:
        state.set_blocks(start)
    yield report(total, "done")


def anneal(
    state: Exchange,
    temperature: float,
    batches: list[tuple[int, int]],
    generator: np.random.Generator,
    clock: Clock,
) -> None:
    """Draws a block for each word, with probability proportional to exp(gain / (temperature count)).

    A word's gain grows with its count. Were the temperature the same for all, the frequent words, which decide what the
    blocks are about, would be frozen while the rare ones still boil.
    """
    for start, stop in batches:
        if clock.spent() >= ANNEALING:
            break
        gain = state.gains(start, stop)
        heat = temperature * (state.as_left + state.as_right)[start:stop, None]
        # The largest of these is a draw from the softmax (Gumbel); the small constant keeps the logarithm finite.
        noise = -np.log(generator.standard_exponential(gain.shape, np.float32) + 1e-30)
        target = np.argmax(gain / heat + noise, axis=1)
        moved = np.flatnonzero(target != state.block_of_word[start:stop])
        moved = moved[state.can_leave(start + moved)]
        if len(moved):
            state.move(start + moved, target[moved])


def climb(state: Exchange, batches: list[tuple[int, int]], clock: Clock) -> None:
    """Moves each word to its best block; the information rises with every batch or stays."""
    objective = state.objective()
    for start, stop in batches:
        if clock.spent() >= 1:
            break
        gain = state.gains(start, stop)
        target = gain.argmax(1)
        gained = gain.max(1)
        moved = np.flatnonzero(gained > MIN_GAIN)
        moved = moved[state.can_leave(start + moved)]
        if not len(moved):
            continue
        old = state.block_of_word[start + moved]
        state.move(start + moved, target[moved])
        if state.objective() <= objective:
            # Good moves can spoil each other. The best of them alone cannot go down.
            state.move(start + moved, old)
            moved = moved[[gained[moved].argmax()]]
            state.move(start + moved, target[moved])
        objective = state.objective()
