"""Lines of text to flat arrays of ids, fast: each distinct word is tokenized once."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
import numpy.typing as npt

from vlhmm.data.spelling import is_byte_level
from vlhmm.data.tokenizer import Tokenizer

Int32s = npt.NDArray[np.int32]
Int64s = npt.NDArray[np.int64]
EosRule = Literal["line", "document", "none"]

SPACE: Final = "▁"
# Lines have no line ends in them, so these units can never be lines.
_LINE_END: Final = "\n"
_EOS_UNIT: Final = "\n\n"
_WORDS_A_TEXT: Final = 1 << 10
_CHARS_AT_A_TIME: Final = 1 << 17
# Lines are encoded so many characters at a time: as words they take twenty times their length.
_PART_CHARS: Final = 1 << 20
_UNIT_CHARS: Final = 1 << 16
_WORD_CHARS: Final = 1 << 16
# Text that cannot be split takes two hundred bytes for each character in the backend.
MAX_UNCUT_CHARS: Final = 1 << 22
# Bounds of the cache's memory: some 150 MB.
_MAX_CACHED_UNITS: Final = 3 << 18
_MAX_CACHED_CHARS: Final = 1 << 24
_MAX_CACHED_IDS: Final = 1 << 22
# Python takes these for white space, the tokenizers' backend does not.
_SEPARATORS: Final = "\x1c\x1d\x1e\x1f"
_SINGLE_SPACE: Final = re.compile(r"(?<=\S) (?=\S)")
# Between a letter or digit and a mark: words of GPT-2 end there.
_WORD_END: Final = re.compile(r"(?<=[^\W_])(?=[^\w\s])")
# White space that is no single space between two words.
_UNEVEN_SPACE: Final = re.compile(r"^\s|\s$|\s\s|[^\S ]")


@dataclass(frozen=True)
class Encoded:
    ids: Int32s
    document_ends: Int64s
    """In tokens from the beginning of `ids`, those of earlier parts not counted."""
    words: int
    bytes: int


@dataclass(frozen=True)
class _Piece:
    """A line, a part of a long one, the line end between two of them, or with None the end of a document."""

    text: str | None
    ends_line: bool
    goes_on: bool = False
    """It begins within a word, which is counted with the piece before it."""


_DOCUMENT_END: Final = _Piece(None, False)
_NEXT_LINE: Final = _Piece(_LINE_END, False)


class LineEncoder:
    """Encodes batches of lines; the ids are those of `Tokenizer.encode` line by line, with EOS where the rule says.

    Byte-level tokenizers read words of more than 65,536 characters in parts, each as if a word began there.

    Byte-level tokenizers read a line end between two lines too, where no EOS stands for it.

    Where a tokenizer treats words one by one, a line is looked up word by word in a cache and the ids are gathered by
    numpy; the rest goes through the tokenizer line by line.
    """

    def __init__(self, tokenizer: Tokenizer, eos: EosRule, begun: Iterable[str] = ()) -> None:
        """`begun`: texts of which lines were read elsewhere before."""
        if eos != "none" and tokenizer.eos_id is None:
            raise ValueError(
                f"the tokenizer has no end-of-text token, which eos={eos!r} needs; use eos='none' or add one"
            )
        self._tokenizer = tokenizer
        self._eos: EosRule = eos
        self._begins_word = (
            np.array([tokenizer.word_level or token.startswith(SPACE) for token in tokenizer.tokens()])
            if words_are_independent(tokenizer)
            else None
        )
        self._cache = _UnitCache(tokenizer, self._begins_word)
        definition = json.loads(tokenizer.definition)
        self._joins_lines = eos != "line" and is_byte_level(definition)
        self._spaces_begin_words = _spaces_begin_words(definition)
        # Texts whose last line is not the last of its document.
        self._open = set(begun) if eos == "none" else set[str]()

    def encode(self, lines: Sequence[str | None]) -> Encoded:
        """None in `lines` ends a document. The first line begins one."""
        self._open.clear()
        parts = list(self.encode_parts(lines))
        if len(parts) == 1:
            return parts[0]
        before = np.cumsum([0, *(len(part.ids) for part in parts)])
        ends = [part.document_ends + first for part, first in zip(parts, before, strict=False)]
        return Encoded(
            np.concatenate([np.empty(0, np.int32), *(part.ids for part in parts)]),
            np.concatenate([np.empty(0, np.int64), *ends]),
            sum(part.words for part in parts),
            sum(part.bytes for part in parts),
        )

    def encode_parts(self, lines: Sequence[str | None], text: str = "") -> Iterator[Encoded]:
        """The same, a bounded number of characters at a time. `text`: which of several texts that are read by turns goes on."""
        return map(self._encode_part, self._parts(self._joined(lines, text) if self._joins_lines else lines))

    def _joined(self, lines: Sequence[str | None], text: str) -> Iterator[str | None]:
        """The lines, and line ends where a document goes on."""
        for line in lines:
            if line is not None and text in self._open:
                yield _LINE_END
            yield line
            if line is not None:
                self._open.add(text)
            elif self._eos == "document":
                self._open.discard(text)

    def _parts(self, lines: Iterable[str | None]) -> Iterator[list[_Piece]]:
        """The same lines, a bounded number of characters at a time; long ones are cut where that changes no id."""
        part: list[_Piece] = []
        num_chars = 0
        for line in lines:
            for piece in (_DOCUMENT_END,) if line is None else self._pieces(line):
                part.append(piece)
                num_chars += len(piece.text or "")
                if num_chars >= _PART_CHARS:
                    yield part
                    part, num_chars = [], 0
        yield part

    def _pieces(self, line: str) -> Iterator[_Piece]:
        if line is _LINE_END:
            yield _NEXT_LINE
        elif self._spaces_begin_words:
            yield from _as_pieces(cut_before_spaces(line))
        elif len(line) <= _PART_CHARS:
            yield _Piece(line, True)
        elif self._may_be_cut(line):
            yield from _as_pieces(cut_at_spaces(line), at_spaces=True)
        elif len(line) <= MAX_UNCUT_CHARS:
            yield _Piece(line, True)
        else:
            raise ValueError(
                f"a line of {len(line):,} characters, but the tokenizer reads a line as a whole, and takes memory for "
                f"{MAX_UNCUT_CHARS:,} at most: break the lines"
            )

    def _may_be_cut(self, line: str) -> bool:
        """What `_splits` says, without a list of all words."""
        if self._begins_word is None:
            return False
        if self._tokenizer.word_level:
            return not any(separator in line for separator in _SEPARATORS)
        return SPACE not in line and _UNEVEN_SPACE.search(line) is None

    def _encode_part(self, pieces: Sequence[_Piece]) -> Encoded:
        units: list[str] = []
        document_ends: list[int] = []
        words = num_bytes = 0
        for piece in pieces:
            if piece.text is None:
                if self._eos == "document":
                    units.append(_EOS_UNIT)
                document_ends.append(len(units))
                continue
            if piece is _NEXT_LINE:
                # Its byte is counted with the line before it.
                units.append(_LINE_END)
                continue
            piece_words = piece.text.split()
            words += len(piece_words) - piece.goes_on
            # The line end, or the space that the line was cut at.
            num_bytes += len(piece.text.encode()) + (piece.ends_line or not self._spaces_begin_words)
            if self._splits(piece.text, piece_words):
                units += piece_words
            elif piece.text:
                units.append(piece.text)
            if self._eos == "line" and piece.ends_line:
                units.append(_EOS_UNIT)
        if self._cache.full:
            self._cache = _UnitCache(self._tokenizer, self._begins_word)
        ids, lengths = self._cache.look_up(units)
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
        return Encoded(ids, ends[np.array(document_ends, np.int64)], words, num_bytes)

    def _splits(self, line: str, words: list[str]) -> bool:
        """Whether the line's ids are those of its words one after the other."""
        if self._begins_word is None:
            return False
        if self._tokenizer.word_level:
            return not any(separator in line for separator in _SEPARATORS)
        # Runs of spaces, and spaces at the ends, have tokens of their own.
        return SPACE not in line and " ".join(words) == line


