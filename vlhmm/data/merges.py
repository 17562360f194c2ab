"""Subwords in other spellings: training on them teaches a model the pieces of rare words, and costs it the text by heart.

Provilkov et al. 2020 (BPE-dropout) leave out merges while a text is tokenized. Here merges are undone in a text that is tokenized
already: it takes no text, is fast in arrays, and a seed decides it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Int
from numpy.typing import NDArray

from vlhmm.data.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class Merges:
    """What tokens were merged from, and how often merges are undone."""

    left: Int[np.ndarray, " X"]
    """The first part of each token, -1 where it is no merge."""
    right: Int[np.ndarray, " X"]
    rate: float
    """Each merge of a token is undone with this probability, those of its parts if it was undone itself."""

    @classmethod
    def of(cls, tokenizer: Tokenizer, rate: float) -> Merges | None:
        """Those of a BPE tokenizer; None: there is nothing to undo."""
        model = json.loads(tokenizer.definition)["model"]
        if not rate or model.get("type") != "BPE":
            return None
        ids: dict[str, int] = model["vocab"]
        left, right = np.full((2, tokenizer.vocab_size), -1, np.int64)
        prefix = model.get("continuing_subword_prefix") or ""
        # Of several ways to make a token the first has the rank that it is made by.
        for merge in reversed(model["merges"]):
            first, second = merge.split(" ") if isinstance(merge, str) else merge
            made = ids[first + second.removeprefix(prefix)]
            left[made], right[made] = ids[first], ids[second]
        return cls(left, right, rate)

    def undo(self, tokens: NDArray[Any], random: np.random.Generator) -> NDArray[Any]:
        """The same text in more tokens: merges are undone at random."""
        # Only parts of tokens that were split may be split further.
        fresh = np.ones(len(tokens), bool)
        while True:
            split = fresh & (self.left[tokens] >= 0)
            split[split] = random.random(int(split.sum())) < self.rate
            if not split.any():
                return tokens
            sizes = np.where(split, 2, 1)
            places = (np.cumsum(sizes) - sizes)[split]
            parents = tokens[split]
            tokens = np.repeat(tokens, sizes)
            tokens[places], tokens[places + 1] = self.left[parents], self.right[parents]
            fresh = np.repeat(split, sizes)
