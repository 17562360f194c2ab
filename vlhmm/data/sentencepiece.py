"""SentencePiece `.model` files converted to `tokenizer.json`, id for id."""

import json
import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import tokenizers
from tokenizers import decoders, models, normalizers

from vlhmm.data.backend_errors import backend_errors
from vlhmm.data.encode import SPACE, WORD_SPLIT, reaches_over_words
from vlhmm.data.tokenizer import Tokenizer

# Of every piece all ways to cut it in two are tried. SentencePiece itself makes 16 unless told otherwise.
MAX_PIECE_CHARS = 512


class PieceKind(IntEnum):
    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class ModelKind(IntEnum):
    UNIGRAM = 1
    BPE = 2
    WORD = 3
    CHAR = 4


@dataclass(frozen=True)
class Piece:
    text: str
    score: float
    kind: PieceKind


@dataclass(frozen=True)
class SentencePieceModel:
    pieces: list[Piece]
    kind: ModelKind
    byte_fallback: bool
    space_is_suffix: bool
    eos_id: int
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_spaces: bool
    escape_spaces: bool


def read_sentencepiece(data: bytes, name: str = "the file") -> SentencePieceModel:
    """Parses the protocol buffer of a `.model` file."""
    try:
        message = list(_fields(data))
        trainer = dict(_fields(_last_bytes(message, 2)))
        normalizer = dict(_fields(_last_bytes(message, 3)))
        pieces = [_piece(dict(_fields(value))) for field, value in message if field == 1]
        model = SentencePieceModel(
            pieces=pieces,
            kind=ModelKind(trainer.get(3, 1)),
            byte_fallback=bool(trainer.get(35, 0)),
            space_is_suffix=bool(trainer.get(24, 0)),
            eos_id=_signed(trainer.get(42, 2)),
            charsmap=normalizer.get(2, b""),
            add_dummy_prefix=bool(normalizer.get(3, 1)),
            remove_extra_spaces=bool(normalizer.get(4, 1)),
            escape_spaces=bool(normalizer.get(5, 1)),
        )
    except (ValueError, IndexError, KeyError, TypeError, struct.error, AttributeError) as error:
        raise ValueError(f"{name} is no SentencePiece model: {error}; give a .model file") from error
    if not pieces:
        raise ValueError(f"{name} is no SentencePiece model: it has 0 pieces; give a .model file")
    return model


def convert_sentencepiece(data: bytes, name: str = "the file") -> Tokenizer:
    """A tokenizer with the ids of SentencePiece, from the bytes of a `.model` file.

    BPE and unigram models. BPE merges are all pairs of pieces that make a piece, ranked by the score of what they
    make: the order of the ids is not that order. One difference is known: the name of a control symbol typed in the text
    (`</s>`) is text to SentencePiece, but a unigram model, and a BPE model right after a user-defined symbol, finds it.
    """
    model = read_sentencepiece(data, name)
    _check_supported(model, name)
    # The backend panics on a damaged table of characters, for one.
    refused = name.replace("{", "{{").replace("}", "}}") + " is no SentencePiece model: {}; give a .model file"
    with backend_errors(refused, quiet=True):
        backend = _backend(model)
    symbols = [piece.text for piece in model.pieces if piece.kind is PieceKind.USER_DEFINED]
    splits: list[dict[str, Any]] = []
    if symbols:
        _check_symbols(model, backend, symbols, name)
        longest_first = "|".join(re.escape(symbol) for symbol in sorted(symbols, key=len, reverse=True))
        splits.append({"type": "Split", "pattern": {"Regex": longest_first}, "behavior": "Isolated", "invert": False})
    # Short words instead of whole lines make the backend's cache work; the ids are the same where no piece has a
    # space inside.
    if not any(reaches_over_words(p.text) for p in model.pieces if p.kind is PieceKind.NORMAL):
        splits.append(WORD_SPLIT)
    fields = json.loads(backend.to_str())
    if symbols and model.kind is ModelKind.BPE:
        # Symbols are no merges: a part of the text that is a token as a whole is taken as that token.
        fields["model"]["ignore_merges"] = True
    if splits:
        fields["pre_tokenizer"] = splits[0] if len(splits) == 1 else {"type": "Sequence", "pretokenizers": splits}
    eos = model.pieces[model.eos_id].text if 0 <= model.eos_id < len(model.pieces) else None
    with backend_errors(refused):
        return Tokenizer.from_backend(tokenizers.Tokenizer.from_str(json.dumps(fields)), eos)


def _backend(model: SentencePieceModel) -> tokenizers.Tokenizer:
    backend = tokenizers.Tokenizer(_bpe(model) if model.kind is ModelKind.BPE else _unigram(model))
    backend.normalizer = _normalizer(model)
    backend.decoder = _decoder(model)
    backend.add_special_tokens(
        [
            tokenizers.AddedToken(piece.text, special=True, normalized=False)
            for piece in model.pieces
            if piece.kind in (PieceKind.CONTROL, PieceKind.UNKNOWN)
        ]
    )
    # A table that is damaged inside is found at its first use.
    backend.normalizer.normalize_str("A \u00c5 \uff21")
    return backend


