"""Interpolated modified Kneser-Ney (Chen & Goodman 1999), as lmplz of kenlm estimates it, without pruning.

    p(w | h) = (a(hw) - D(a(hw))) / sum_v a(hv)  +  gamma(h) p(w | h without its first word)

a is the count for the longest n-grams and for those that begin with <s>, otherwise the number of different words to the left.
D(a) is one of three discounts for a = 1, 2, and 3 or more; gamma(h) is what they took. Below the 1-grams stands 1 / X.
"""

from __future__ import annotations

import math
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.baselines.arpa import read_arpa, write_arpa
from vlhmm.baselines.disk_ngrams import count_on_disk, interpolate_on_disk, require_disk, times_counted
from vlhmm.baselines.ngrams import NOWHERE, Ids, Ngrams, Values, as_contexts, values_or
from vlhmm.data import Tokenizer, Tokens
from vlhmm.memory import available_bytes

FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""What `lmplz --discount_fallback` takes where a text is too small to estimate discounts."""
BYTES_PER_TOKEN = 64
"""Held at the peak for every token and order, if no n-gram comes twice; as measured."""


@dataclass(frozen=True)
class Discounts:
    """The discounts of modified Kneser-Ney for one order.

    Example:
        >>> from vlhmm.data import Tokens
        >>> text = Tokens.from_documents([[0, 1, 2], [1, 1, 2]], vocab_size=3)
        >>> model = vlhmm.KneserNey.fit(text, num_words=3, eos_id=2, order=2, fallback=(0.5, 1.0, 1.5))
        >>> model.discounts[0]
        Discounts(amounts=(0.5, 1.0, 1.5), estimated=False)
    """

    amounts: tuple[float, float, float]
    """What is subtracted from adjusted counts of 1, of 2, and of 3 or more."""
    estimated: bool
    """Whether they were estimated from the text; False: they are the fallback."""


@dataclass(frozen=True, eq=False, repr=False)
class KneserNey:
    """An interpolated modified Kneser-Ney n-gram model, p(x_t | the last n - 1 tokens of the same sentence).

    It is estimated as `lmplz` of KenLM does, without pruning. A sentence begins with `<s>` and ends with EOS.

    Example:
        >>> lines = ["the cat sees a bird", "the dog sees a fish", "the cat hears a fish"]
        >>> from vlhmm.data import Tokens, word_tokenizer
        >>> tokenizer = word_tokenizer(" ".join(lines).split())
        >>> text = Tokens.from_documents([[*tokenizer.encode(line), tokenizer.eos_id] for line in lines], tokenizer.vocab_size)
        >>> fallback = (0.5, 1.0, 1.5)  # too little text to estimate the discounts
        >>> vlhmm.KneserNey.fit(text, num_words=tokenizer.vocab_size, eos_id=tokenizer.eos_id, order=3, fallback=fallback)
        KneserNey(3-gram, 10 words, 36 n-grams)
    """

    orders: tuple[Ngrams, ...]
    """The n-grams of each length, from 1 on."""
    num_words: int
    """Size of the vocabulary, X."""
    eos_id: int | None
    """After this token the context is `<s>` alone; None: the text is one sentence."""
    discounts: tuple[Discounts, ...] | None
    """The discounts of each order; None for a model that was read from a file."""

    @classmethod
    def fit(
        cls,
        tokens: Tokens,
        *,
        num_words: int,
        eos_id: int | None,
        order: int = 5,
        fallback: tuple[float, float, float] | None = None,
        max_memory: int | None = None,
        disk: str | os.PathLike[str] | None = None,
    ) -> KneserNey:
        """Estimate the model of a text.

        A text whose counts may not fit in memory is counted on disk, with the same result: the model then reads its n-grams
        from files without names, which are gone when the model is.

        Args:
            tokens: The text.
            num_words: Size of the vocabulary, X.
            eos_id: The EOS token; None: the text is one sentence.
            order: The longest n-grams, n.
            fallback: Discounts for an order whose own cannot be estimated; None: such a text is refused.
            max_memory: Bytes that counting in memory may take, more is counted on disk; None: what is available.
            disk: The folder for counting on disk; None: that for temporary files.

        Returns:
            The model.

        Raises:
            ValueError: The text is too small to estimate discounts, a token id is out of range, or the counts may fit neither in
                memory nor on disk.

        Example:
            >>> from vlhmm.data import Tokens
            >>> text = Tokens.from_documents([[0, 1, 2], [1, 1, 2]], vocab_size=3)
            >>> vlhmm.KneserNey.fit(text, num_words=3, eos_id=2, order=2, fallback=(0.5, 1.0, 1.5))
            KneserNey(2-gram, 3 words, 9 n-grams)
        """
        _check(tokens, num_words, eos_id, order, fallback)
        memory = available_bytes(torch.device("cpu")) if max_memory is None else max_memory
        if len(tokens) * BYTES_PER_TOKEN * order > memory:
            folder = Path(tempfile.gettempdir() if disk is None else disk)
            require_disk(len(tokens), order, folder)
            on_disk = count_on_disk(tokens.ids, num_words, eos_id, order, folder)
            discounts = tuple(
                _discounts(times_counted(grams.counts), length, fallback) for length, grams in enumerate(on_disk, 1)
            )
            amounts = [discount.amounts for discount in discounts]
            return cls(interpolate_on_disk(on_disk, amounts, num_words, folder), num_words, eos_id, discounts)
        counted = _count(tokens.ids.astype(np.int64), num_words, eos_id, order)
        discounts = tuple(
            _discounts(times_counted(grams.counts), length, fallback) for length, grams in enumerate(counted, 1)
        )
        return cls(_interpolate(counted, discounts, num_words), num_words, eos_id, discounts)

    @classmethod
    def load_arpa(cls, path: str | os.PathLike[str], tokenizer: Tokenizer) -> KneserNey:
        """Read an ARPA file, written by vlhmm or by another tool.

        Args:
            path: The file.
            tokenizer: The tokenizer whose words the file has.

        Returns:
            The model.

        Raises:
            ValueError: The file cannot be read, or has other words.

        Example:
            >>> from vlhmm.data import Tokens, word_tokenizer
            >>> tokenizer = word_tokenizer(["the", "cat"], unk=False)
            >>> text = Tokens.from_documents([[0, 1, 2], [1, 1, 2]], tokenizer.vocab_size)
            >>> model = vlhmm.KneserNey.fit(text, num_words=3, eos_id=tokenizer.eos_id, order=2, fallback=(0.5, 1.0, 1.5))
            >>> model.save_arpa("model.arpa", tokenizer)
            >>> vlhmm.KneserNey.load_arpa("model.arpa", tokenizer)
            KneserNey(2-gram, 3 words, 9 n-grams)
        """
        return cls(read_arpa(Path(path), tokenizer), tokenizer.vocab_size, tokenizer.eos_id, None)

    def save_arpa(self, path: str | os.PathLike[str], tokenizer: Tokenizer) -> None:
        """Write an ARPA file atomically; `load_arpa` reads the same numbers, bit for bit.

        Args:
            path: The file.
            tokenizer: The tokenizer that made the text.

        Raises:
            ValueError: The tokenizer has another vocabulary or another EOS than the model.

        Example:
            >>> from vlhmm.data import Tokens, word_tokenizer
            >>> tokenizer = word_tokenizer(["the", "cat"], unk=False)
            >>> text = Tokens.from_documents([[0, 1, 2], [1, 1, 2]], tokenizer.vocab_size)
            >>> model = vlhmm.KneserNey.fit(text, num_words=3, eos_id=tokenizer.eos_id, order=2, fallback=(0.5, 1.0, 1.5))
            >>> model.save_arpa("model.arpa", tokenizer)
        """
        if (tokenizer.vocab_size, tokenizer.eos_id) != (self.num_words, self.eos_id):
            raise ValueError(
                f"the tokenizer has {tokenizer.vocab_size} tokens and EOS {tokenizer.eos_id}, the model {self.num_words} and "
                f"{self.eos_id}: give the tokenizer that made the model's text"
            )
        write_arpa(Path(path), self.orders, tokenizer)

    def __repr__(self) -> str:
        return f"KneserNey({self.order}-gram, {self.num_words:,} words, {self.num_parameters:,} n-grams)"

    @property
    def order(self) -> int:
        """The longest n-grams, n."""
        return len(self.orders)

    @property
    def num_parameters(self) -> int:
        """Number of n-grams of all lengths, `<s>` included."""
        return sum(map(len, self.orders))

    @property
    def protocol(self) -> str:
        """How the contexts are formed, in words."""
        contexts = f"contexts of at most {self.order - 1} tokens"
        return contexts if self.eos_id is None else f"{contexts}, begun anew after token {self.eos_id}"

    def score_window(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], state: Ids | None
    ) -> tuple[Float[Tensor, "B T"], Ids]:
        """Compute log p(x_t | context) of a window of tokens.

        Args:
            tokens: Token ids (B, T).
            lengths: Length of each sequence (B,).
            state: What the call for the window before returned; None: a sentence begins.

        Returns:
            Log-probabilities (B, T) in nats, 0 past the length, and the state (B, n - 1) for the next window.

        Example:
            >>> from vlhmm.data import Tokens
            >>> text = Tokens.from_documents([[0, 1, 2], [1, 1, 2]], vocab_size=3)
            >>> model = vlhmm.KneserNey.fit(text, num_words=3, eos_id=2, order=2, fallback=(0.5, 1.0, 1.5))
            >>> log_probs, state = model.score_window(torch.tensor([[0, 1, 2]]), torch.tensor([3]), None)
            >>> log_probs
            tensor([[-0.9589, -0.3102, -0.7621]], dtype=torch.float64)
        """
        inside = (torch.arange(tokens.shape[1]) < lengths.cpu()[:, None]).numpy()
        words = np.where(inside, tokens.cpu().numpy(), 0).astype(np.int64)
        last = lengths.cpu().numpy()[:, None] - 1
        if state is None:
            state = np.full((len(words), self.order - 1), NOWHERE)
            state[:, :1] = self.num_words
        log10_prob, ends = np.zeros(words.shape), np.empty_like(state)
        contexts, log10_backoff = np.zeros_like(words), np.zeros(words.shape)
        for length, grams in enumerate(self.orders, 1):
            found = grams.find(contexts, words)
            log10_prob = values_or(grams.log10_prob, found, log10_prob + log10_backoff)
            if length < self.order:
                ended = as_contexts(found, words, length, self.num_words, self.eos_id)
                ends[:, length - 1] = np.take_along_axis(ended, last, 1)[:, 0]
                contexts = np.concatenate([state[:, length - 1 : length], ended[:, :-1]], 1)
                log10_backoff = values_or(grams.log10_backoff, contexts, np.zeros(words.shape))
        return torch.from_numpy(np.where(inside, log10_prob, 0) * math.log(10)), ends


@dataclass(frozen=True, eq=False)
class _Counted:
    """N-grams of one length, numbered as in `Ngrams`."""

    keys: Ids
    contexts: Ids
    """The number of each n-gram without its last word."""
    suffixes: Ids
    """The number of each n-gram without its first word."""
    counts: Ids
    """Adjusted: a(hw) above."""


def _count(words: Ids, num_words: int, eos_id: int | None, order: int) -> list[_Counted]:
    """All n-grams up to a length: those of n + 1 words come from the numbers of those of n at every position."""
    keys = np.arange(num_words + 1)
    contexts, suffixes = np.zeros_like(keys), np.zeros_like(keys)
    counts, begins_with_bos = np.bincount(words, minlength=num_words + 1), keys == num_words
    numbers = words
    counted = []
    for length in range(1, order):
        ended = as_contexts(numbers, words, length, num_words, eos_id)
        before = np.concatenate([[num_words if length == 1 else NOWHERE], ended[:-1]])
        # Near the beginning of a sentence there are only shorter n-grams.
        there = before != NOWHERE
        longer_keys, longer_numbers, longer_counts = np.unique(
            (before * (num_words + 1) + words)[there], return_inverse=True, return_counts=True
        )
        longer_suffixes = np.empty_like(longer_keys)
        longer_suffixes[longer_numbers] = numbers[there]
        to_the_left = np.bincount(longer_suffixes, minlength=len(keys))
        counted.append(_Counted(keys, contexts, suffixes, np.where(begins_with_bos, counts, to_the_left)))
        numbers = np.full(len(words), NOWHERE)
        numbers[there] = longer_numbers
        keys, contexts, suffixes, counts = longer_keys, longer_keys // (num_words + 1), longer_suffixes, longer_counts
        begins_with_bos = begins_with_bos[contexts]
    return [*counted, _Counted(keys, contexts, suffixes, counts)]


def _discounts(times: tuple[int, int, int, int], length: int, fallback: tuple[float, float, float] | None) -> Discounts:
    """Chen & Goodman's equation 26."""
    one, two, three, four = times
    if one and two and three:
        share = one / (one + 2 * two)
        amounts = (1 - 2 * share * two / one, 2 - 3 * share * three / two, 3 - 4 * share * four / three)
        if min(amounts) > 0:
            return Discounts(amounts, True)
    if fallback is None:
        raise ValueError(
            f"{one} {length}-grams have an adjusted count of 1, {two} of 2, {three} of 3, {four} of 4: too few or too odd to "
            f"estimate discounts from; give more text, a lower order, or fallback={FALLBACK_DISCOUNTS}"
        )
    return Discounts(fallback, False)


