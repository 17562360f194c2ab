"""Perplexity: one function for every model, which says what it counted."""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.data import Tokenizer, Tokens
from vlhmm.data.tokens import chunks
from vlhmm.distributed import ALONE, World, gather_when_done, shard
from vlhmm.inference.gather import Batch
from vlhmm.inference.score import score
from vlhmm.precision import float32_products
from vlhmm.progress import Progress, result_of
from vlhmm.tables import Belief, Tables

State = TypeVar("State")

WARM_TOKENS = 128
"""What each of several streams reads before its first scored token."""
TOKENS_AT_ONCE = 1 << 16
"""Of independent windows."""


@runtime_checkable
class Scorer(Protocol[State]):
    """What perplexity asks of a model: the log-probabilities of a window of tokens, given what came before."""

    @property
    def num_words(self) -> int: ...

    @property
    def protocol(self) -> str:
        """What happens at EOS, in words."""
        ...

    def score_window(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], state: State | None
    ) -> tuple[Float[Tensor, "B T"], State]:
        """log p(x_t | all before it), and what the next window of the same sequences needs."""
        ...


@runtime_checkable
class Restartable(Protocol):
    """A scorer that forgets at some tokens: ranks can share one stream."""

    @property
    def forgets_at(self) -> int | None:
        """The token after which nothing before it matters; None: there is none."""
        ...


@dataclass(frozen=True)
class HMMScorer:
    tables: Tables

    @property
    def forgets_at(self) -> int | None:
        return self.tables.reset_token

    def quick(self) -> HMMScorer:
        """The same with tf32 for float32: products by matrix units, and log p is off by 3e-5 at most.

        For decisions by perplexity, and for much text: in float32 scoring the training text takes longer than an epoch.
        """
        if self.tables.precision != "highest" or self.tables.device.type != "cuda":
            return self
        return HMMScorer(self.tables.with_precision("tf32"))

    @property
    def num_words(self) -> int:
        return self.tables.num_words

    @property
    def protocol(self) -> str:
        if self.tables.reset_token is None:
            return "states carried over every token"
        return f"states drawn from the start distribution after token {self.tables.reset_token}"

    @torch.no_grad()
    def score_window(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], state: Belief | None
    ) -> tuple[Float[Tensor, "B T"], Belief]:
        device = self.tables.device
        # Another thread may train meanwhile, in tf32.
        with float32_products("highest", device):
            scored = score(self.tables, Batch(tokens.to(device), lengths.to(device)), state)
        return scored.token_log_probs, scored.belief


@dataclass(frozen=True)
class Evaluation:
    """The perplexity of a text, and what was counted.

    Example:
        >>> from vlhmm.data import Tokens
        >>> lm = vlhmm.load("demo-model")
        >>> ids = [*lm.tokenizer.encode("the dog sees a bird"), lm.tokenizer.eos_id]
        >>> result = lm.evaluate(Tokens.from_documents([ids], lm.tokenizer.vocab_size))
        >>> round(result.perplexity, 1), result.num_tokens, result.num_unknown
        (1.5, 6, 0)
    """

    perplexity: float
    """exp(-log_prob / num_tokens)."""
    log_prob: float
    """log p of all scored tokens, in nats."""
    num_tokens: int
    """Number of scored tokens."""
    num_unknown: int
    """Number of unknown words among the tokens; they are scored like all others."""
    word_perplexity: float | None
    """exp(-log_prob / number of words of the source text); None: not known."""
    bits_per_byte: float | None
    """-log2 p / number of bytes of the source text; None: not known, or not defined."""
    no_bits_per_byte: str | None
    """Why `bits_per_byte` is None: it is defined where the tokens spell every text, and `<unk>` spells nothing."""
    protocol: str
    """What was scored and how, in words."""

    @property
    def unknown_rate(self) -> float:
        """num_unknown / num_tokens."""
        return self.num_unknown / self.num_tokens

    def to_dict(self) -> dict[str, Any]:
        """Return all numbers as a dictionary, for JSON.

        Returns:
            The fields and `unknown_rate`.

        Example:
            >>> from vlhmm.data import Tokens
            >>> lm = vlhmm.load("demo-model")
            >>> ids = [*lm.tokenizer.encode("the dog sees a bird"), lm.tokenizer.eos_id]
            >>> sorted(lm.evaluate(Tokens.from_documents([ids], lm.tokenizer.vocab_size)).to_dict())[:3]
            ['bits_per_byte', 'log_prob', 'no_bits_per_byte']
        """
        return {**asdict(self), "unknown_rate": self.unknown_rate}


