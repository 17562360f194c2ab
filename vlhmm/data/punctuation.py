"""Words and punctuation as tokens of their own, and a text put together from them again."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers

# Quotation marks that open are told from those that close as in the Penn Treebank: `` and '' for ", ` for an opening '.
_OPENING: Final = r"(?<![^\s(\[{<—–-])"
_SPELT: Final = {"``": '"', "''": '"', "`": "'"}
# A word may have apostrophes, hyphens and points inside, a number commas and colons too. Of other characters a run of the same
# one is a token.
_LETTERS: Final = r"[\p{L}\p{M}\p{N}_]"
_TOKEN: Final = (
    rf"<unk>|<eos>|{_LETTERS}+(?:(?:['’.‐-]|(?<=\p{{N}})[,:](?=\p{{N}})){_LETTERS}+)*" + r"|([^\p{L}\p{M}\p{N}_\s])\1*"
)
_NO_SPACE_BEFORE: Final = frozenset(".,;:!?%)]}’”»…'")
_NO_SPACE_AFTER: Final = frozenset("([{‘“«`$£€¿¡#")
_NO_SPACE_AROUND: Final = ("--", "—", "/")
# In a tokenizer.json: punctuation is joined to the words beside it.
_DECODER: Final = {"type": "WordPiece", "prefix": "##", "cleanup": True}


def separate_punctuation(backend: tokenizers.Tokenizer) -> None:
    """Makes a backend of whole words read punctuation as tokens of its own."""
    quotes = [(_OPENING + r"\"(?=\S)", "``"), ('"', "''"), (_OPENING + r"'(?=\S)", "`")]
    backend.normalizer = normalizers.Sequence(
        [normalizers.Replace(tokenizers.Regex(mark), name) for mark, name in quotes]
    )
    split = pre_tokenizers.Split(tokenizers.Regex(_TOKEN), "isolated")
    backend.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), split])
    backend.decoder = decoders.WordPiece(prefix="##", cleanup=True)


def separates_punctuation(definition: dict[str, Any]) -> bool:
    """Whether a tokenizer.json is one of `separate_punctuation`."""
    return definition["model"].get("type") == "WordLevel" and definition.get("decoder") == _DECODER


def spelling(name: str) -> str:
    """The text of a token."""
    return _SPELT.get(name, name)


def joins_before(name: str) -> bool:
    """Whether no space stands before a token."""
    return name in _NO_SPACE_AROUND or set(name) <= _NO_SPACE_BEFORE


def joins_after(name: str) -> bool:
    """Whether no space stands after a token."""
    return name in _NO_SPACE_AROUND or set(name) <= _NO_SPACE_AFTER


def join(names: Iterable[str]) -> str:
    """The text of tokens."""
    text = list[str]()
    joined = True
    for name in names:
        if not (joined or joins_before(name)):
            text.append(" ")
        text.append(spelling(name))
        joined = joins_after(name)
    return "".join(text)
