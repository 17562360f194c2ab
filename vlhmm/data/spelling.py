"""What tokens spell: whether a tokenizer can spell every text, and its tokens as people read them."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from typing import Any, Final

from tokenizers import pre_tokenizers

from vlhmm.data.json_file import one_line

# What normalisers drop, change or join: spaces, line ends, compatibility characters, combining marks, case, accents.
_PROBES: Final = (
    "",
    "a",
    "A",
    "a b",
    "a  b ",
    "\ta",
    "a\r\nb",
    "a\nb\n\nc\n",
    "\u00e9e\u0301",
    "\uff21\u00bd\ufb01",
    "\u4e2d\u6587\U0001f469\u200d\U0001f680",
    "\x00\x7f\u200b\u00a0",
)


_STEPS: Final = {
    "model": "",
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}
"""The parts of a tokenizer.json, and the name of the list where one has several steps."""


def check_types(definition: dict[str, Any]) -> None:
    """Refuse a part whose type is no name: the backend would guess it by the other fields."""
    for part, several in _STEPS.items():
        whole = definition.get(part)
        steps = whole.get(several) if isinstance(whole, dict) else None
        for step in (whole, *(steps if isinstance(steps, list) else ())):
            kind = step.get("type", "") if isinstance(step, dict) else ""
            if not isinstance(kind, str):
                raise ValueError(
                    f"this is no tokenizer.json: the type of its {part} is {one_line(kind)}, expected a name"
                )


def is_byte_level(definition: dict[str, Any]) -> bool:
    """Whether the tokens of a tokenizer.json are strings of bytes."""
    return "ByteLevel" in _decoders(definition)


def why_not_every_text(
    definition: dict[str, Any],
    names: Collection[str],
    encode: Callable[[str], list[int]],
    decode: Callable[[list[int]], str],
) -> str | None:
    """What keeps a tokenizer from spelling every text; None: nothing."""
    if definition["model"].get("type") == "WordLevel":
        return "its tokens are whole words, so that other words cannot be spelled"
    if is_byte_level(definition):
        missing = [character for character in pre_tokenizers.ByteLevel.alphabet() if character not in names]
    elif definition["model"].get("byte_fallback"):
        missing = [name for name in (f"<0x{byte:02X}>" for byte in range(256)) if name not in names]
    else:
        return "it has no tokens of single bytes for characters that it does not know"
    if missing:
        return f"it has no token for {len(missing)} of the 256 bytes"
    changed = next((text for text in _PROBES if decode(encode(text)) != text), None)
    return None if changed is None else f"texts do not come back from their tokens unchanged, such as {changed!r}"


def shown_token(name: str, *, byte_level: bool) -> str:
    """A piece of a text as people read it: white space marked, bytes that are no whole characters by their numbers."""
    if byte_level and all(character in _BYTES for character in name):
        name = shown_bytes(bytes(_BYTES[character] for character in name))
    return name.translate(_MARKS)


def shown_bytes(spelling: bytes) -> str:
    """UTF-8 as text, with `<0xE2>` for a byte that belongs to no whole character."""
    # Half characters stand for the bytes that cannot be decoded.
    decoded = spelling.decode("utf-8", "surrogateescape")
    return _NO_CHARACTER.sub(lambda found: f"<0x{ord(found[0]) - 0xDC00:02X}>", decoded)


def byte_alphabet() -> dict[str, int]:
    """Which byte each character of a byte-level vocabulary stands for: printable ones for themselves."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


_BYTES: Final = byte_alphabet()
_MARKS: Final = str.maketrans({" ": "␣", "▁": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
_NO_CHARACTER: Final = re.compile("[\udc80-\udcff]")


def _decoders(definition: dict[str, Any]) -> set[str]:
    decoder = definition.get("decoder") or {}
    return {step.get("type", "") for step in decoder.get("decoders", [decoder])}