def _interpolate(counted: list[_Counted], discounts: tuple[Discounts, ...], num_words: int) -> tuple[Ngrams, ...]:
    probs: list[Values] = []
    backoffs: list[Values] = []
    shorter = np.array([1 / num_words])
    for grams, discount in zip(counted, discounts, strict=True):
        taken = np.array([0, *discount.amounts])[grams.counts.clip(max=3)]
        total = np.bincount(grams.contexts, grams.counts, minlength=len(shorter))
        # A context that nothing was seen after passes everything on.
        gamma = np.divide(
            np.bincount(grams.contexts, taken, minlength=len(shorter)),
            total,
            out=np.ones(len(shorter)),
            where=total > 0,
        )
        prob = (grams.counts - taken) / total[grams.contexts] + gamma[grams.contexts] * shorter[grams.suffixes]
        backoffs.append(gamma)
        probs.append(prob)
        shorter = prob
    # <s> is given, never predicted; lmplz writes it so.
    probs[0][num_words] = 1
    # Nothing is longer than the longest; the first entry is of the empty context, which no file has.
    backoffs = [*backoffs[1:], np.ones(len(shorter))]
    return tuple(
        Ngrams(num_words, grams.keys, np.log10(prob).clip(max=0), np.log10(backoff))
        for grams, prob, backoff in zip(counted, probs, backoffs, strict=True)
    )


def _check(
    tokens: Tokens, num_words: int, eos_id: int | None, order: int, fallback: tuple[float, float, float] | None
) -> None:
    if order < 1:
        raise ValueError(f"order {order}: an n-gram has at least 1 word")
    if not len(tokens):
        raise ValueError("0 tokens to count, at least 1 is needed")
    smallest, largest = int(np.min(tokens.ids)), int(np.max(tokens.ids))
    if smallest < 0 or largest >= num_words:
        raise ValueError(f"token ids from {smallest} to {largest}, but the vocabulary is 0..{num_words - 1}")
    if eos_id is not None and not 0 <= eos_id < num_words:
        raise ValueError(f"EOS is token {eos_id}, but the vocabulary is 0..{num_words - 1}")
    for count, amount in enumerate(fallback or (), 1):
        if not 0 < amount <= count:
            raise ValueError(f"a discount of {amount} for a count of {count}: it must be above 0 and at most {count}")