class _UnitCache(dict[str, int]):
    """A cache: units are numbered in the order of first lookup, with the token ids of each."""

    def __init__(self, tokenizer: Tokenizer, begins_word: npt.NDArray[np.bool_] | None) -> None:
        super().__init__({_EOS_UNIT: 0})
        self._tokenizer = tokenizer
        self._new: list[str] = []
        self._num_chars = 0
        self._ids = np.array([] if tokenizer.eos_id is None else [tokenizer.eos_id], np.int32)
        # Unit i has the ids from starts[i] on, lengths[i] of them.
        self._starts = np.zeros(1, np.int64)
        self._lengths = np.array([len(self._ids)], np.int64)
        # Indexed by token; None if word boundaries cannot be recovered from tokens.
        self._begins_word = begins_word

    @property
    def full(self) -> bool:
        too_long = self._num_chars > _MAX_CACHED_CHARS or len(self._ids) > _MAX_CACHED_IDS
        return too_long or len(self) > _MAX_CACHED_UNITS

    def look_up(self, units: list[str]) -> tuple[Int32s, Int64s]:
        """The ids of all units one after the other, and how many each has."""
        numbers = np.fromiter(map(self.__getitem__, units), np.int64, len(units))
        if self._new:
            self._encode_new()
        lengths = self._lengths[numbers]
        shift = self._starts[numbers] - (np.cumsum(lengths) - lengths)
        return self._ids[np.repeat(shift, lengths) + np.arange(lengths.sum())], lengths

    def __missing__(self, unit: str) -> int:
        self._new.append(unit)
        self[unit] = number = len(self)
        return number

    def _encode_new(self) -> None:
        new = np.array(self._new, dtype=object)
        self._num_chars += sum(map(len, self._new))
        self._new.clear()
        # Words are encoded in one batch, as text: one call for each word costs several times as much.
        are_words = np.fromiter((self._begins_word is not None and is_word(unit) for unit in new), bool, len(new))
        lengths = np.empty(len(new), np.int64)
        word_ids, lengths[are_words] = self._encode_words(new[are_words].tolist())
        other_ids, lengths[~are_words] = _encode_texts(self._tokenizer, new[~are_words].tolist())
        starts = np.empty(len(new), np.int64)
        for chosen, begin in ((are_words, 0), (~are_words, len(word_ids))):
            starts[chosen] = len(self._ids) + begin + np.cumsum(lengths[chosen]) - lengths[chosen]
        self._starts = np.concatenate([self._starts, starts])
        self._lengths = np.concatenate([self._lengths, lengths])
        self._ids = np.concatenate([self._ids, word_ids, other_ids])

    def _encode_words(self, words: list[str]) -> tuple[Int32s, Int64s]:
        """The ids of all words one after the other, and how many each has."""
        if self._begins_word is None or not words:
            return np.empty(0, np.int32), np.empty(0, np.int64)
        texts = [" ".join(words[i : i + _WORDS_A_TEXT]) for i in range(0, len(words), _WORDS_A_TEXT)]
        ids, _ = _encode_texts(self._tokenizer, texts)
        begins = np.flatnonzero(self._begins_word[ids])
        if len(begins) != len(words):
            raise RuntimeError(
                f"{len(words)} words gave {len(begins)} beginnings of words; the tokenizer is inconsistent"
            )
        return ids, np.diff(begins, append=len(ids))


