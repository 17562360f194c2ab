"""The same case with soft evidence in place of tokens: log-likelihoods of every state at each position."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

import vlhmm
from tests.oracle import Oracle
from tests.soak.cases import Case, Text
from vlhmm.inference.evidence import NO_TOKEN


@dataclass(frozen=True)
class SoftText(Text):
    """What is seen at each position, with all paths; nothing begins anew within it."""

    evidence: np.ndarray

    @cached_property
    def log_joint(self) -> np.ndarray:
        log_joint, logs = np.zeros(()), self.oracle.logs
        for position, seen in enumerate(self.evidence):
            log_joint = log_joint[..., None] + ((logs.transition if position else logs.start) + seen)
        return log_joint

    @cached_property
    def prefixes(self) -> list[Text]:
        ends = range(1, len(self.evidence))
        return [*(SoftText(self.oracle, self.tokens[:end], self.evidence[:end]) for end in ends), self]


@dataclass(frozen=True)
class SoftHMM:
    """An HMM that is asked about log-likelihoods where others are asked about tokens."""

    hmm: vlhmm.HMM

    def __getattr__(self, name: str) -> Any:
        method = getattr(self.hmm, name)
        if name in ("tables", "num_states", "next_token_probs"):
            return method
        return lambda seen, *others, **options: method(None, *others, log_likelihoods=seen, **options)


@dataclass(frozen=True)
class SoftCase(Case):
    @cached_property
    def relative(self) -> float:
        """Sums of five large numbers of either sign may be small: each is rounded by half a unit of its own last place, not the sum's."""
        evidence = np.concatenate([text.evidence.ravel() for text in self.texts])
        largest = float(np.abs(evidence[np.isfinite(evidence)]).max(initial=0.0))
        return max(super().relative, 5 / 2 * torch.finfo(self.hmm.tables.dtype).eps * largest)

    @cached_property
    def batch(self) -> tuple[Tensor, Tensor]:
        """What stands past the length is never read."""
        lengths = [len(text.tokens) for text in self.texts]
        longest = max(lengths) + int(self.random.integers(3))
        padded = np.full((len(lengths), longest, self.oracle.num_states), 7.0)
        for row, text in enumerate(self.texts):
            padded[row, : lengths[row]] = text.evidence
        return self._tensor(padded), torch.tensor(lengths)

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        whole = self._tensor(self.texts[0].evidence[None])
        return whole[:, : self.cut], whole[:, self.cut :]

    def _tensor(self, values: np.ndarray) -> Tensor:
        tables = self.hmm.tables
        return torch.tensor(values, dtype=tables.dtype, device=tables.device)


def soft(case: Case) -> SoftCase:
    random = np.random.default_rng([case.seed, 2])
    texts = [_drawn(case, len(text.tokens), random) for text in case.texts]
    same = {field.name: getattr(case, field.name) for field in fields(case)}
    return SoftCase(**{**same, "hmm": SoftHMM(case.hmm), "texts": texts})


def _drawn(case: Case, length: int, random: np.random.Generator) -> SoftText:
    """Of a scale, with or without states that are impossible, ties, and a constant that is added at each position."""
    oracle: Oracle = case.oracle
    shape = length, oracle.num_states
    scale = random.choice([0.0, 1.0, 3.0, 30.0, 200.0])
    evidence = random.normal(size=shape) * scale
    if random.random() < 0.3:
        evidence = evidence.round()
    evidence += random.choice([0.0, 1.0, -50.0, 300.0]) * random.normal(size=(length, 1))
    # As the tables read it.
    evidence = torch.tensor(evidence).to(case.hmm.tables.dtype).double().numpy()
    tokens = np.full(length, NO_TOKEN)
    if random.random() < 0.6:
        sparse = np.where(random.random(shape) < 0.4, -np.inf, evidence)
        text = SoftText(oracle, tokens, sparse)
        if text.log_prob > -np.inf:
            return text
    return SoftText(oracle, tokens, evidence)


def of_evidence(check: Callable[[Case], None]) -> Callable[[Case], None]:
    """The same check of soft evidence."""
    return lambda case: check(soft(case))
