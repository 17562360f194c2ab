"""Runs side by side: settings that differ, figures, and a paired test on the held-out text."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from vlhmm.data import Tokens
from vlhmm.data.json_file import read_json_object
from vlhmm.data.sources import Split
from vlhmm.evaluate import Evaluation, HMMScorer, evaluating
from vlhmm.lm import LanguageModel, load
from vlhmm.progress import Progress, result_of
from vlhmm.reports.sources import corpus_for
from vlhmm.tables import Belief
from vlhmm.training.plan import read_plan
from vlhmm.training.run_folder import RESULTS

Floats = npt.NDArray[np.float64]

LEVEL = 0.95
MIN_DOCUMENTS = 20
"""Of fewer documents the text is cut into stretches instead, which the bootstrap draws in their place."""
STRETCHES = 100
MAX_DRAWN = 1 << 20
"""Documents that are drawn at once."""


@dataclass(frozen=True)
class ComparedRun:
    """One run and its figures.

    Example:
        >>> vlhmm.compare("demo-model", "demo-model").runs[0].num_states
        48
    """

    folder: str
    """As it was named."""
    num_states: int
    """Number of states."""
    num_parameters: int
    """Number of trainable parameters."""
    train_seconds: float | None
    """None: the folder does not say."""
    tokenizer_hash: str
    """Of the tokens it reads."""
    corpus_hash: str | None
    """Of the text it was trained on; None: the folder does not say."""
    evaluation: Evaluation | None
    """Of the held-out text, as one exact stream; None: the text could not be read."""


@dataclass(frozen=True)
class PairedTest:
    """What a run gains over the first one on the same documents.

    Example:
        >>> test = vlhmm.compare("demo-model", "demo-model").tests[0]
        >>> test.difference, test.low, test.high
        (0.0, 0.0, 0.0)
    """

    run: str
    """Its folder."""
    baseline: str
    """The folder of the first run."""
    difference: float
    """Nats per token: log p of the run minus log p of the baseline, over the number of tokens. Above 0 the run is better."""
    low: float
    """Lower end of the bootstrap interval of the difference."""
    high: float
    """Upper end of it."""
    bits_per_byte: tuple[float, float, float] | None
    """Bits per byte of the run minus those of the baseline, with its interval; below 0 the run is better. None: not defined."""
    unit: str
    """What is drawn: documents, or stretches of the text."""
    num_units: int
    """How many of these there are."""
    level: float
    """Probability with which the interval is meant to hold the difference."""
    num_samples: int
    """Samples of the bootstrap."""
    seed: int
    """Of these samples."""

    @property
    def significant(self) -> bool:
        """Whether 0 is outside the interval."""
        return not self.low <= 0.0 <= self.high


@dataclass(frozen=True)
class Comparison:
    """Runs side by side.

    Example:
        >>> found = vlhmm.compare("demo-model", "demo-model")
        >>> found.settings, found.tests[0].difference, found.tests[0].significant
        ({}, 0.0, False)
    """

    split: Split
    """The part of the corpus that was scored."""
    runs: list[ComparedRun]
    """The runs as they were named, each with its figures."""
    settings: dict[str, list[Any]]
    """The settings that differ, with the value of each run; None: the run has no such setting."""
    tests: list[PairedTest]
    """Each run that can be compared with the first."""
    not_tested: dict[str, str]
    """The other runs, with the reason."""


def compare(
    *runs: str | Path,
    split: Split = "test",
    data_dir: str | Path | None = None,
    num_samples: int = 10_000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Comparison:
    """Compare runs: settings that differ, figures, and a paired bootstrap test on the held-out text.

    The test draws documents with replacement. It compares each run with the first, where both have the same tokenizer and the same
    text: then log p of each document can be subtracted.

    Args:
        *runs: Two folders of runs or more.
        split: Part of the corpus that is scored.
        data_dir: The folder that holds ptb/ and wikitext-2/; None: that of the runs.
        num_samples: Samples of the bootstrap.
        seed: Decides them.
        device: Where the text is scored.

    Returns:
        The comparison.

    Raises:
        ValueError: There are fewer than two runs, or one of them holds no model.

    Example:
        >>> found = vlhmm.compare("demo-model", "demo-model", split="valid")
        >>> found.tests[0].unit, found.tests[0].low, found.tests[0].high
        ('documents', 0.0, 0.0)
    """
    return result_of(
        comparing(*runs, split=split, data_dir=data_dir, num_samples=num_samples, seed=seed, device=device)
    )


def comparing(
    *runs: str | Path,
    split: Split = "test",
    data_dir: str | Path | None = None,
    num_samples: int = 10_000,
    seed: int = 0,
    device: torch.device | str = "cpu",
) -> Generator[Progress, None, Comparison]:
    """`compare`, telling how far it is."""
    if len(runs) < 2:
        raise ValueError(f"{len(runs)} run to compare, at least 2 are needed")
    if num_samples < 1:
        raise ValueError(f"num_samples is {num_samples}, but must be at least 1")
    if seed < 0:
        raise ValueError(f"seed {seed} is negative; it must be 0 or more")
    folders = [Path(run) for run in runs]
    directory = None if data_dir is None else Path(data_dir)
    scored = []
    for folder in folders:
        scored.append((yield from _scoring(folder, split, directory, torch.device(device))))
    tests, not_tested = [], {}
    first = scored[0]
    for other in scored[1:]:
        reason = _not_comparable(first, other)
        if reason is None:
            tests.append(_test(first, other, num_samples, seed))
        else:
            not_tested[other.run.folder] = reason
    return Comparison(
        split, [one.run for one in scored], _differing([one.settings for one in scored]), tests, not_tested
    )


@dataclass(frozen=True)
class _Scored:
    """A run with log p of every token of the held-out text."""

    run: ComparedRun
    settings: dict[str, Any]
    tokens: Tokens | None
    log_probs: Floats | None
    problem: str | None
    """Why nothing is scored."""


@dataclass(frozen=True)
class _Recording:
    """A scorer of one stream that remembers what it gave."""

    scorer: HMMScorer
    log_probs: list[Floats]

    @property
    def num_words(self) -> int:
        return self.scorer.num_words

    @property
    def protocol(self) -> str:
        return self.scorer.protocol

    def score_window(self, tokens: Tensor, lengths: Tensor, state: Belief | None) -> tuple[Tensor, Belief]:
        log_probs, belief = self.scorer.score_window(tokens, lengths, state)
        self.log_probs.append(log_probs[0, : int(lengths[0])].double().cpu().numpy())
        return log_probs, belief


def _scoring(
    folder: Path, split: Split, data_dir: Path | None, device: torch.device
) -> Generator[Progress, None, _Scored]:
    lm = load(folder, device)
    evaluation = tokens = log_probs = problem = None
    try:
        tokens = _held_out(lm, folder, split, data_dir)
    except (ValueError, OSError) as error:
        problem = f"{folder}: {error}"
    if tokens is not None:
        recording = _Recording(HMMScorer(lm.hmm.tables), [])
        evaluation = yield from evaluating(recording, tokens, lm.tokenizer, what=f"scoring {folder}")
        log_probs = np.concatenate(recording.log_probs)
    results = read_json_object(folder / RESULTS) if (folder / RESULTS).exists() else {}
    run = ComparedRun(
        str(folder),
        lm.model.support.num_states,
        lm.model.num_parameters,
        results.get("train_seconds"),
        lm.tokenizer.hash,
        lm.about.get("corpus", {}).get("hash"),
        evaluation,
    )
    return _Scored(run, dict(_settings(lm, folder)), tokens, log_probs, problem)


def _held_out(lm: LanguageModel, folder: Path, split: Split, data_dir: Path | None) -> Tokens:
    trained_on = lm.about.get("corpus", {})
    plan = read_plan(folder)
    # `vlhmm.train` knows a corpus by its name alone; the hash tells whether it is the same.
    source = trained_on.get("name") if plan is None else plan.source
    if not source:
        raise ValueError("it does not say what it was trained on: compare the folders of `vlhmm train`")
    corpus, _ = corpus_for(lm, source, data_dir or (None if plan is None else plan.data_dir))
    if corpus.hash != trained_on.get("hash"):
        raise ValueError(f"{source} has changed since the training: some of its {split} text may have been read there")
    tokens: Tokens = getattr(corpus, split)
    if not len(tokens):
        raise ValueError(f"{split} of {source} has 0 tokens, at least 1 is needed")
    return tokens


def _not_comparable(first: _Scored, other: _Scored) -> str | None:
    """Why no document's log p can be subtracted from the other's."""
    for one in (first, other):
        if one.problem is not None:
            return one.problem
    if first.run.tokenizer_hash != other.run.tokenizer_hash:
        return (
            f"its tokenizer is {other.run.tokenizer_hash[:12]}, that of {first.run.folder} is "
            f"{first.run.tokenizer_hash[:12]}: log p of other tokens cannot be subtracted"
        )
    if first.run.corpus_hash != other.run.corpus_hash:
        return (
            f"its corpus is {str(other.run.corpus_hash)[:12]}, that of {first.run.folder} is "
            f"{str(first.run.corpus_hash)[:12]}: the held-out text is another"
        )
    return None


def _test(first: _Scored, other: _Scored, num_samples: int, seed: int) -> PairedTest:
    assert first.tokens is not None
    assert first.log_probs is not None
    assert other.log_probs is not None
    ends, unit = _units(first.tokens)
    gains = np.add.reduceat(other.log_probs - first.log_probs, ends[:-1])
    low, high = bootstrap_interval(gains, np.diff(ends), num_samples, np.random.default_rng(seed))
    difference = float(gains.sum() / len(first.tokens))
    before, after = first.run.evaluation, other.run.evaluation
    bits = None
    if before is not None and after is not None and before.bits_per_byte is not None and first.tokens.bytes:
        per_byte = len(first.tokens) / first.tokens.bytes / math.log(2)
        bits = (-difference * per_byte, -high * per_byte, -low * per_byte)
    return PairedTest(
        other.run.folder, first.run.folder, difference, low, high, bits, unit, len(gains), LEVEL, num_samples, seed
    )


def _units(tokens: Tokens) -> tuple[npt.NDArray[np.int64], str]:
    """Where the documents begin, and the last one ends; of few documents equal stretches instead."""
    ends = np.unique(tokens.offsets)
    if len(ends) > MIN_DOCUMENTS:
        return ends, "documents"
    return np.unique(np.linspace(0, len(tokens), min(STRETCHES, len(tokens)) + 1).astype(np.int64)), "stretches"


def bootstrap_interval(
    gains: Floats, sizes: npt.NDArray[np.int64], num_samples: int, generator: np.random.Generator
) -> tuple[float, float]:
    """The percentile interval of sum of gains / sum of sizes, units drawn with replacement."""
    at_once = max(1, MAX_DRAWN // len(gains))
    ratios = []
    for first in range(0, num_samples, at_once):
        drawn = generator.integers(len(gains), size=(min(at_once, num_samples - first), len(gains)))
        ratios.append(gains[drawn].sum(1) / sizes[drawn].sum(1))
    low, high = np.quantile(np.concatenate(ratios), [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def _differing(settings: Sequence[dict[str, Any]]) -> dict[str, list[Any]]:
    names = dict.fromkeys(name for one in settings for name in one)
    rows = {name: [one.get(name) for one in settings] for name in names}
    return {name: values for name, values in rows.items() if any(value != values[0] for value in values)}


def _settings(lm: LanguageModel, folder: Path) -> Iterator[tuple[str, Any]]:
    """What decided the run; of a folder without a plan, what the model tells."""
    plan = read_plan(folder)
    about = lm.about
    yield "corpus", f"{about.get('corpus', {}).get('name')} ({str(about.get('corpus', {}).get('hash'))[:12]})"
    yield "tokenizer", lm.tokenizer.hash[:12]
    if plan is None:
        sections = {"model": lm.model.settings.to_dict(), "train": about.get("train", {})}
    else:
        sections = plan.recipe.to_dict()
        if plan.em is not None:
            sections = {**sections, "train": {}, "em": asdict(plan.em)}
    for section, values in sections.items():
        for name, value in values.items():
            yield f"{section}.{name}", value
