"""A text that is fed bit by bit, as text or as token ids."""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from vlhmm.data import Tokenizer
from vlhmm.stream import Stream
from vlhmm.text.answers import TokenScore
from vlhmm.text.pieces import encode_after

TAIL_CHARACTERS = 64
"""So much of the text fed last is kept, to encode what follows as it stands there."""


class TextStream:
    """One text, equal to scoring it whole, in constant memory.

    Token ids may be cut anywhere. Text may be cut between words, before or after the white space: each piece is encoded as it
    stands after the words before it, and white space at its end waits for the next piece. A cut inside a word makes two words
    of it, or other subwords than the whole text has: feed ids where that can happen.
    """

    def __init__(self, stream: Stream, tokenizer: Tokenizer) -> None:
        self._stream, self._tokenizer = stream, tokenizer
        self._tail = self._held = ""

    @property
    def log_prob(self) -> float:
        """log p of all that was fed."""
        return float(self._stream.log_prob[0])

    @property
    def num_tokens(self) -> int:
        return int(self._stream.num_tokens[0])

    def feed(self, piece: str | Sequence[int]) -> list[TokenScore]:
        """log p of each token given all that was fed before."""
        if isinstance(piece, str):
            piece = self._held + piece
            text = piece.rstrip()
            ids = encode_after(self._tokenizer, self._tail, text)
            self._held, self._tail = piece[len(text) :], (self._tail + text)[-TAIL_CHARACTERS:]
        else:
            ids = list(piece)
            self._held = self._tail = ""
        if not ids:
            return []
        log_probs = self._stream.feed([ids])[0].tolist()
        return [TokenScore(self._tokenizer.token(token), value) for token, value in zip(ids, log_probs, strict=True)]

    def next_tokens(self, top: int = 10) -> list[tuple[str, float]]:
        """The likeliest next tokens with their probabilities."""
        best = self._stream.next_tokens(top)
        names = [self._tokenizer.token(token) for token in best.tokens[0].tolist()]
        return list(zip(names, best.probs[0].tolist(), strict=True))

    def fork(self) -> TextStream:
        """A stream that has been fed the same and goes its own way."""
        forked = copy(self)
        forked._stream = self._stream.fork()
        return forked