def evaluate(
    scorer: Scorer[Any],
    tokens: Tokens,
    tokenizer: Tokenizer | None = None,
    *,
    streams: int = 1,
    window: int = 512,
    independent: int = 0,
    here: World = ALONE,
) -> Evaluation:
    """The perplexity of `tokens`: one exact stream from one cold start, or several at once.

    Several streams are an approximation for speed: each but the first begins WARM_TOKENS before its part, unscored.
    `independent`: the text is cut into windows of so many tokens instead, and each is scored as a text of its own.
    """
    steps = evaluating(scorer, tokens, tokenizer, streams=streams, window=window, independent=independent, here=here)
    return result_of(steps)


def evaluating(
    scorer: Scorer[Any],
    tokens: Tokens,
    tokenizer: Tokenizer | None = None,
    *,
    streams: int = 1,
    window: int = 512,
    independent: int = 0,
    what: str = "scoring",
    here: World = ALONE,
) -> Generator[Progress, None, Evaluation]:
    """`evaluate`, telling after each window how many tokens are scored; `what` is said of them.

    Ranks share the windows, and add up the same numbers in the same order as one process.
    """
    parts, done = list[float](), 0
    for scored, part in scored_windows(
        scorer, tokens, streams=streams, window=window, independent=independent, here=here
    ):
        parts.append(part)
        done += scored
        yield Progress(what, min(done * here.size, len(tokens)), len(tokens), unit="tokens")
    log_prob = 0.0
    for some in gather_when_done(parts, here, what):
        for part in some:
            log_prob += part
    if math.isnan(log_prob):
        raise ValueError("the model gives NaN: its weights are broken")
    num_tokens = len(tokens)
    per_token = -log_prob / num_tokens
    no_bits_per_byte = _no_bits_per_byte(tokens, tokenizer)
    return Evaluation(
        perplexity=_exp(per_token),
        log_prob=log_prob,
        num_tokens=num_tokens,
        num_unknown=tokens.count(tokenizer.unk_id) if tokenizer else 0,
        word_perplexity=_exp(-log_prob / tokens.words) if tokens.words else None,
        bits_per_byte=-log_prob / tokens.bytes / math.log(2) if tokens.bytes and not no_bits_per_byte else None,
        no_bits_per_byte=no_bits_per_byte,
        protocol=describe(scorer, tokenizer, streams, independent),
    )


def _no_bits_per_byte(tokens: Tokens, tokenizer: Tokenizer | None) -> str | None:
    if tokenizer is None:
        return "no tokenizer is given that could tell whether the tokens spell the text"
    if tokenizer.lossy_because is not None:
        return f"the tokenizer does not spell every text: {tokenizer.lossy_because}"
    return None if tokens.bytes else "the number of bytes of the source text is not known"


