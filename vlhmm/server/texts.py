"""A text as it is written token by token: its pieces, and where a stop string cuts it off."""

from __future__ import annotations

from collections.abc import Sequence

from vlhmm.data import Tokenizer

TAIL_TOKENS = 8
"""So many tokens before a new one decide how it is spelt."""
HALF_CHARACTER = "\ufffd"


def continuation(tokenizer: Tokenizer, prompt: Sequence[int], ids: Sequence[int]) -> str:
    """The text of `ids` as it stands after `prompt`."""
    writer = Writer(tokenizer, prompt)
    return writer.add(ids) + writer.rest()


def pieces(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """What each token adds to the text; empty for the parts of a character but its last."""
    writer = Writer(tokenizer, [])
    found = [writer.add([token]) for token in ids]
    if found:
        found[-1] += writer.rest()
    return found


class Writer:
    """An incremental detokenizer: spells tokens after a prompt, and buffers incomplete characters.

    Args:
        tokenizer: The tokenizer.
        prompt: The tokens before.
    """

    def __init__(self, tokenizer: Tokenizer, prompt: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        self._tail = list(prompt[-TAIL_TOKENS:])
        self._written = len(self._tail)
        """Tokens of the tail whose text is out."""

    def add(self, ids: Sequence[int]) -> str:
        """The text that these tokens add."""
        self._tail += ids
        text = self._new_text()
        if not text or text.endswith(HALF_CHARACTER):
            return ""
        self._cut()
        return text

    def rest(self) -> str:
        """Flushes the buffer: the incomplete character at the end."""
        text = self._new_text()
        self._cut()
        return text

    def _new_text(self) -> str:
        eos = self._tokenizer.eos_id
        before, after = self._tail[: self._written], self._tail
        # A line break at the very end is not decoded.
        spelt, whole = self._decode(before), self._decode(after)
        if before and before[-1] == eos and eos is not None:
            spelt = spelt + "\n" if whole.startswith(spelt + "\n") else spelt
        return whole[len(spelt) :] if whole.startswith(spelt) else self._decode(after[self._written :])

    def _decode(self, ids: Sequence[int]) -> str:
        return self._tokenizer.decode(ids) if ids else ""

    def _cut(self) -> None:
        self._tail = self._tail[-TAIL_TOKENS:]
        self._written = len(self._tail)


class Stops:
    """Finds the first stop string in a text that comes in pieces; a possible prefix of one is buffered.

    Args:
        stops: The stop strings.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stops)
        self._held = ""
        self.found: str | None = None

    def add(self, piece: str) -> str:
        """What can be sent on; nothing more once a stop string was found, which is cut off."""
        if self.found is not None:
            return ""
        text = self._held + piece
        places = [(place, stop) for stop in self._stops if (place := text.find(stop)) >= 0]
        if places:
            place, self.found = min(places)
            self._held = ""
            return text[:place]
        held = max((_overlap(text, stop) for stop in self._stops), default=0)
        self._held = text[len(text) - held :]
        return text[: len(text) - held]

    def rest(self) -> str:
        """Flushes the buffer at the end of the text."""
        held, self._held = self._held, ""
        return held


def _overlap(text: str, stop: str) -> int:
    """How many characters at the end of the text begin the stop string."""
    return next((size for size in range(min(len(stop) - 1, len(text)), 0, -1) if text.endswith(stop[:size])), 0)
