"""The most memory that a piece of work holds at once, on a GPU, beside what it may."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

from bench.ours import QUERY_PRECISION, STEP_PRECISION, dense_hmm, step_inputs
from bench.workloads import DenseSizes, StepSizes, TransitionKind, dense_inputs, products_read
from vlhmm.training.step import Step

LONG_TEXT = 100_000
"""Tokens of the one sequence whose training must not take memory for all of them."""


@dataclass(frozen=True)
class Peak:
    work: str
    bytes: int | None
    """At the highest, of what the work took itself; the tables or the model it began with not counted unless said."""
    precision: str
    """What matrix products read."""
    allowed: int | None = None
    message: str = ""
    """Why there is no figure, or what it was found with."""


def peaks(device: torch.device, quick: bool) -> Iterator[Peak]:
    transitions: tuple[TransitionKind, ...] = ("softmax", "block-factored")
    if device.type == "cpu":
        # Steps with 2^17 states, or a softmax over all states for every window, take a CPU hours.
        yield from _long_texts("block-factored", device, quick)
        return
    yield _dense_gradient(device, quick)
    for transition in transitions:
        for dropout in (0.5, 0.0):
            sizes = StepSizes(transition, 128, 8 if quick else 1024, dropout, 256, 10_000, 16, 32)
            name = f"training step, {transition}, {sizes.states:,} states, {dropout:.0%} left out, with the model"
            yield replace(_step(sizes, device, name, steps=6), allowed=20 * 10**9)
    for transition in transitions:
        yield from _long_texts(transition, device, quick)


def peak_of(call: Callable[[], object], device: torch.device) -> int:
    """Peak memory of `call` above the memory in use before it; on a CPU above the earlier peak (resident set size)."""
    # A step and its graphs are a reference cycle, which only the garbage collector frees.
    gc.collect()
    if device.type == "cpu":
        before = _peak_resident()
        call()
        return _peak_resident() - before
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return torch.cuda.max_memory_allocated(device) - before


def _peak_resident() -> int:
    import resource

    # `ru_maxrss` is in kilobytes, on macOS in bytes.
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def _long_texts(transition: TransitionKind, device: torch.device, quick: bool) -> Iterator[Peak]:
    """A quarter of a long text, then all of it: only beliefs and scores may grow."""
    lengths = [tokens // (1000 if quick else 1) for tokens in (LONG_TEXT // 4, LONG_TEXT)]
    blocks, per_block, dim = (5, 8, 16) if quick else (128, 256, 256)
    texts = [StepSizes(transition, blocks, per_block, 0.0, dim, 10_000, 1, length) for length in lengths]
    name = f"training on one text, {transition}, {texts[0].states:,} states"
    shorter, longer = (_step(one, device, f"{name}, {one.window:,} tokens", steps=2) for one in texts)
    yield shorter
    if shorter.bytes is None:
        yield longer
    elif device.type == "cpu":
        yield replace(longer, work=f"{longer.work}, beyond the shorter one", allowed=shorter.bytes // 4)
    else:
        yield replace(longer, allowed=shorter.bytes * 5 // 4)


def _dense_gradient(device: torch.device, quick: bool) -> Peak:
    sizes = DenseSizes(64 if quick else 4096, 32_000, 200, 64)
    inputs = dense_inputs(sizes, device)
    hmm, tokens = dense_hmm(inputs, QUERY_PRECISION), inputs.tokens
    del inputs

    def count() -> None:
        # The third call may capture a CUDA graph, whose memory pool counts too.
        for _ in range(3):
            hmm.expected_counts(tokens)

    taken = peak_of(count, device)
    name = f"gradient, dense, {sizes.states:,} states, 200 x 64 tokens"
    return Peak(name, taken, products_read(QUERY_PRECISION, device), 3 << 29)


def _step(sizes: StepSizes, device: torch.device, name: str, steps: int) -> Peak:
    """Model, gradients and optimizer counted in: all that training holds."""
    reads = products_read(STEP_PRECISION, device)
    losses: list[float] = []

    def train() -> None:
        inputs = step_inputs(sizes, device, num_windows=1)
        step = Step(inputs.model, inputs.settings)
        for number in range(steps):
            step(inputs.windows[0], inputs.settings.learning_rate, fresh=number == 0)
        losses.append(float(step.loss))

    try:
        taken = peak_of(train, device)
    except torch.OutOfMemoryError:
        return Peak(name, None, reads, message="out of memory")
    if not torch.tensor(losses).isfinite().all():
        return Peak(name, None, reads, message=f"the loss is {losses[0]}")
    return Peak(name, taken, reads, message=f"loss {losses[0]:.3f}")
