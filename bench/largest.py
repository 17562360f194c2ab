"""The most states that fit: doubled until memory, or the time for looking, is out."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from bench.measure import seconds_of
from bench.memory import peak_of
from bench.ours import QUERY_PRECISION, STEP_PRECISION, STEPS_CHECKED, step_model
from bench.workloads import StepSizes, TransitionKind, products_read
from vlhmm.hmm import HMM
from vlhmm.records import convert
from vlhmm.support import dense_support
from vlhmm.tables import Tables
from vlhmm.training.settings import TrainSettings
from vlhmm.training.step import Step
from vlhmm.transitions import TableTransition


@dataclass(frozen=True)
class Largest:
    work: str
    precision: str
    """What matrix products read."""
    states: int
    """The most that ran; 0 if none did."""
    bytes: int
    """At the highest, with everything."""
    milliseconds: float
    ended: str
    """What kept it from more."""


def largest(device: torch.device, seconds: float, quick: bool) -> list[Largest]:
    first = 6 if quick else 14
    name, reads = "log-likelihood, dense, 200 x 64 tokens", products_read(QUERY_PRECISION, device)
    found = [_doubled(name, reads, _dense, first, device, seconds)]
    transitions: tuple[TransitionKind, ...] = ("block-factored", "softmax")
    for transition in transitions:

        def trained(states: int, device: torch.device, transition: TransitionKind = transition) -> Callable[[], None]:
            return _training(transition, states, device)

        name = f"training step, {transition}, a quarter of the states kept, 32 x 64 tokens"
        reads = products_read(STEP_PRECISION, device)
        found.append(_doubled(name, reads, trained, 10 if quick else 18, device, seconds))
    return found


def _doubled(
    name: str,
    reads: str,
    make: Callable[[int, torch.device], Callable[[], None]],
    first: int,
    device: torch.device,
    seconds: float,
) -> Largest:
    best = Largest(name, reads, 0, 0, 0.0, "")
    end = time.perf_counter() + seconds
    power = first
    while time.perf_counter() < end:
        taken: list[float] = []

        def work(states: int = 1 << power, taken: list[float] = taken) -> None:
            call = make(states, device)
            taken.append(seconds_of(call, device))

        try:
            held = peak_of(work, device)
        # Sizes that cannot fit are refused before allocation, where they are known.
        except (torch.OutOfMemoryError, ValueError) as reason:
            return Largest(
                name, reads, best.states, best.bytes, best.milliseconds, f"2^{power} states: {str(reason)[:160]}"
            )
        best = Largest(name, reads, 1 << power, held, 1e3 * taken[0], "")
        power += 1
    return Largest(name, reads, best.states, best.bytes, best.milliseconds, f"{seconds:.0f} s were over")


def _dense(states: int, device: torch.device) -> Callable[[], None]:
    """Tables made in place: copies would halve what fits."""
    log_start = torch.zeros(states, device=device).log_softmax(0)
    log_transition = _log_rows(states, states, device)
    # Uniform over words: what each state emits must sum to one, and the answer is not used.
    log_emission = torch.zeros(32_000, states, device=device).sub_(torch.tensor(32_000.0).log())
    support = convert(dense_support(32_000, states), device=device)
    hmm = HMM(Tables(support, log_start, TableTransition(log_transition), log_emission, precision=QUERY_PRECISION))
    tokens = torch.randint(32_000, (200, 64), device=device)

    def likelihood() -> None:
        with torch.no_grad():
            if not bool(hmm.log_prob(tokens).isfinite().all()):
                raise ValueError(f"a log-likelihood of {states} states is not finite")

    likelihood()
    return likelihood


def _log_rows(num_rows: int, width: int, device: torch.device) -> torch.Tensor:
    rows = torch.empty(num_rows, width, device=device)
    for part in rows.split(max(1, (1 << 28) // width)):
        part.copy_(part.normal_().log_softmax(1))
    return rows


def _training(transition: TransitionKind, states: int, device: torch.device) -> Callable[[], None]:
    """Blocks of up to 1,024 states, of which a step keeps a quarter."""
    per_block = min(1024, states // 4)
    num_blocks = states // per_block
    sizes = StepSizes(transition, num_blocks, per_block, 0.75, 256, max(10_000, 2 * num_blocks), 32, 64)
    # Drawn on the device: a billion numbers take a CPU many seconds.
    with torch.device(device):
        model = step_model(sizes, device, torch.Generator(device).manual_seed(0))
    settings = TrainSettings(
        learning_rate=1e-3, batch_size=sizes.batch, window=sizes.window, state_dropout=sizes.state_dropout
    )
    step = Step(model, settings)
    tokens = torch.randint(sizes.num_words, (sizes.batch, sizes.window), device=device)

    def train() -> None:
        step(tokens, settings.learning_rate, fresh=step.count == 0)

    for _ in range(STEPS_CHECKED):
        train()
    if not bool(step.loss.isfinite()):
        raise ValueError(f"the loss of {states} states is {float(step.loss)}")
    return train