def _encode_texts(tokenizer: Tokenizer, texts: list[str]) -> tuple[Int32s, Int64s]:
    """The ids of all texts one after the other, and how many each has.

    A few texts at a time: the backend takes a hundred bytes for a token, an array four.
    """
    parts = [np.empty(0, np.int32)]
    begin = num_chars = 0
    for end, text in enumerate(texts, start=1):
        num_chars += len(text)
        if num_chars >= _CHARS_AT_A_TIME or end == len(texts):
            parts += [np.array(ids, np.int32) for ids in tokenizer.encode_batch(texts[begin:end])]
            begin, num_chars = end, 0
    return np.concatenate(parts), np.array([len(part) for part in parts[1:]], np.int64)


def cut_at_spaces(line: str) -> Iterator[str]:
    """A long line in pieces of bounded length where it has spaces; each cut takes one of them out."""
    begin = 0
    while (end := line.find(" ", begin + _PART_CHARS)) >= 0:
        yield line[begin:end]
        begin = end + 1
    yield line[begin:]


def cut_before_spaces(line: str) -> Iterator[str]:
    """A long line in pieces of bounded length that begin with a single space before a word.

    Where there is none for as many characters, with a mark after a letter or a digit, as in languages without spaces. Neither changes
    an id. Where there is none of these either, the line is cut all the same: a word of so many letters is read in parts.
    """
    begin = 0
    while len(line) - begin > _UNIT_CHARS:
        least, most = begin + _UNIT_CHARS, begin + _UNIT_CHARS + _WORD_CHARS
        found = _SINGLE_SPACE.search(line, least, most) or _WORD_END.search(line, least, most)
        if found is None and len(line) <= most:
            break
        end = most if found is None else found.start()
        yield line[begin:end]
        begin = end
    yield line[begin:]


