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
    """A text that is fed piece by piece, in constant memory; the scores are those of the whole text.

    Token ids may be cut anywhere. A text may be cut between words, before or after the white space: each piece is encoded as it
    stands after the words before it, and white space at its end waits for the next piece. A cut inside a word makes two words of
    it, or other subwords than the whole text has; feed token ids where that can happen.

    Args:
        stream: A stream of the HMM with one text.
        tokenizer: The tokenizer of the model.

    Example:
        >>> lm = vlhmm.load("demo-model")
        >>> stream = lm.stream()
        >>> scores = [*stream.feed("the cat "), *stream.feed("sees a bird")]
        >>> [score.token for score in scores]
        ['the', 'cat', 'sees', 'a', 'bird']
        >>> abs(stream.log_prob - lm.score("the cat sees a bird").log_prob) < 1e-5
        True
    """

    def __init__(self, stream: Stream, tokenizer: Tokenizer) -> None:
        self._stream, self._tokenizer = stream, tokenizer
        self._tail = self._held = ""

    @property
    def log_prob(self) -> float:
        """log p of everything that was fed."""
        return float(self._stream.log_prob[0])

    @property
    def num_tokens(self) -> int:
        """Number of tokens that were fed."""
        return int(self._stream.num_tokens[0])

    def feed(self, piece: str | Sequence[int]) -> list[TokenScore]:
        """Feed a piece of text and return log p(token | everything fed before) of its tokens.

        Args:
            piece: Text, or token ids.

        Returns:
            Tokens with their log-probabilities; none for an empty piece.

        Raises:
            ValueError: A token id is out of range.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> scores = lm.stream().feed("the cat")
            >>> scores[1].token, round(scores[1].log_prob, 1)
            ('cat', -0.4)
        """
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

    def next_tokens(self, top: int = 10, *, unk: bool = False) -> list[tuple[str, float]]:
        """Return the most likely next tokens.

        Args:
            top: Number of tokens.
            unk: Return the unknown token too; without it, probabilities are p(token | text, the token is not unknown).

        Returns:
            Tokens with their probabilities, most likely first.

        Raises:
            ImpossibleTextError: The text fed so far has probability zero.
            ValueError: `top` is below 1.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> stream = lm.stream()
            >>> _ = stream.feed("the dog")
            >>> [token for token, prob in stream.next_tokens(2)]
            ['sees', 'hears']
        """
        best = self._stream.next_tokens(top, without=None if unk else self._tokenizer.undrawn_id)
        names = [self._tokenizer.token(token) for token in best.tokens[0].tolist()]
        return list(zip(names, best.probs[0].tolist(), strict=True))

    def fork(self) -> TextStream:
        """Return an independent stream that has been fed the same text.

        Returns:
            The copy. Feeding one does not change the other.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> stream = lm.stream()
            >>> _ = stream.feed("the dog")
            >>> branch = stream.fork()
            >>> _ = branch.feed(" sees")
            >>> stream.num_tokens, branch.num_tokens
            (2, 3)
        """
        forked = copy(self)
        forked._stream = self._stream.fork()
        return forked
