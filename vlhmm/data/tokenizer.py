"""Text to token ids and back: one small class over Hugging Face `tokenizers`."""

import hashlib
import json
import operator
import os
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Final, SupportsIndex, final

import tokenizers

from vlhmm.arguments import check_text
from vlhmm.data.atomic import atomic_write
from vlhmm.data.backend_errors import backend_errors
from vlhmm.data.json_file import parse_json, read_text
from vlhmm.data.punctuation import join, separates_punctuation
from vlhmm.data.spelling import check_types, is_byte_level, shown_token, why_not_every_text
from vlhmm.data.tokenizer_json import MAX_TOKENIZER_BYTES, UNK, check_merges, find_eos, find_unk, try_out

# Ids between those of tokens that no token has.
MAX_UNUSED_IDS: Final = 1 << 20


def _check_utf8(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"the text has half a character, \\u{ord(text[error.start]):04x}, at character {error.start:,}, which no UTF-8 "
            "can hold: repair it"
        ) from None


@final
class Tokenizer:
    """A `tokenizer.json` of Hugging Face `tokenizers`, with the EOS token and the unknown token.

    Symbols such as `</s>` that are typed in a text stay text: they never become control tokens. The exceptions are `<eos>` and
    `<unk>` of a word-level tokenizer, which are words.

    Args:
        definition: The text of a `tokenizer.json`.

    Attributes:
        backend: The tokenizer of Hugging Face.
        hash: SHA-256 of the definition.
        vocab_size: Number of token ids, X.
        word_level: Whether tokens are whole words.
        byte_level: Whether the names of tokens are strings of bytes, a letter each.
        separates_punctuation: Whether punctuation marks are words of their own, which decoding joins to the words beside them.
        eos_id: The EOS token, None where there is none.
        unk_id: The token of unknown words, None where there is none.

    Raises:
        ValueError: `definition` is no `tokenizer.json`, or its vocabulary is empty.

    Example:
        >>> from vlhmm.data import word_tokenizer
        >>> tokenizer = word_tokenizer(["the", "cat", "sees"])
        >>> tokenizer.vocab_size, tokenizer.tokens()
        (5, ['cat', 'sees', 'the', '<unk>', '<eos>'])
        >>> tokenizer.encode("the dog sees the cat")
        [2, 3, 1, 2, 0]
        >>> tokenizer.token(tokenizer.unk_id)
        '<unk>'
    """

    def __init__(self, definition: str) -> None:
        fields = parse_json(definition, "this is no tokenizer.json: the text")
        if not isinstance(fields, dict) or not isinstance(fields.get("model"), dict):
            raise ValueError("this is no tokenizer.json: it has no model; give one written by `tokenizers`")
        check_types(fields)
        check_merges(fields["model"])
        with backend_errors("this is no tokenizer.json: {}; give one written by `tokenizers`", quiet=True):
            self.backend = tokenizers.Tokenizer.from_str(definition)
            self.backend.no_truncation()
            self.backend.no_padding()
            self.backend.encode_special_tokens = True
            try_out(self.backend)
            self._ids: Final = self.backend.get_vocab(with_added_tokens=True)
        self._definition: Final = json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        # Of the file's own content, not of the backend's idea of it: that may change from version to version.
        self.hash: Final = hashlib.sha256(self._definition.encode()).hexdigest()
        if not self._ids:
            raise ValueError("this tokenizer has no tokens (vocabulary of 0); give one that was trained")
        self.vocab_size: Final = max(self._ids.values()) + 1
        if self.vocab_size > len(self._ids) + MAX_UNUSED_IDS:
            # Every id takes memory, in names and in models, used or not.
            raise ValueError(
                f"this tokenizer has {len(self._ids):,} tokens, but ids up to {self.vocab_size - 1:,}, so that more than "
                f"{MAX_UNUSED_IDS:,} are unused: its vocabulary is damaged"
            )
        self.byte_level: Final[bool] = is_byte_level(fields)
        self.word_level: Final[bool] = fields["model"].get("type") == "WordLevel"
        self.separates_punctuation: Final[bool] = separates_punctuation(fields)
        self.eos_id: Final = find_eos(fields.get("post_processor"), self._ids)
        self.unk_id: Final = find_unk(fields["model"], self._ids, self.vocab_size)

    @classmethod
    def from_backend(cls, backend: tokenizers.Tokenizer, eos: str | None = None) -> "Tokenizer":
        """Wrap a tokenizer of Hugging Face that is in memory.

        Args:
            backend: The tokenizer.
            eos: The name of its EOS token; None: found by its template or by the usual names.

        Returns:
            The tokenizer.

        Raises:
            ValueError: `eos` is not in the vocabulary.

        Example:
            >>> import tokenizers
            >>> backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"hello": 0, "[END]": 1, "[UNK]": 2}, "[UNK]"))
            >>> vlhmm.Tokenizer.from_backend(backend, eos="[END]").eos_id
            1
        """
        tokenizer = cls(backend.to_str())
        if eos is None or tokenizer._ids.get(eos) == tokenizer.eos_id:
            return tokenizer
        if eos not in tokenizer._ids:
            raise ValueError(f"end-of-text token {eos!r} is not among the {tokenizer.vocab_size} tokens")
        # A template that appends the token is the standard's own way to say which one ends a text.
        marked = tokenizers.Tokenizer.from_str(backend.to_str())
        marked.post_processor = tokenizers.processors.TemplateProcessing(
            single=["$A:0", f"{eos}:0"], special_tokens=[(eos, tokenizer._ids[eos])]
        )
        return cls(marked.to_str())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> "Tokenizer":
        """Read a `tokenizer.json`.

        Args:
            path: The file.

        Returns:
            The tokenizer.

        Raises:
            ValueError: The file is no `tokenizer.json`.

        Example:
            >>> lm = vlhmm.load("demo-model")
            >>> vlhmm.Tokenizer.load("demo-model/tokenizer.json") == lm.tokenizer
            True
        """
        text = read_text(path, MAX_TOKENIZER_BYTES)
        try:
            return cls(text)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def undrawn_id(self) -> int | None:
        """The unknown token, which is left out where tokens are drawn; None where there is none, or where it is the EOS too."""
        return None if self.unk_id == self.eos_id else self.unk_id

    @property
    def vocabulary(self) -> str:
        """Number and kind of the tokens, such as '5 words'."""
        return f"{self.vocab_size:,} {'words' if self.word_level else 'subwords'}"

    @property
    def definition(self) -> str:
        """What `save` writes."""
        return self._definition

    @cached_property
    def lossy_because(self) -> str | None:
        """Why some text does not come back from its tokens; None: every text does.

        Bits per byte are defined for tokenizers that spell every text alone: `<unk>` is no code for the bytes it stands for.
        """
        return why_not_every_text(json.loads(self._definition), self._ids, self.encode, self.decode)

    @property
    def spells_every_text(self) -> bool:
        """Whether `decode(encode(text)) == text` for every text."""
        return self.lossy_because is None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the `tokenizer.json` atomically.

        Args:
            path: The file.

        Example:
            >>> from vlhmm.data import word_tokenizer
            >>> tokenizer = word_tokenizer(["the", "cat", "sees"])
            >>> tokenizer.save("tokenizer.json")
            >>> vlhmm.Tokenizer.load("tokenizer.json") == tokenizer
            True
        """
        atomic_write(Path(path), self._definition.encode())

    def encode(self, text: str) -> list[int]:
        """Convert a text to token ids; no special token is added.

        Args:
            text: The text.

        Returns:
            Token ids.

        Raises:
            ValueError: A word is not in the vocabulary, and there is no unknown token.

        Example:
            >>> from vlhmm.data import word_tokenizer
            >>> word_tokenizer(["the", "cat", "sees"]).encode("the cat sees the dog")
            [2, 0, 1, 2, 3]
        """
        check_text("text", text)
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Convert several texts to token ids; no special token is added.

        Args:
            texts: The texts.

        Returns:
            Token ids of each text.

        Raises:
            ValueError: A word is not in the vocabulary, and there is no unknown token.

        Example:
            >>> from vlhmm.data import word_tokenizer
            >>> word_tokenizer(["the", "cat", "sees"]).encode_batch(["the cat", "sees"])
            [[2, 0], [1]]
        """
        texts = list(texts)
        for text in texts:
            if not text.isascii():
                _check_utf8(text)
        remedy = (
            f"the vocabulary of {self.vocab_size} tokens lacks a word and has no unknown token to stand for it: "
            f"add {UNK!r} to the vocabulary"
        )
        with backend_errors("the text cannot be encoded: {}; " + remedy.replace("{", "{{").replace("}", "}}")):
            encodings = self.backend.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """Convert token ids to a text; EOS becomes a line break, and is dropped at the end.

        Args:
            ids: Token ids.

        Returns:
            The text.

        Raises:
            ValueError: A token id is out of range.

        Example:
            >>> from vlhmm.data import word_tokenizer
            >>> tokenizer = word_tokenizer(["the", "cat", "sees"])
            >>> tokenizer.decode([*tokenizer.encode("the cat"), tokenizer.eos_id])
            'the cat'
        """
        pieces: list[list[int]] = [[]]
        for token in map(self._checked, ids):
            if token == self.eos_id:
                pieces.append([])
            else:
                pieces[-1].append(token)
        while len(pieces) > 1 and not pieces[-1]:
            pieces.pop()
        return "\n".join(self._decode_piece(piece) for piece in pieces)

    def token(self, token: SupportsIndex) -> str:
        """Return the name of a token.

        Args:
            token: The token id.

        Returns:
            The name as it is in the vocabulary.

        Raises:
            ValueError: The token id is out of range.

        Example:
            >>> from vlhmm.data import word_tokenizer
            >>> word_tokenizer(["the", "cat", "sees"]).token(1)
            'sees'
        """
        return self._names[self._checked(token)]

    def shown(self, name: str) -> str:
        """Return the name of a token as people read it.

        Names of subwords spell bytes or spaces by letters of their own: those of "café" in a byte-level vocabulary are `ĠcafÃ©`. Here
        white space is marked, since it tells the beginning of a word from its middle, and a byte that is no whole character is
        given by its number. Words are their own names.

        Args:
            name: The name as it is in the vocabulary.

        Returns:
            The token for people; several tokens may look alike.

        Example:
            >>> import tokenizers
            >>> backend = tokenizers.Tokenizer(tokenizers.models.BPE({"Ġcaf": 0, "Ã©": 1, "Ã": 2}, []))
            >>> backend.decoder = tokenizers.decoders.ByteLevel()
            >>> tokenizer = vlhmm.Tokenizer.from_backend(backend)
            >>> [tokenizer.shown(name) for name in tokenizer.tokens()]
            ['␣caf', 'é', '<0xC3>']
        """
        return name if self.word_level else shown_token(name, byte_level=self.byte_level)

    def tokens(self) -> list[str]:
        """Return the names of all tokens, in the order of their ids.

        Returns:
            The names.

        Example:
            >>> from vlhmm.data import word_tokenizer
            >>> word_tokenizer(["the", "cat", "sees"]).tokens()
            ['cat', 'sees', 'the', '<unk>', '<eos>']
        """
        return list(self._names)

    def token_id(self, name: str) -> int | None:
        """Return the id of a token.

        Args:
            name: The name of the token.

        Returns:
            The token id, None where the vocabulary has no such token.

        Example:
            >>> from vlhmm.data import word_tokenizer
            >>> tokenizer = word_tokenizer(["the", "cat", "sees"])
            >>> tokenizer.token_id("sees"), tokenizer.token_id("dog")
            (1, None)
        """
        return self._ids.get(name)

    def __getstate__(self) -> str:
        return self._definition

    def __setstate__(self, definition: str) -> None:
        self.__init__(definition)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Tokenizer) and self.hash == other.hash

    def __hash__(self) -> int:
        return hash(self.hash)

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocabulary}, {self.hash[:8]})"

    @cached_property
    def _names(self) -> list[str]:
        names = [f"<unused {i}>" for i in range(self.vocab_size)]
        for name, token in self._ids.items():
            names[token] = name
        return names

    def _decode_piece(self, ids: list[int]) -> str:
        if self.word_level:
            names = [self._names[i] for i in ids]
            return join(names) if self.separates_punctuation else " ".join(names)
        with backend_errors("these ids cannot be decoded: {}; the tokenizer is damaged"):
            return self.backend.decode(ids, skip_special_tokens=False)

    def _checked(self, token: SupportsIndex) -> int:
        number = operator.index(token)
        if not 0 <= number < self.vocab_size:
            raise ValueError(
                f"token id {number} is outside 0..{self.vocab_size - 1}; these ids come from another tokenizer"
            )
        return number
