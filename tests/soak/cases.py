"""One case: an HMM, texts of it, where they are cut, and what enumeration says of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

import vlhmm
from tests.oracle import EVERY_KIND, Kind, Oracle, log_sum, ragged, random_hmm
from vlhmm.tables import Belief

MAX_LENGTH = 5
TOLERANCE = {"float64": 1e-9, "float32": 1e-5, "tf32": 5e-3, "bf16": 5e-2}
"""Relative to 1 + |log p|. Below that of float32: products on a GPU that read fewer bits, 11 or 8 of each factor."""


@dataclass(frozen=True)
class Text:
    """A sentence with all its paths."""

    oracle: Oracle
    tokens: np.ndarray

    @cached_property
    def log_joint(self) -> np.ndarray:
        return self.oracle.log_joint(self.tokens)

    @cached_property
    def log_prob(self) -> float:
        return float(log_sum(self.log_joint.ravel(), axis=0))

    @cached_property
    def path_probs(self) -> np.ndarray:
        return np.exp(self.log_joint - self.log_prob)

    @cached_property
    def posterior(self) -> np.ndarray:
        """p(z_t | x) as (T, Z)."""
        axes = range(len(self.tokens))
        return np.stack([self.path_probs.sum(tuple(other for other in axes if other != t)) for t in axes])

    @cached_property
    def prefixes(self) -> list[Text]:
        """The text up to each of its tokens."""
        return [Text(self.oracle, self.tokens[: end + 1]) for end in range(len(self.tokens) - 1)] + [self]

    @cached_property
    def token_log_probs(self) -> np.ndarray:
        return np.diff([prefix.log_prob for prefix in self.prefixes], prepend=0.0)

    @cached_property
    def filter(self) -> np.ndarray:
        """p(z_t | x_<=t) as (T, Z)."""
        return np.stack([prefix.posterior[-1] for prefix in self.prefixes])

    def rest(self, begin: int) -> np.ndarray:
        """log p(states and tokens from `begin` on | the tokens before), for every path of these states."""
        if begin == 0:
            return self.log_joint
        paths = self.log_joint.reshape(-1, *self.log_joint.shape[begin:])
        return log_sum(paths, axis=0) - self.prefixes[begin - 1].log_prob


@dataclass(frozen=True)
class Case:
    seed: int
    kind: Kind
    hmm: vlhmm.HMM
    texts: list[Text]
    cut: int
    """Where the texts that are carried on, all of one length, are cut."""
    window: int | None
    held_to: str
    """A key of `TOLERANCE`."""

    @property
    def relative(self) -> float:
        return TOLERANCE[self.held_to]

    @property
    def oracle(self) -> Oracle:
        return self.texts[0].oracle

    @property
    def random(self) -> np.random.Generator:
        """The same for every query, whichever are asked."""
        return np.random.default_rng([self.seed, 1])

    @cached_property
    def batch(self) -> tuple[Tensor, Tensor]:
        """Padded beyond the longest by up to two positions."""
        tokens, lengths = ragged([text.tokens for text in self.texts])
        padding = torch.full((len(self.texts), int(self.random.integers(3))), -1)
        return torch.cat([tokens, padding], dim=1), lengths

    @cached_property
    def halves(self) -> tuple[Tensor, Tensor]:
        """The first text before and after the cut."""
        tokens = torch.tensor(self.texts[0].tokens)[None]
        return tokens[:, : self.cut], tokens[:, self.cut :]

    @cached_property
    def belief(self) -> Belief:
        """At the cut."""
        return self.hmm.filter(self.halves[0], window=self.window).belief

    def atol(self, text: Text) -> float:
        return self.relative * (1 + abs(text.log_prob))


def draw_case(seed: int, dtype: torch.dtype, device: str = "cpu", precision: str = "highest") -> Case:
    random = np.random.default_rng([seed, 0])
    ugly = random.random() < 0.8
    kinds = [kind for kind in EVERY_KIND if kind.ugly == ugly]
    kind = kinds[random.integers(len(kinds))]
    # The tables are the same in all types but for their rounding.
    oracle, tables = random_hmm(kind, int(random.integers(2**31)), dtype)
    tables = tables.to(device=device)
    hmm = vlhmm.HMM(type(tables)(**{**vars(tables), "precision": precision}))
    lengths = [int(random.integers(2, MAX_LENGTH + 1)), int(random.integers(1, MAX_LENGTH + 1))]
    # Likely texts are few among the ugly.
    draws = [oracle.sentence if random.random() < 0.2 else oracle.rare_sentence for _ in lengths]
    texts = [Text(oracle, draw(length, random)) for draw, length in zip(draws, lengths, strict=True)]
    reads = "float64" if dtype == torch.float64 else "float32"
    if device != "cpu" and dtype == torch.float32 and precision != "highest":
        reads = precision
    return Case(
        seed=seed,
        kind=kind,
        hmm=hmm,
        texts=texts,
        cut=int(random.integers(1, lengths[0])),
        window=[None, 1, 2, 3][random.integers(4)],
        held_to=reads,
    )
