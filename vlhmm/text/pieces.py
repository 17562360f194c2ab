"""Text in pieces: as it comes in, or around gaps."""

from __future__ import annotations

import re
from dataclasses import dataclass

from vlhmm.data import Tokenizer

MAX_GAP_TOKENS = 20
_GAP = re.compile(r"_{3,}(?:\{([^}]*)\})?")
_BOUNDS = re.compile(r"\s*(\d+)\s*(?:,\s*(\d+)\s*)?")


def encode_after(tokenizer: Tokenizer, before: str, piece: str) -> list[int]:
    """The ids of `piece` where it stands after the text `before`.

    Subword tokenizers give the first word of a text other tokens than the same word further on. Where the cut is inside a
    word, so that the tokens of `before` change when `piece` follows, the piece is encoded by itself.
    """
    head, whole = tokenizer.encode(before), tokenizer.encode(before + piece)
    # An unknown token swallows what follows it.
    goes_on = not tokenizer.word_level and whole[: len(head)] == head and head[-1:] != [tokenizer.unk_id]
    return whole[len(head) :] if goes_on else tokenizer.encode(piece)


@dataclass(frozen=True)
class Gap:
    """Between `least` and `most` tokens are missing."""

    least: int
    most: int


def split_at_gaps(text: str, default: Gap | None) -> tuple[list[str], list[Gap | None]]:
    """The pieces around the gaps, one more than there are gaps: ___ is `default`, ___{2} two tokens, ___{1,4} one to four."""
    pieces, gaps, end = list[str](), list[Gap | None](), 0
    for found in _GAP.finditer(text):
        pieces.append(text[end : found.start()])
        gaps.append(default if found[1] is None else _bounds(found[0], found[1]))
        end = found.end()
    if not gaps:
        raise ValueError("the text has 0 gaps, but at least 1 is needed: write ___ where a token is missing")
    for gap in gaps:
        if gap is not None and not 1 <= gap.least <= gap.most <= MAX_GAP_TOKENS:
            raise ValueError(
                f"a gap has between {gap.least} and {gap.most} tokens, but it needs at least 1 and at most {MAX_GAP_TOKENS}, "
                "the smaller number first"
            )
    return [*pieces, text[end:]], gaps


def _bounds(gap: str, inside: str) -> Gap:
    numbers = _BOUNDS.fullmatch(inside)
    if numbers is None:
        raise ValueError(f"{gap!r} is no gap: write ___ for one token, ___{{2}} for two, ___{{1,4}} for one to four")
    return Gap(int(numbers[1]), int(numbers[2] or numbers[1]))


def encode_pieces(tokenizer: Tokenizer, pieces: list[str]) -> list[list[int]]:
    """The ids of the pieces around gaps. White space before a gap belongs to what is filled in."""
    # What is in a gap is not known; any word serves as what comes before the piece after it.
    return [
        encode_after(tokenizer, "a" if number else "", piece.rstrip() if number + 1 < len(pieces) else piece)
        for number, piece in enumerate(pieces)
    ]
