"""The two models that know no context: what any language model has to beat."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.data import Tokens
from vlhmm.data.tokens import chunks


@dataclass(frozen=True)
class Uniform:
    """p(x) = 1 / X."""

    num_words: int

    @property
    def protocol(self) -> str:
        return "no context"

    def score_window(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], state: None
    ) -> tuple[Float[Tensor, "B T"], None]:
        return torch.full(tokens.shape, -math.log(self.num_words), dtype=torch.float64), None


@dataclass(frozen=True)
class Unigram:
    """p(x) by counting, one occurrence added to each word."""

    log_prob: Float[Tensor, " X"]

    @classmethod
    def of(cls, tokens: Tokens, num_words: int) -> Unigram:
        counts = np.ones(num_words, np.int64)
        for ids in chunks(tokens.ids):
            counts += np.bincount(ids, minlength=num_words)
        return cls(torch.from_numpy(np.log(counts) - np.log(counts.sum())))

    @property
    def num_words(self) -> int:
        return self.log_prob.shape[0]

    @property
    def protocol(self) -> str:
        return "no context"

    def score_window(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], state: None
    ) -> tuple[Float[Tensor, "B T"], None]:
        return self.log_prob[tokens], None
