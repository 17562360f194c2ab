"""What a guide adds to a decoding step, and how long its look-ahead takes."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from experiments.control.methods import written_by
from experiments.control.sets import prompt_for
from vlhmm.control import Automaton, contains_all
from vlhmm.control.guide import Guide
from vlhmm.control.product import lookahead
from vlhmm.data import Tokenizer
from vlhmm.distillation.teachers import Teacher
from vlhmm.hmm import HMM
from vlhmm.tables import Tables

ROWS, MAX_TOKENS, REPEAT = 8, 32, 5
KEYWORDS = ("river", "open", "garden")
AHEAD_STEPS, AHEAD_STATES = 32, 100


@dataclass(frozen=True)
class Overhead:
    states: int
    rows: int
    automaton_states: int
    step_ms: float
    """A decoding step of the language model alone, median."""
    guided_step_ms: float
    part: float
    """What the guide adds, as a part of the model's own step."""
    guide_seconds: float
    """To compile the constraint and look ahead, median."""


@dataclass(frozen=True)
class LookaheadTime:
    states: int
    automaton_states: int
    steps: int
    seconds: float
    """Median; the transition matrix is made each time."""


class Clock:
    """A logits processor that notes when it is called, and hands on to another one."""

    def __init__(self, device: torch.device, inner: Any = None) -> None:
        self.device, self.inner, self.times = device, inner, list[float]()

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        synchronize(self.device)
        self.times.append(time.perf_counter())
        return scores if self.inner is None else self.inner(input_ids, scores)


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_overhead(teacher: Teacher, hmm: HMM, tokenizer: Tokenizer) -> Overhead:
    """Eight rows and three keywords, in texts that cannot end: every step does all of its work."""
    prompts = teacher.prompt_ids([prompt_for(KEYWORDS)] * ROWS)
    making, plain, guided = list[float](), list[float](), list[float]()
    for run in range(REPEAT + 1):
        begun = time.perf_counter()
        automaton = contains_all(*KEYWORDS, ignore_case=True).compile(tokenizer)
        # Without a tokenizer the guide knows no EOS, and the automaton forbids it.
        guide = Guide(hmm, automaton, max_new_tokens=MAX_TOKENS, read_prompt=False)
        synchronize(teacher.device)
        seconds = time.perf_counter() - begun
        for times, inner in ((plain, None), (guided, guide.step)):
            clock = Clock(teacher.device, inner)
            written_by(teacher, prompts, MAX_TOKENS, [clock], run, ends=False)
            # The first step reads the prompt, and the first run warms up.
            if run:
                times += [after - before for before, after in zip(clock.times[1:-1], clock.times[2:], strict=True)]
        if run:
            making.append(seconds)
    step, guided_step = statistics.median(plain), statistics.median(guided)
    return Overhead(
        hmm.num_states,
        ROWS,
        automaton.num_states,
        1e3 * step,
        1e3 * guided_step,
        guided_step / step - 1,
        statistics.median(making),
    )


def measure_lookahead(tables: Tables) -> LookaheadTime:
    """For an automaton of 100 states in which every state tells many tokens apart."""
    generator = torch.Generator().manual_seed(0)
    classes = 60
    automaton = Automaton(
        # As in a constraint of keywords, nearly all tokens are in one class.
        torch.randint(classes, (tables.num_words,), generator=generator)
        * (torch.rand(tables.num_words, generator=generator) < 0.02),
        torch.randint(AHEAD_STATES, (AHEAD_STATES, classes), generator=generator),
        0,
        torch.arange(AHEAD_STATES) == AHEAD_STATES - 1,
    )
    device = tables.device
    seconds = median_seconds(lambda: lookahead(tables, automaton, AHEAD_STEPS), device)
    return LookaheadTime(tables.num_states, AHEAD_STATES, AHEAD_STEPS, seconds)


def median_seconds(work: Callable[[], Any], device: torch.device) -> float:
    times = []
    for _ in range(REPEAT + 1):
        synchronize(device)
        begun = time.perf_counter()
        work()
        synchronize(device)
        times.append(time.perf_counter() - begun)
    return statistics.median(times[1:])