def _as_pieces(texts: Iterator[str], *, at_spaces: bool = False) -> Iterator[_Piece]:
    """Of one line; `at_spaces`: each cut took a space out."""
    text, goes_on = next(texts), False
    for following in texts:
        yield _Piece(text, False, goes_on)
        text, goes_on = following, not (at_spaces or text[-1].isspace() or following[0].isspace())
    yield _Piece(text, True, goes_on)


def is_word(unit: str) -> bool:
    return SPACE not in unit and unit.split() == [unit]


def words_are_independent(tokenizer: Tokenizer) -> bool:
    """Whether the ids of a line with single spaces are the ids of its words one after the other.

    True for word-level tokenizers on white space, and for SentencePiece-like ones whose words all begin with the
    space symbol and where no token reaches from one word into the next.
    """
    fields: dict[str, Any] = json.loads(tokenizer.backend.to_str())
    normalizer, pre_tokenizer = fields["normalizer"], fields["pre_tokenizer"]
    if tokenizer.word_level:
        return normalizer is None and pre_tokenizer == {"type": "WhitespaceSplit"}
    prefixed = normalizer == {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": SPACE},
            {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
        ],
    }
    return (
        fields["model"]["type"] == "BPE"
        and prefixed
        and tokenizer.token_id(SPACE) is not None
        and pre_tokenizer in (None, WORD_SPLIT)
        and not any(token["normalized"] for token in fields["added_tokens"])
        and not any(reaches_over_words(token) for token in tokenizer.tokens())
    )


def _spaces_begin_words(definition: dict[str, Any]) -> bool:
    """Whether the ids of a line are those of its parts, where it is cut before single spaces.

    So it is where the text is split as GPT-2 does, and nowhere joined again.
    """
    kind = definition.get("pre_tokenizer") or {}
    steps = kind.get("pretokenizers", [kind])
    splits = steps[-1] | {"trim_offsets": True} == _GPT2_SPLIT and all(step == _LINE_SPLIT for step in steps[:-1])
    return splits and definition.get("normalizer") is None and definition["model"]["type"] == "BPE"


def reaches_over_words(token: str) -> bool:
    """Whether a token has the space symbol after another character."""
    return SPACE in token.lstrip(SPACE)


_GPT2_SPLIT: Final = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
_LINE_SPLIT: Final = {"type": "Split", "pattern": {"String": "\n"}, "behavior": "Isolated", "invert": False}

# A word with the spaces before it, as the backend serialises that split.
WORD_SPLIT: Final = {
    "type": "Split",
    "pattern": {"Regex": f"{SPACE}+[^{SPACE}]*|[^{SPACE}]+"},
    "behavior": "Isolated",
    "invert": False,
}
