"""What the tokens of a vocabulary spell, in bytes; and automata over bytes lifted to automata over tokens."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
from typing import Any, Final, Protocol, runtime_checkable

import numpy as np
import tokenizers
import torch
from jaxtyping import Bool, Int
from torch import Tensor

from vlhmm.control.automaton import Automaton
from vlhmm.control.minimise import equal_rows, minimised
from vlhmm.control.time_limit import REMEDY, check_time
from vlhmm.data import Tokenizer
from vlhmm.data.encode import SPACE
from vlhmm.data.spelling import byte_alphabet

# 256 MB of next states, before equal ones are one.
_MAX_CELLS: Final = 1 << 26
_BYTE_TOKEN: Final = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@runtime_checkable
class HuggingFaceTokenizer(Protocol):
    """What is needed of a tokenizer of `transformers`: its backend in Rust, and which tokens are special."""

    @property
    def backend_tokenizer(self) -> Any: ...

    @property
    def all_special_ids(self) -> list[int]: ...


@dataclass(frozen=True)
class TokenTexts:
    """The bytes that each token adds to a text; None for tokens without text, such as EOS or padding.

    The text of a sequence is the bytes of its tokens, `joiner` between them.
    """

    bytes_of_token: tuple[bytes | None, ...]
    joiner: bytes = b""
    drops_space: bool = False
    """A space at the beginning is no part of the text: SentencePiece puts one before the first word and takes it away."""

    @property
    def num_tokens(self) -> int:
        return len(self.bytes_of_token)

    @classmethod
    def of(cls, tokenizer: Tokenizer | HuggingFaceTokenizer | TokenTexts) -> TokenTexts:
        """Of a vocabulary of words, of byte-level BPE, or of SentencePiece.

        EOS, special symbols and unknown subwords have no text. The `<unk>` of a word-level tokenizer is a word like
        any other: it is printed.
        """
        if isinstance(tokenizer, TokenTexts):
            return tokenizer
        if isinstance(tokenizer, HuggingFaceTokenizer):
            return _read(tokenizer.backend_tokenizer, tokenizer.all_special_ids)
        if isinstance(tokenizer, Tokenizer):
            return _read(tokenizer.backend, [] if tokenizer.eos_id is None else [tokenizer.eos_id])
        raise ValueError(
            f"constraints cannot read the tokens of a {type(tokenizer).__name__}; "
            "give a vlhmm.Tokenizer, or a transformers tokenizer that has a `backend_tokenizer`"
        )

    def only(self, usable: Bool[Tensor, " X"]) -> TokenTexts:
        """The same vocabulary where only some tokens can be used."""
        kept = zip(self.bytes_of_token, usable.tolist(), strict=True)
        return replace(self, bytes_of_token=tuple(text if used else None for text, used in kept))

    def padded_to(self, num_tokens: int) -> TokenTexts:
        """With tokens without text at the end: language models often score more ids than their tokenizer has."""
        if num_tokens < self.num_tokens:
            raise ValueError(f"the vocabulary has {self.num_tokens} tokens, more than the {num_tokens} asked for")
        return replace(self, bytes_of_token=self.bytes_of_token + (None,) * (num_tokens - self.num_tokens))

    def spelt(self) -> TokenTexts:
        """The tokens that have a text, alone; where none has, one of no bytes, as an automaton needs a token."""
        return replace(self, bytes_of_token=tuple(t for t in self.bytes_of_token if t is not None) or (b"",))

    def lift(self, of_bytes: Automaton) -> Automaton:
        """The minimal automaton of the token sequences whose text `of_bytes` accepts; a token without text adds none.

        A token is a map of states to states. All tokens are followed at once, byte by byte, and only distinct maps are
        kept, so that the cost hardly grows with the vocabulary.
        """
        next_state, start, accepting = of_bytes.next_state.numpy(), of_bytes.start, of_bytes.accepting
        if self.drops_space:
            of_bytes = _space_apart(of_bytes)
            next_state = of_bytes.next_state.numpy()
        if self.joiner or self.drops_space:
            # The first token has no joiner before it: a new start state, without incoming edges, reads a joiner as the empty string.
            begin = next_state[[start]]
            begin[:, _classes(of_bytes, self.joiner[:1] or b" ")] = start
            next_state, start = np.concatenate([next_state, begin]), len(next_state)
            accepting = torch.cat([accepting, accepting[[of_bytes.start]]])
        num_states, num_classes = next_state.shape
        next_of_class = np.ascontiguousarray(next_state.T, dtype=np.int32)

        texts = [b"" if text is None else self.joiner + text for text in self.bytes_of_token]
        lengths = np.array([len(text) for text in texts])
        begins = np.cumsum(lengths) - lengths
        classes = _classes(of_bytes, b"".join(texts))

        class_of_token = np.zeros(len(texts), dtype=np.int64)
        maps, map_of_token = np.arange(num_states, dtype=np.int32)[None], np.zeros(len(texts), dtype=np.int64)
        finished, num_finished = [maps], 1
        longer = np.flatnonzero(lengths > 0)
        for position in range(int(lengths.max(initial=0))):
            read = map_of_token[longer] * num_classes + classes[begins[longer] + position]
            steps, step_of_token = np.unique(read, return_inverse=True)
            self._require_room(len(steps) + num_finished, num_states)
            after = np.empty((len(steps), num_states), dtype=np.int32)
            for row, step in zip(after, steps.tolist(), strict=True):
                check_time(f"tokens followed for {position} bytes over {num_states:,} automaton states", len(steps))
                np.take(next_of_class[step % num_classes], maps[step // num_classes], out=row)
            map_of_step, first = equal_rows(after)
            maps = after[first]
            map_of_token[longer] = map_of_step[step_of_token]
            ends = longer[lengths[longer] == position + 1]
            used, used_by = np.unique(map_of_token[ends], return_inverse=True)
            class_of_token[ends] = num_finished + used_by
            finished.append(maps[used])
            num_finished += len(used)
            longer = longer[lengths[longer] > position + 1]
        used, class_of_token = np.unique(class_of_token, return_inverse=True)
        maps = np.concatenate(finished)[used]
        class_of_map, first = equal_rows(maps)
        next_of_token = torch.from_numpy(np.ascontiguousarray(maps[first].T, dtype=np.int64))
        return minimised(Automaton(torch.from_numpy(class_of_map[class_of_token]), next_of_token, start, accepting))

    def _require_room(self, num_maps: int, num_states: int) -> None:
        if num_maps * num_states > _MAX_CELLS:
            raise ValueError(
                f"the constraint needs a table of {num_maps:,} kinds of tokens x {num_states:,} automaton states, "
                f"{num_maps * num_states:,} cells, at most {_MAX_CELLS:,} are allowed; {REMEDY}"
            )

    def text_only(self, of_spelt: Automaton) -> Automaton:
        """From the minimal automaton over `spelt` tokens, that over all: those without text lead to a dead state."""
        has_text = torch.tensor([text is not None for text in self.bytes_of_token])
        if has_text.all():
            return of_spelt
        dead, next_state, accepting = of_spelt.dead_state(), of_spelt.next_state, of_spelt.accepting
        if dead is None:
            dead = of_spelt.num_states
            next_state = torch.cat([next_state, torch.full((1, of_spelt.num_classes), dead)])
            accepting = torch.cat([accepting, torch.zeros(1, dtype=torch.bool)])
        # There may be tokens already that lead to it from everywhere.
        all_dead = (next_state == dead).all(0).nonzero()[:, 0].tolist()
        if not all_dead:
            all_dead = [of_spelt.num_classes]
            next_state = torch.cat([next_state, torch.full((len(next_state), 1), dead)], dim=1)
        class_of_token = torch.full((self.num_tokens,), all_dead[0])
        if not has_text.any():
            return minimised(Automaton(class_of_token, next_state, of_spelt.start, accepting))
        class_of_token[has_text] = of_spelt.class_of_token
        return Automaton(class_of_token, next_state, of_spelt.start, accepting)


def _space_apart(of_bytes: Automaton) -> Automaton:
    """The same automaton, with a class for the space alone."""
    class_of_byte = of_bytes.class_of_token.clone()
    column = of_bytes.next_state[:, class_of_byte[ord(" ")]]
    class_of_byte[ord(" ")] = of_bytes.num_classes
    return replace(
        of_bytes, class_of_token=class_of_byte, next_state=torch.cat([of_bytes.next_state, column[:, None]], dim=1)
    )


def _classes(of_bytes: Automaton, text: bytes) -> Int[np.ndarray, " N"]:
    classes: Int[np.ndarray, " N"] = of_bytes.class_of_token.numpy()[np.frombuffer(text, dtype=np.uint8)]
    return classes


def _read(backend: tokenizers.Tokenizer, special_ids: Collection[int]) -> TokenTexts:
    fields: dict[str, Any] = json.loads(backend.to_str())
    word_level = fields["model"].get("type") == "WordLevel"
    ids = backend.get_vocab(with_added_tokens=True)
    unk = fields["model"].get("unk_token")
    # Unigram models give the number instead of the name.
    unk_id = ids.get(unk) if isinstance(unk, str) else fields["model"].get("unk_id")
    added = {token["id"]: token["special"] for token in fields.get("added_tokens") or []}
    without_text = {*special_ids, *(i for i, special in added.items() if special)}
    if word_level:
        without_text -= {unk_id}
    else:
        without_text |= {unk_id}

    spell, joiner = _spelling(fields.get("decoder"), word_level)
    texts: list[bytes | None] = [None] * (max(ids.values()) + 1)
    for name, i in ids.items():
        if i not in without_text:
            texts[i] = name.encode() if i in added else spell(name)
    return TokenTexts(tuple(texts), joiner, not joiner and _drops_space(fields["decoder"]))


def _drops_space(decoder: dict[str, Any]) -> bool:
    """Whether a text that begins with a space is decoded without it."""
    return any(
        (step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)
        or (step["type"] == "Metaspace" and step.get("prepend_scheme", "always") != "never")
        for step in decoder.get("decoders", [decoder])
    )


def _spelling(decoder: dict[str, Any] | None, word_level: bool) -> tuple[Callable[[str], bytes], bytes]:
    """How the name of a token is read, and what stands between tokens."""
    if word_level or decoder is None:
        return str.encode, b" "
    steps = decoder.get("decoders", [decoder])
    kinds = {step["type"] for step in steps}
    if "ByteLevel" in kinds:
        byte_of_character = byte_alphabet()
        return lambda name: bytes(byte_of_character[character] for character in name), b""
    if "Metaspace" in kinds or any(step.get("pattern") == {"String": SPACE} for step in steps):
        fallback = "ByteFallback" in kinds

        def spell(name: str) -> bytes:
            byte = _BYTE_TOKEN.fullmatch(name) if fallback else None
            return bytes([int(byte[1], 16)]) if byte else name.replace(SPACE, " ").encode()

        return spell, b""
    raise ValueError(
        f"constraints cannot read tokens whose decoder is {', '.join(sorted(kinds))}; "
        "use a tokenizer of words, of byte-level BPE or of SentencePiece"
    )
