"""Text to token ids and back: one small class over Hugging Face `tokenizers`."""

import hashlib
import json
import operator
import os
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final, SupportsIndex, final

import tokenizers
from tokenizers import models, pre_tokenizers

from vlhmm.data.atomic import atomic_write

EOS: Final = "<eos>"
UNK: Final = "<unk>"

# Names that end a text in published tokenizers, tried in this order where the file itself does not say.
KNOWN_EOS: Final = (
    EOS,
    "</s>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<|eot_id|>",
    "<|im_end|>",
    "[SEP]",
    "[EOS]",
)


@final
class Tokenizer:
    """A `tokenizer.json` with the roles a language model needs: which token ends a text, which stands for
    unknown words.

    Symbols such as `</s>` in the text itself are text: they never become control tokens by being typed
    (except `<eos>` and `<unk>` of a word-level tokenizer, which are words).
    """

    def __init__(self, definition: str) -> None:
        """`definition` is the text of a `tokenizer.json`."""
        try:
            fields: dict[str, Any] = json.loads(definition)
            self.backend = tokenizers.Tokenizer.from_str(definition)
        # The backend raises bare Exception for anything it cannot read.
        except Exception as error:
            raise ValueError(f"this is no tokenizer.json: {error}; give one written by `tokenizers`") from error
        self.backend.no_truncation()
        self.backend.no_padding()
        self.backend.encode_special_tokens = True
        self._definition: Final = json.dumps(fields, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
        # Of the file's own content, not of the backend's idea of it: that may change from version to version.
        self.hash: Final = hashlib.sha256(self._definition.encode()).hexdigest()
        self._ids: Final = self.backend.get_vocab(with_added_tokens=True)
        if not self._ids:
            raise ValueError("this tokenizer has no tokens (vocabulary of 0); give one that was trained")
        self.vocab_size: Final = max(self._ids.values()) + 1
        self.word_level: Final[bool] = fields["model"].get("type") == "WordLevel"
        self.eos_id: Final = self._find_eos(fields.get("post_processor"))
        self.unk_id: Final = self._find_unk(fields["model"])

    @classmethod
    def from_backend(cls, backend: tokenizers.Tokenizer, eos: str | None = None) -> "Tokenizer":
        """Wraps a tokenizer built in memory; `eos` names its end-of-text token where the name is unusual."""
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
        """Reads a `tokenizer.json`."""
        try:
            return cls(Path(path).read_text(encoding="utf-8"))
        except (ValueError, KeyError, AttributeError) as error:
            raise ValueError(f"{path}: {error}") from error

    @property
    def definition(self) -> str:
        """What `save` writes."""
        return self._definition

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the `tokenizer.json`; whole or not at all."""
        atomic_write(Path(path), self._definition.encode())

    def encode(self, text: str) -> list[int]:
        """Ids of one piece of text; nothing is added at either end."""
        return self.encode_batch([text])[0]

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Ids of each text; nothing is added at either end."""
        try:
            encodings = self.backend.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:
            raise ValueError(
                f"the text cannot be encoded: {error}; the vocabulary of {self.vocab_size} tokens lacks a word and "
                f"has no unknown token to stand for it: add {UNK!r} to the vocabulary"
            ) from error
        return [encoding.ids for encoding in encodings]

    def decode(self, ids: Iterable[SupportsIndex]) -> str:
        """The text; end-of-text tokens are line breaks, and dropped from the end."""
        pieces: list[list[int]] = [[]]
        for token in map(self._checked, ids):
            if token == self.eos_id:
                pieces.append([])
            else:
                pieces[-1].append(token)
        return "\n".join(self._decode_piece(piece) for piece in pieces).rstrip("\n")

    def token(self, token: SupportsIndex) -> str:
        """The readable name of one token."""
        return self._names[self._checked(token)]

    def tokens(self) -> list[str]:
        """The names of all tokens, by id."""
        return list(self._names)

    def token_id(self, name: str) -> int | None:
        """The id of the token of that name, None where there is none."""
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
        kind = "words" if self.word_level else "subwords"
        return f"Tokenizer({self.vocab_size:,} {kind}, {self.hash[:8]})"

    @cached_property
    def _names(self) -> list[str]:
        names = [f"<unused {i}>" for i in range(self.vocab_size)]
        for name, token in self._ids.items():
            names[token] = name
        return names

    def _decode_piece(self, ids: list[int]) -> str:
        if self.word_level:
            return " ".join(self._names[i] for i in ids)
        return self.backend.decode(ids, skip_special_tokens=False)

    def _checked(self, token: SupportsIndex) -> int:
        number = operator.index(token)
        if not 0 <= number < self.vocab_size:
            raise ValueError(
                f"token id {number} is outside 0..{self.vocab_size - 1}; these ids come from another tokenizer"
            )
        return number

    def _find_eos(self, post_processor: dict[str, Any] | None) -> int | None:
        template = (post_processor or {}).get("single") or []
        last = template[-1].get("SpecialToken", {}).get("id") if template else None
        return next((self._ids[name] for name in (last, *KNOWN_EOS) if name in self._ids), None)

    def _find_unk(self, model: dict[str, Any]) -> int | None:
        unk = model.get("unk_token")
        # Unigram models give the number instead of the name.
        return self._ids.get(unk) if isinstance(unk, str) else model.get("unk_id")


def word_tokenizer(
    words: Iterable[str] | Mapping[str, int],
    *,
    eos_count: int | None = None,
    min_count: int = 1,
    unk: bool = True,
) -> Tokenizer:
    """A word-level tokenizer on white space over the words given, or over words with their counts.

    Ids go by falling count, ties by the word. `<eos>` is always there, ranked by `eos_count` (last where None).
    Words seen fewer than `min_count` times are left out: they become `<unk>` and lend it their counts. With
    `unk=False` a text with a word outside the vocabulary is refused, unless `<unk>` is among the words.
    """
    counts = Counter(dict(words)) if isinstance(words, Mapping) else Counter(words)
    if not counts:
        raise ValueError("no words to make a vocabulary of (0 given); the training text is empty")
    rare = [word for word, count in counts.items() if count < min_count and word != UNK]
    if unk or rare:
        counts[UNK] += sum(counts.pop(word) for word in rare)
    if eos_count is not None:
        counts[EOS] += eos_count
    elif EOS not in counts:
        counts[EOS] = -1
    vocabulary = {word: i for i, (word, _) in enumerate(sorted(counts.items(), key=lambda wc: (-wc[1], wc[0])))}
    split = next((word for word in vocabulary if word.split() != [word]), None)
    if split is not None:
        raise ValueError(f"{split!r} is no word: it is empty or has white space in it; split the text first")
    if UNK in vocabulary:
        model = models.WordLevel(vocabulary, unk_token=UNK)
    else:
        # An unknown token that is not in the vocabulary makes the backend refuse unknown words.
        model = models.WordLevel(vocabulary, unk_token="")
    backend = tokenizers.Tokenizer(model)
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return Tokenizer.from_backend(backend)


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Reads a `tokenizer.json`, a folder that holds one, or a SentencePiece `.model` (which is converted).

    In a folder, the `eos_token` of a `tokenizer_config.json` beside it is respected.
    """
    path = Path(path)
    if path.is_dir():
        file = path / "tokenizer.json"
        if not file.is_file():
            raise ValueError(f"{path} has no tokenizer.json; give a folder with one, or the file itself")
        tokenizer = Tokenizer.load(file)
        eos = _configured_eos(path / "tokenizer_config.json")
        return tokenizer if eos is None else Tokenizer.from_backend(tokenizer.backend, eos)
    if not path.is_file():
        raise ValueError(f"no tokenizer at {path}; give a tokenizer.json, a folder with one, or a .model file")
    if path.suffix == ".model":
        from vlhmm.data.sentencepiece import convert_sentencepiece

        return convert_sentencepiece(path.read_bytes(), name=str(path))
    return Tokenizer.load(path)


def _configured_eos(path: Path) -> str | None:
    if not path.is_file():
        return None
    eos = json.loads(path.read_text(encoding="utf-8")).get("eos_token")
    return eos.get("content") if isinstance(eos, dict) else eos
