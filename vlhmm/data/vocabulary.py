"""A tokenizer made from the training text: byte-level BPE, or whole words."""

from __future__ import annotations

import math
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal, Protocol, get_args, runtime_checkable

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers, trainers

from vlhmm.arguments import check_count
from vlhmm.data.encode import cut_at_spaces, cut_before_spaces
from vlhmm.data.punctuation import separate_punctuation
from vlhmm.data.splits import SplitBatch
from vlhmm.data.tokenizer import Tokenizer
from vlhmm.data.tokenizer_files import load_tokenizer
from vlhmm.data.tokenizer_json import EOS, UNK
from vlhmm.data.word_level import word_tokenizer

Kind = Literal["bpe", "words", "whitespace"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
MIN_COUNT: Final = 2
MIN_VOCAB_SIZE, MAX_VOCAB_SIZE = 512, 16_384
# Every byte and EOS.
_MIN_BPE_SIZE: Final = 257
# The counts of a vocabulary are held in memory, and so is the text that merges are learnt from.
MAX_WORD_TYPES: Final = 4_000_000
MAX_LEARNT_CHARS: Final = 1 << 25
# Merges are learnt in time that grows with the square of a word.
MAX_LEARNT_WORD: Final = 1000
_LONG_RUN: Final = re.compile(rf"\S{{{MAX_LEARNT_WORD},}}|\s{{{MAX_LEARNT_WORD},}}")


def vocab_size_for(num_bytes: int) -> int:
    """Vocabulary size for a training text of so many bytes: 8 * sqrt(bytes), at least 512 and at most 16,384.

    The number of different words of a text grows about so too (Heaps' law).
    """
    return max(MIN_VOCAB_SIZE, min(MAX_VOCAB_SIZE, 8 * math.isqrt(num_bytes)))


@dataclass(frozen=True)
class Vocabulary:
    """Which tokenizer a text is read with: one that exists, or one that is made from its training split."""

    tokenizer: Tokenizer | Kind | None = None
    """None: what the corpus itself calls for."""
    vocab_size: int | None = None
    """Number of tokens at most; None: by the amount of text for BPE, no limit for words."""
    min_count: int | None = None
    """How often a piece (or word) must occur in the training text; None: 2."""

    def __post_init__(self) -> None:
        for name, value, least in (("vocab_size", self.vocab_size, 2), ("min_count", self.min_count, 1)):
            if value is not None:
                check_count(name, value, at_least=least)
            if value is not None and isinstance(self.tokenizer, Tokenizer):
                raise ValueError(
                    f"{name} is {value}, but the tokenizer is given with its vocabulary of "
                    f"{self.tokenizer.vocab_size:,} tokens: leave {name} out, or make a tokenizer by 'bpe' or 'words'"
                )

    @classmethod
    def of(
        cls,
        tokenizer: Tokenizer | str | os.PathLike[str] | None,
        vocab_size: int | None = None,
        min_count: int | None = None,
    ) -> Vocabulary:
        """`tokenizer` is "bpe", "words", "whitespace", a tokenizer, or a path to one."""
        if not isinstance(tokenizer, Tokenizer | None):
            # "word" is an older spelling.
            kind = "whitespace" if tokenizer == "word" else tokenizer
            tokenizer = next((one for one in KINDS if one == kind), None) or load_tokenizer(tokenizer)
        return cls(tokenizer, vocab_size, min_count)

    def maker(self, default: Kind, min_count: int = MIN_COUNT) -> Tokenizer | Learner:
        """The tokenizer, or what makes one; kind and count are those where none were asked for."""
        if isinstance(self.tokenizer, Tokenizer):
            return self.tokenizer
        kind = self.tokenizer or default
        count = min_count if self.min_count is None else self.min_count
        if kind == "bpe":
            return BPELearner(count, self.vocab_size)
        return WordCounter(count, self.vocab_size, punctuation=kind == "words")


@runtime_checkable
class Learner(Protocol):
    """Reads the training text a batch at a time, then makes a tokenizer."""

    def add(self, batch: SplitBatch) -> None: ...

    def tokenizer(self) -> Tokenizer: ...


class WordCounter:
    """Counts the words of the training text, and `punctuation` as words of its own. Words too rare become `<unk>`.

    A text that has its own `<unk>` is tokenized already: it is split at white space alone, and all its words are kept.
    """

    def __init__(self, min_count: int, vocab_size: int | None = None, *, punctuation: bool) -> None:
        self._min_count, self._vocab_size, self._punctuation = min_count, vocab_size, punctuation
        self._counts: Counter[str] = Counter()
        self._num_lines = 0

    def add(self, batch: SplitBatch) -> None:
        if batch.split != "train":
            return
        for line in batch.lines:
            if line is not None:
                for piece in cut_at_spaces(line):
                    self._counts.update(piece.split())
                self._num_lines += 1
        if len(self._counts) > MAX_WORD_TYPES:
            raise ValueError(
                f"more than {MAX_WORD_TYPES} different words; use a subword tokenizer for a text of this size: 'bpe'"
            )

    def tokenizer(self) -> Tokenizer:
        separate = self._punctuation and UNK not in self._counts
        counts = _without_punctuation(self._counts) if separate else self._counts
        return word_tokenizer(
            counts,
            eos_count=self._num_lines,
            min_count=1 if UNK in counts else self._min_count,
            max_words=self._vocab_size,
            punctuation=separate,
        )


def _without_punctuation(counts: Counter[str]) -> Counter[str]:
    """Counts of words and of the punctuation beside them."""
    backend = tokenizers.Tokenizer(models.WordLevel({}, unk_token=UNK))
    separate_punctuation(backend)
    separated: Counter[str] = Counter()
    for word, count in counts.items():
        # A vocabulary's word cannot be empty, and the space that a quotation mark is told by is no part of it.
        for part, _ in backend.pre_tokenizer.pre_tokenize_str(backend.normalizer.normalize_str(word)):
            separated[part] += count
    return separated


class BPELearner:
    """Byte-level BPE: every text can be spelled, and decoding gives the text back."""

    def __init__(self, min_count: int, vocab_size: int | None = None) -> None:
        if vocab_size is not None and vocab_size < _MIN_BPE_SIZE:
            raise ValueError(
                f"vocab_size is {vocab_size}, but byte-level BPE needs at least {_MIN_BPE_SIZE}: every byte and the end of a text"
            )
        self._min_count, self._vocab_size = min_count, vocab_size
        self._parts: list[str] = []
        self._num_parts = self._num_chars = self._num_bytes = 0
        # Of every so many lines, or parts of long ones, one is learnt from: of more text than memory should hold, a part that is spread over all of it.
        self._stride = 1

    def add(self, batch: SplitBatch) -> None:
        if batch.split != "train":
            return
        for line in batch.lines:
            if line is None:
                continue
            # The line end.
            self._num_bytes += 1
            for part in cut_before_spaces(line):
                self._add(part)

    def _add(self, part: str) -> None:
        self._num_bytes += len(part.encode())
        if self._num_parts % self._stride == 0:
            self._parts.append(part)
            self._num_chars += len(part)
        self._num_parts += 1
        if self._num_chars > MAX_LEARNT_CHARS and len(self._parts) > 1:
            self._parts, self._stride = self._parts[::2], 2 * self._stride
            self._num_chars = sum(map(len, self._parts))

    def tokenizer(self) -> Tokenizer:
        if not self._parts:
            raise ValueError("no text to make a vocabulary of (0 lines given); the training text is empty")
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = _words_of_lines()
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=self._vocab_size or vocab_size_for(self._num_bytes),
            min_frequency=self._min_count,
            show_progress=False,
            special_tokens=[AddedToken(EOS, special=True, normalized=False)],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        )
        # A pre-tokenizer instance of its own: the backend's is locked during training.
        words = _words_of_lines()
        short = (text for part in self._parts for text in _with_short_words(part, words))
        backend.train_from_iterator(short, trainer)
        return Tokenizer.from_backend(backend)


def _words_of_lines() -> pre_tokenizers.PreTokenizer:
    # A line end is a token by itself, so that a text has the tokens of its lines.
    line_ends = pre_tokenizers.Split("\n", "isolated")
    return pre_tokenizers.Sequence([line_ends, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _with_short_words(text: str, pre_tokenizer: pre_tokenizers.PreTokenizer) -> Iterator[str]:
    """The text, cut within words (as `pre_tokenizer` tells them) that are longer than is learnt from, and nowhere else."""
    begin = 0
    if _LONG_RUN.search(text) is not None:
        for _, (first, end) in pre_tokenizer.pre_tokenize_str(text):
            for place in range(first + MAX_LEARNT_WORD, end, MAX_LEARNT_WORD):
                yield text[begin:place]
                begin = place
    yield text[begin:]
