"""What a run has come to: the record that results.json holds."""

from __future__ import annotations

from dataclasses import dataclass

from vlhmm.data import Corpus
from vlhmm.distillation.material import HeldOutSamples
from vlhmm.distillation.stage_records import StageRecord
from vlhmm.reports.evaluation import HeldOutText
from vlhmm.training.trainer import Reason

PLAIN = "plain"
"""The HMM that is trained without given states: its folder in that of the run, and its key in JSON."""


@dataclass(frozen=True)
class RunResults:
    """A training run: how it ended, how good the model is, and what the numbers come from."""

    stopped: Reason
    step: int
    num_steps: int
    train_seconds: float
    best_check_perplexity: float
    """At the checks during training, which score the validation text in parallel streams."""
    num_states: int
    num_parameters: int
    corpus: Corpus
    seed: int
    device: str
    command: str
    """What was typed, or called, to get these results."""
    vlhmm: str
    python: str
    torch: str
    figures: HeldOutText | HeldOutSamples | None
    """Of the best weights; None: the run was interrupted."""
    learning_curve: str | None
    """The file of the picture; None: it was not drawn."""
    stages: tuple[StageRecord, ...] = ()
    """What came before the training on the text alone, each with its seconds; `train_seconds` are of that alone."""
    underflow_sequences: int = 0
    """Of training, as `Stopped` tells it."""


@dataclass(frozen=True)
class DistillationResults:
    """A distilled HMM, and beside it, if asked for, one that was trained without the teacher's states."""

    run: RunResults
    plain: RunResults | None = None

    @property
    def last(self) -> RunResults:
        """The run that was made last."""
        return self.plain or self.run