def scored_windows(
    scorer: Scorer[Any],
    tokens: Tokens,
    *,
    streams: int = 1,
    window: int = 512,
    independent: int = 0,
    here: World = ALONE,
) -> Iterator[tuple[int, float]]:
    """How many tokens each window scored, and their log-probability, to show progress. Of several ranks each has its own."""
    if not len(tokens):
        raise ValueError("0 tokens to score, at least 1 is needed")
    if independent < 0 or (independent and streams > 1):
        raise ValueError(
            f"independent windows of {independent} tokens in {streams} streams: windows need at least 1 token, or 0 for none, "
            "and there are no streams beside them"
        )
    largest = max(int(chunk.max()) for chunk in chunks(tokens.ids))
    if largest >= scorer.num_words:
        raise ValueError(
            f"the text has token {largest}, but the model's vocabulary ends at {scorer.num_words - 1}: "
            "read the text with the model's own tokenizer"
        )
    if independent:
        yield from _each_alone(scorer, tokens, independent, here)
        return
    # More streams than this would read more to warm up than they score.
    streams = max(1, min(streams, (len(tokens) - WARM_TOKENS) // (2 * WARM_TOKENS)))
    if streams == 1:
        yield from _one_stream(scorer, tokens, window, here)
    else:
        yield from _side_by_side(scorer, tokens, streams, window, here)


def _one_stream(scorer: Scorer[Any], tokens: Tokens, window: int, here: World) -> Iterator[tuple[int, float]]:
    """Windows of one text, each from what the one before has left."""
    first, end = _windows_of_rank(scorer, tokens, window, here)
    # What comes before the first window is read for the belief there.
    state = None
    for number in range(_begin_of(scorer, tokens, window, first) if first < end else end, end):
        ids = torch.from_numpy(tokens.ids[number * window : (number + 1) * window].astype(np.int64))[None]
        log_probs, state = scorer.score_window(ids, torch.tensor([ids.shape[1]]), state)
        if number >= first:
            yield ids.shape[1], float(log_probs.double().flatten().sum())


def _windows_of_rank(scorer: Scorer[Any], tokens: Tokens, window: int, here: World) -> tuple[int, int]:
    """The first window of this rank and the first after its last; all for the first rank where the stream cannot be parted."""
    every = range(-(-len(tokens) // window))
    parts = [shard(every, World(rank, here.size)) for rank in range(here.size)]
    # A rank that reads almost all of the text before its part is of no use.
    if any(part and _begin_of(scorer, tokens, window, part[0]) < part[0] - len(part) for part in parts):
        return (0, len(every)) if here.is_first else (0, 0)
    own = parts[here.rank]
    return own.start, own.stop


def _begin_of(scorer: Scorer[Any], tokens: Tokens, window: int, number: int) -> int:
    """From which window on the text must be read to know all that window `number` is scored by."""
    token = scorer.forgets_at if isinstance(scorer, Restartable) else None
    while token is not None and number > 0:
        number -= 1
        if (np.asarray(tokens.ids[number * window : (number + 1) * window]) == token).any():
            return number
    return 0


def _side_by_side(
    scorer: Scorer[Any], tokens: Tokens, streams: int, window: int, here: World
) -> Iterator[tuple[int, float]]:
    """Windows of several parts of the text at once, each part but the first warmed up."""
    part = -(-(len(tokens) - WARM_TOKENS) // streams)
    # Stream s reads from s * part on, WARM_TOKENS tokens more than it scores; the first scores all it reads.
    number = shard(torch.arange(streams), here)
    if not len(number):
        return
    begins = number * part
    lengths = (len(tokens) - begins).clamp(max=WARM_TOKENS + part)
    state = None
    for first in range(0, WARM_TOKENS + part, window):
        width = min(window, WARM_TOKENS + part - first)
        left = (lengths - first).clamp(min=0, max=width)
        # Only the last stream can be shorter, and only by less than a window: it ends with at least one token here
        # or has ended, and then its state is no longer of use.
        position = begins[:, None] + first + torch.arange(width)
        ids = torch.from_numpy(tokens.ids[position.clamp(max=len(tokens) - 1).numpy()].astype(np.int64))
        log_probs, state = scorer.score_window(ids, left.clamp(min=1), state)
        offset = first + torch.arange(width)
        scored = (offset < lengths[:, None]) & ((offset >= WARM_TOKENS) | (number == 0)[:, None])
        yield int(scored.sum()), float(log_probs.double()[scored.to(log_probs.device)].sum())


def _each_alone(scorer: Scorer[Any], tokens: Tokens, length: int, here: World) -> Iterator[tuple[int, float]]:
    """Windows one after the other, each from a cold start, many at once; the last may be shorter."""
    length = min(length, len(tokens))
    at_once = max(1, TOKENS_AT_ONCE // length) * length
    for first in shard(range(0, len(tokens), at_once), here):
        ids = tokens.ids[first : first + at_once].astype(np.int64)
        rows = -(-len(ids) // length)
        padded = np.zeros(rows * length, np.int64)
        padded[: len(ids)] = ids
        lengths = torch.full((rows,), length)
        lengths[-1] = len(ids) - (rows - 1) * length
        log_probs, _ = scorer.score_window(torch.from_numpy(padded).view(rows, length), lengths, None)
        yield len(ids), float(log_probs.double().flatten()[: len(ids)].sum())


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf


def describe(scorer: Scorer[Any], tokenizer: Tokenizer | None, streams: int, independent: int = 0) -> str:
    """The protocol in words."""
    contexts = "one exact stream from one cold start"
    if independent:
        contexts = f"independent windows of {independent} tokens, each from a cold start"
    elif streams > 1:
        contexts = f"{streams} parallel streams, each warmed up by {WARM_TOKENS} unscored tokens"
    parts = ["every token scored, EOS and unknown words included", scorer.protocol, contexts]
    if tokenizer is not None and tokenizer.eos_id is None:
        parts[0] = "every token scored, unknown ones included; no EOS"
    return "; ".join(parts)
