"""The one training loop, `fit`: a generator of events. What is trained, and how, is a `Task`.

Several ranks run it in parallel. Decisions that depend on time, signals or files are made collectively, in one collective
at the end of each step.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from vlhmm.distributed import ALONE, FinalError, World, any_rank
from vlhmm.interrupts import StopRequest, stop_signals
from vlhmm.progress import Progress
from vlhmm.training.run_folder import RunFolder

VALID_STREAMS = 32
"""Checks during training score the validation text in so many warm-started streams, unless windows are independent."""
SAVE_SECONDS = 60.0
"""The state is saved at checks, and at least this often between two."""
LONG_SAVE, SAVING_SHARE = 3.0, 0.05
"""Saves that take more seconds than that take at most this part of the time, however many checks there are: those of gigabytes."""
LOG_STEPS = 20
"""Steps that one line of the log sums up."""

Reason = Literal["finished", "time", "interrupted"]
Closing = TypeVar("Closing")
OwnEvent = TypeVar("OwnEvent")
OwnEvent_co = TypeVar("OwnEvent_co", covariant=True)


@dataclass(frozen=True)
class StepEvent:
    """One step was made."""

    step: int
    num_steps: int
    loss: float
    """Nats per token; on a GPU, that of a recent step."""
    tokens: int
    """Seen so far."""
    joint: bool = False
    """The loss is that of p(x, z), states given."""


@dataclass(frozen=True)
class CheckEvent:
    """The validation text was scored."""

    step: int
    num_steps: int
    tokens: int
    valid_perplexity: float
    best_perplexity: float
    improved: bool


@dataclass(frozen=True)
class Stopped:
    """The end of a training run.

    Example:
        >>> from vlhmm.training.trainer import Stopped
        >>> Stopped("time", step=150, num_steps=200, best_perplexity=1.44, seconds=60.0).reason
        'time'
    """

    reason: Reason
    """finished: all steps were made; time: `max_seconds` was reached; interrupted: SIGINT or SIGTERM."""
    step: int
    """Steps that were made, those before a resume included."""
    num_steps: int
    """Steps that were planned."""
    best_perplexity: float
    """Validation perplexity of the weights that were kept."""
    seconds: float
    """Wall time of the whole training, runs before a resume included up to their last save."""
    underflow_sequences: int = 0
    """Sequences in which a number was too small for its type. Eager steps did them again in a wider range; in CUDA graphs, which
    take over only where there are few, they have no gradient, or one that lacks what was lost."""


Event = StepEvent | CheckEvent | Stopped


@runtime_checkable
class Task(Protocol[OwnEvent_co]):
    """One kind of training: everything that changes during it, how a step changes it, and how it is saved.

    Its own events are the closing one and whatever else it has to tell.
    """

    @property
    def out(self) -> Path | None:
        """The run folder; None: nothing is written."""
        ...

    @property
    def step(self) -> int:
        """Steps made so far."""
        ...

    @property
    def num_steps(self) -> int: ...

    @property
    def tokens_seen(self) -> int: ...

    @property
    def joint(self) -> bool:
        """The last step's loss is that of p(x, z)."""
        ...

    @property
    def best_perplexity(self) -> float:
        """Of all evaluations so far; infinite before the first."""
        ...

    @property
    def loss_steps(self) -> int:
        """Steps between two readings of the loss."""
        ...

    @property
    def check_times(self) -> Sequence[str]:
        """What a check's line in the log says of time: "seconds" of training so far, "check_seconds"."""
        ...

    def batches(self) -> Iterator[Tensor]:
        """Tokens of the steps to come, from the present one on: a function of seed, epoch and step. None, once finished."""
        ...

    def make_step(self, tokens: Tensor) -> None:
        """Gradients of a batch, `step.reduce_gradients`, update; whatever else a kind does with a batch."""
        ...

    def loss(self) -> float:
        """The loss of the last step in nats per token; synchronises with a GPU. Raises `DivergedError`."""
        ...

    def check_due(self) -> bool:
        """The validation text is to be scored after the last step."""
        ...

    def finished(self) -> bool:
        """By the plan: no step is left, or the ones that are left would change nothing."""
        ...

    def resumable(self) -> bool:
        """Training can be resumed from the current state; if not, only from an earlier one."""
        ...

    def stoppable(self) -> bool:
        """A signal may end training here. What would be resumable a few steps later waits for that; what would be only after long
        work ends at once."""
        ...

    def evaluating(self) -> Generator[Progress, None, float]:
        """Validation perplexity, if the weights are sound (else raises `DivergedError`); the best are kept, the schedule moves on.

        The state is unchanged while it yields: an interrupted check is repeated."""
        ...

    def step_record(self, losses: Sequence[float]) -> dict[str, Any] | None:
        """A line for the log about the steps since the last one; None: no line."""
        ...

    def extra_events(self) -> Iterable[OwnEvent_co]:
        """What else there is to tell before the first step, and after every one."""
        ...

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it as named tensors and JSON values, if it is sound (else raises `DivergedError`).

        The values say what the training is about: `restore` refuses another."""
        ...

    def restore(self, tensors: Mapping[str, Tensor], values: dict[str, Any]) -> None:
        """Restores what `state` returned, so that training continues exactly from there."""
        ...

    def save_best(self) -> None:
        """Leaves the best weights so far in `out` as a model folder, if this kind has one."""
        ...

    def finish(self, reason: Reason) -> None:
        """Leaves the model as training ends: with its best weights, saved."""
        ...

    def closing_event(self, stopped: Stopped) -> OwnEvent_co: ...


def fit(
    task: Task[OwnEvent],
    *,
    folder: RunFolder | None = None,
    resume: bool = False,
    max_seconds: float | None = None,
    save_seconds: float = 0.0,
    save_at_end: bool = True,
    here: World = ALONE,
) -> Iterator[StepEvent | CheckEvent | OwnEvent]:
    """Trains, an event at a time; the last one is the task's closing event.

    `folder`: that of `task.out`, where the caller holds it already. `save_seconds`: checks that come sooner after the last save do not save; nor does the end without `save_at_end`. With
    `max_seconds`, SIGINT or SIGTERM training stops after a step, and goes on from there with `resume`; where ranks take local
    steps it stops after their next average. A signal does not wait for a check: that is then the first thing to be done after `resume`. `here`: the ranks that train together, each with a
    task of its own; the clock is that of the first, a signal to any of them stops all.
    """
    if resume and task.out is None:
        raise ValueError("resume needs the folder to resume from: give out=")
    begun = time.monotonic()
    # The clock continues from the time of the runs before `resume`.
    training_begun = begun
    reason: Reason = "finished"
    with ExitStack() as stack:
        if folder is None and task.out is not None:
            folder = RunFolder(task.out, resume, here)
        if folder is not None:
            stack.enter_context(folder)
        stop_asked = stack.enter_context(stop_signals())
        unchecked = False
        if folder is not None and folder.resume and (saved := folder.load_state()) is not None:
            task.restore(*saved)
            folder.cut_log(task.step)
            training_begun -= saved[1].get("seconds", 0.0)
            unchecked = saved[1].get("unchecked", False)
        if task.step == 0:
            yield from task.extra_events()
        saves = _Saves(save_seconds, training_begun)
        loss, losses = math.nan, list[float]()
        batches = task.batches()
        while True:
            if unchecked:
                check_due = True
            elif (tokens := next(batches, None)) is None:
                break
            else:
                task.make_step(tokens)
                check_due = task.check_due()
                if task.step % task.loss_steps == 0 or task.step == 1 or check_due:
                    loss = task.loss()
                    losses.append(loss)
                yield StepEvent(task.step, task.num_steps, loss, task.tokens_seen, task.joint)

                # Before a check too: both can be compared, however short the training is.
                if task.step % LOG_STEPS == 0 or check_due:
                    if folder is not None and (record := task.step_record(losses)) is not None:
                        folder.log(record)
                    losses.clear()
            if check_due:
                checked = _checked(task, training_begun, stop_asked, here)
                unchecked = checked is None
                if checked is not None:
                    check, times = checked
                    yield check
                    if folder is not None:
                        folder.log(
                            {"kind": "check", **{name: times[name] for name in task.check_times}, **asdict(check)}
                        )
            if not unchecked:
                yield from task.extra_events()
                if task.finished():
                    if save_at_end:
                        saves.save(task, folder)
                    break
            out_of_time = max_seconds is not None and time.monotonic() - begun >= max_seconds
            of_first = [here.is_first and out_of_time, here.is_first and saves.due(check_due)]
            interrupted, out_of_time, due = any_rank([stop_asked.is_set(), *of_first], here, f"step {task.step}")
            # The time limit waits for a resumable state; a signal does so only if one is near.
            stopping = (interrupted and task.stoppable()) or (out_of_time and task.resumable())
            if task.resumable() and (stopping or due):
                saves.save(task, folder, unchecked=unchecked)
            if stopping:
                reason = "interrupted" if interrupted else "time"
                break
        task.finish(reason)
        seconds = time.monotonic() - training_begun
        yield task.closing_event(Stopped(reason, task.step, task.num_steps, task.best_perplexity, seconds))


def _checked(
    task: Task[Any], begun: float, stop_asked: StopRequest, here: World
) -> tuple[CheckEvent, dict[str, float]] | None:
    """The validation text is scored; how long training has taken so far, and this alone. None: it was interrupted."""
    check_begun, best = time.monotonic(), task.best_perplexity
    scoring = task.evaluating()
    while True:
        try:
            next(scoring)
        except StopIteration as stop:
            perplexity = stop.value
            break
        if any_rank([stop_asked.is_set()], here, f"the check after step {task.step}")[0]:
            scoring.close()
            return None
    check = CheckEvent(
        task.step, task.num_steps, task.tokens_seen, perplexity, task.best_perplexity, improved=perplexity < best
    )
    now = time.monotonic()
    return check, {"seconds": round(now - begun, 3), "check_seconds": round(now - check_begun, 3)}


def save_run(task: Task[Any], folder: RunFolder, seconds: float = 0.0, *, unchecked: bool = False) -> None:
    """Writes a checkpoint: the state, the seconds of training so far, and whether the check of the last step is still due."""
    # The best weights first: they were finite at their check, even if the current ones have diverged.
    task.save_best()
    tensors, values = task.state()
    folder.save_state(tensors, {**values, "seconds": seconds, **({"unchecked": True} if unchecked else {})})


class _Saves:
    """When the state is saved between the first step and the last."""

    def __init__(self, save_seconds: float, training_begun: float) -> None:
        self._save_seconds, self._training_begun = save_seconds, training_begun
        self._at, self._took = time.monotonic(), 0.0

    def due(self, check_due: bool) -> bool:
        pause = self._took / SAVING_SHARE if self._took > LONG_SAVE else 0.0
        return time.monotonic() - self._at >= max(self._save_seconds if check_due else SAVE_SECONDS, pause)

    def save(self, task: Task[Any], folder: RunFolder | None, *, unchecked: bool = False) -> None:
        begun = time.monotonic()
        if folder is not None:
            save_run(task, folder, begun - self._training_begun, unchecked=unchecked)
        self._at = time.monotonic()
        self._took = self._at - begun


class DivergedError(FinalError):
    """Training has broken down; the last good checkpoint is kept."""

    def __init__(self, what: str, kept_in: Path | None = None) -> None:
        kept = "" if kept_in is None else f"; the last good checkpoint in {kept_in} is kept"
        super().__init__(what + kept)
        self.what = what
        """The same without the place of the checkpoint, which concerns this machine alone."""


def diverged(symptom: str, step: int, num_steps: int, kept_in: Path | None = None) -> DivergedError:
    what = f"training diverged at step {step} of {num_steps}: {symptom}: try a smaller learning_rate"
    return DivergedError(what, kept_in)


def divergence_threshold(num_words: int) -> float:
    """The divergence threshold, in nats per token: far above the loss of a uniform model, where more steps only lead to overflow."""
    return 3 * math.log(num_words) + 10


def check_divergence(loss: float, limit: float, step: int, num_steps: int, kept_in: Path | None = None) -> None:
    """Raises if the loss is above the limit or no number."""
    if not loss <= limit:
        raise diverged(f"the loss is {loss:.4g} nats per token, the limit {limit:.4g}", step, num_steps, kept_in)


def loss_interval(device: torch.device) -> int:
    """Steps between two readings of the loss: each reading synchronises host and GPU."""
    return LOG_STEPS if device.type == "cuda" else 1


def relay(events: Iterable[Any], closing: type[Closing]) -> Generator[Any, None, Closing]:
    """`last = yield from relay(events, Stopped)`: passes the events on, and returns the closing one."""
    last: Closing | None = None
    for event in events:
        if isinstance(event, closing):
            last = event
        else:
            yield event
    assert last is not None, f"the last event is always {closing.__name__}"
    return last


def last_event(events: Iterable[object], closing: type[Closing]) -> Closing:
    """Runs to completion and returns the closing event."""
    (last,) = deque(events, maxlen=1)
    assert isinstance(last, closing), f"the last event is always {closing.__name__}"
    return last


def run_to_end(events: Iterable[object]) -> Stopped:
    """`last_event` of a training that ends with `Stopped`."""
    return last_event(events, Stopped)