def _check_supported(model: SentencePieceModel, name: str) -> None:
    unsupported = {
        f"model type {model.kind.name}": model.kind not in (ModelKind.BPE, ModelKind.UNIGRAM),
        f"a piece of more than {MAX_PIECE_CHARS} characters": any(len(p.text) > MAX_PIECE_CHARS for p in model.pieces),
        "unused pieces": any(piece.kind is PieceKind.UNUSED for piece in model.pieces),
        "treat_whitespace_as_suffix": model.space_is_suffix,
        "escape_whitespaces=false": not model.escape_spaces,
    }
    for feature, present in unsupported.items():
        if present:
            raise ValueError(f"{name} has {feature}, which no tokenizer.json can express; retrain it without")


def _bpe(model: SentencePieceModel) -> models.BPE:
    vocabulary = {piece.text: i for i, piece in enumerate(model.pieces)}
    normal = {piece.text: piece.score for piece in model.pieces if piece.kind is PieceKind.NORMAL}
    pairs = [
        (text[:cut], text[cut:])
        for text in normal
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    # SentencePiece takes the leftmost of equal scores. A list of merges has no positions, but in a run of one
    # character, where equal scores occur, the leftmost is the one that grows the longest piece.
    pairs.sort(key=lambda pair: (-normal["".join(pair)], -len(pair[0]) - len(pair[1]), -len(pair[0])))
    unk = next((piece.text for piece in model.pieces if piece.kind is PieceKind.UNKNOWN), None)
    return models.BPE(vocabulary, pairs, unk_token=unk, fuse_unk=True, byte_fallback=model.byte_fallback)


def _unigram(model: SentencePieceModel) -> models.Unigram:
    findable = (PieceKind.NORMAL, PieceKind.USER_DEFINED)
    # The score of an unknown character hangs on the lowest score there is, which control symbols must not change.
    lowest = min(piece.score for piece in model.pieces if piece.kind is PieceKind.NORMAL)
    vocabulary = [(piece.text, piece.score if piece.kind in findable else lowest) for piece in model.pieces]
    unk = next((i for i, piece in enumerate(model.pieces) if piece.kind is PieceKind.UNKNOWN), None)
    return models.Unigram(vocabulary, unk, model.byte_fallback)


def _normalizer(model: SentencePieceModel) -> normalizers.Normalizer:
    escape = normalizers.Replace(" ", SPACE)
    prefix = [normalizers.Prepend(SPACE)] if model.add_dummy_prefix else []
    charsmap = [normalizers.Precompiled(model.charsmap)] if model.charsmap else []
    if not model.remove_extra_spaces:
        return normalizers.Sequence([*charsmap, *prefix, escape])
    single_spaces = normalizers.Replace(tokenizers.Regex("^ +|(?<= ) +"), "")
    # Last, because the space symbol itself at the end of a text goes too.
    strip_end = normalizers.Replace(tokenizers.Regex(f"{SPACE}+$"), "")
    return normalizers.Sequence([*charsmap, single_spaces, *prefix, escape, strip_end])


def _decoder(model: SentencePieceModel) -> decoders.Decoder:
    steps: list[decoders.Decoder] = [decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    if model.add_dummy_prefix:
        steps.append(decoders.Strip(" ", 1, 0))
    return decoders.Sequence(steps)


def _check_symbols(model: SentencePieceModel, backend: tokenizers.Tokenizer, symbols: list[str], name: str) -> None:
    """User-defined symbols are cut out of the normalised text, and a part of it that is a token is taken whole.

    Refused where either would change ids.
    """
    prefix = SPACE if model.add_dummy_prefix else ""
    for symbol in symbols:
        with backend_errors("the normalizer fails: {}; the SentencePiece model is damaged"):
            normalized = backend.normalizer.normalize_str(symbol) if backend.normalizer else symbol
        if normalized.removeprefix(prefix) != symbol:
            raise ValueError(
                f"{name} has the user-defined symbol {symbol!r}, which its normalizer turns into {normalized!r}; "
                "no tokenizer.json can express that: retrain it without"
            )
    for piece in model.pieces:
        if model.kind is ModelKind.BPE and piece.kind is PieceKind.NORMAL:
            made = [token.value for token in backend.model.tokenize(piece.text)]
            if made != [piece.text]:
                raise ValueError(
                    f"{name} has user-defined symbols and the piece {piece.text!r}, which its own merges never make "
                    f"({made}); no tokenizer.json can express that: retrain it without symbols"
                )


def _piece(fields: dict[int, Any]) -> Piece:
    return Piece(fields[1].decode(), struct.unpack("<f", fields.get(2, bytes(4)))[0], PieceKind(fields.get(3, 1)))


def _last_bytes(message: list[tuple[int, Any]], field: int) -> bytes:
    value = next((value for number, value in reversed(message) if number == field), b"")
    if not isinstance(value, bytes):
        raise ValueError(f"field {field} is no message")
    return value


def _fields(data: bytes) -> Iterator[tuple[int, Any]]:
    """Field numbers and values of one protocol buffer message: integers, or bytes of all other kinds."""
    position = 0
    while position < len(data):
        key, position = _varint(data, position)
        kind = key & 7
        if kind == 0:
            value, position = _varint(data, position)
            yield key >> 3, value
            continue
        if kind == 2:
            length, position = _varint(data, position)
        elif kind in (1, 5):
            length = 8 if kind == 1 else 4
        else:
            raise ValueError(f"wire type {kind} at byte {position}")
        if position + length > len(data):
            raise ValueError(f"{length} bytes promised at byte {position} of {len(data)}")
        yield key >> 3, data[position : position + length]
        position += length


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[position]
        value |= (byte & 127) << shift
        position += 1
        shift += 7
        if byte < 128:
            return value, position
        if shift > 63:
            raise ValueError(f"an integer of more than 64 bits at byte {position}")


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
