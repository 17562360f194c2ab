"""Seconds until a constraint is compiled or refused, over a vocabulary of words and one of subwords."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.schemas import SCHEMAS
from vlhmm.control import (
    Constraint,
    TokenTexts,
    contains_all,
    excludes,
    in_order,
    json_schema,
    json_values,
    regex,
    words,
)
from vlhmm.control.time_limit import TIME_LIMIT
from vlhmm.data import load_tokenizer

ALLOWED = TIME_LIMIT + 0.5
"""Seconds: a loop looks at the clock a few times a second."""
LETTERS = "etaoinshrdlucmfwypvbgkjqxz"


@dataclass(frozen=True)
class Compiled:
    constraint: str
    vocabulary: str
    tokens: int
    seconds: float
    """Of CPU time, the fastest of the repetitions; with the making of the constraint."""
    states: int | None = None
    """Of the automaton; None where the constraint was refused."""
    classes: int | None = None
    refused: str = ""
    allowed: float = ALLOWED


def compiled(quick: bool, tokenizer: Path | None = None, repeat: int = 3) -> Iterator[Compiled]:
    """Every case over words, and over the subwords of `tokenizer`; without one, over subwords made of the words."""
    names = _names(300 if quick else 10_000)
    vocabularies = {
        "words": TokenTexts(tuple(name.encode() for name in names), joiner=b" "),
        "subwords": _pieces(names) if tokenizer is None else TokenTexts.of(load_tokenizer(tokenizer)),
    }
    cases, schemas = _cases(names, quick), {f"json_schema of {name}": schema for name, schema in SCHEMAS.items()}
    # Words without punctuation cannot spell JSON.
    every = [(case, make, vocabulary) for case, make in cases.items() for vocabulary in vocabularies]
    every += [(case, partial(json_schema, schema), "subwords") for case, schema in schemas.items()]
    for case, make, vocabulary in every:
        texts = vocabularies[vocabulary]
        rows = [_timed(case, make, vocabulary, texts) for _ in range(1 if quick else repeat)]
        yield min(rows, key=lambda row: row.seconds)


def _cases(names: list[str], quick: bool) -> dict[str, Callable[[], Constraint]]:
    few, count = (3, 20) if quick else (10, 1000)
    patterns = [
        r"\w{1,300}",
        ".{0,300}",
        f".{{0,{4 * count}}}",
        "(.{0,60}){0,60}",
        f"[a-z ]{{1,{4 * count}}}",
        "(a|b)*a(a|b){20}",
    ]
    return {
        "words(10, 200)": lambda: words(10, 200),
        f"words(10, {4 * count})": lambda: words(10, 4 * count),
        **{f"regex({pattern!r})": partial(regex, pattern) for pattern in patterns},
        f"contains_all of {few} words": lambda: contains_all(*names[:few]),
        "contains_all of 14 words": lambda: contains_all(*names[:14]),
        f"in_order of {count} words": lambda: in_order(*names[:count]),
        f"excludes of {count // 10} words": lambda: excludes(*names[: count // 10]),
    }


def _timed(case: str, make: Callable[[], Constraint], vocabulary: str, texts: TokenTexts) -> Compiled:
    # Clears the caches: strings and numbers of schemas compiled earlier are cached.
    for remembered in (json_values._content, json_values._unsigned):
        remembered.cache_clear()
    begun = time.process_time()
    try:
        automaton = make().compile(texts)
    except ValueError as refusal:
        return Compiled(case, vocabulary, texts.num_tokens, time.process_time() - begun, refused=str(refusal))
    seconds = time.process_time() - begun
    return Compiled(case, vocabulary, texts.num_tokens, seconds, automaton.num_states, automaton.num_classes)


def _names(num: int) -> list[str]:
    """Distinct words of 3 to 9 letters, common letters more often."""
    draw = random.Random(0)
    weights = [1 / (rank + 2) for rank in range(len(LETTERS))]
    found: dict[str, None] = {}
    while len(found) < num:
        found["".join(draw.choices(LETTERS, weights, k=draw.randint(3, 9)))] = None
    return list(found)


def _pieces(names: list[str]) -> TokenTexts:
    """All bytes, and pieces of words with a space before them or not."""
    pieces = {bytes([byte]): None for byte in range(256)}
    for name in names:
        for begin in range(0, len(name), 3):
            pieces |= {name[begin : begin + 3].encode(): None, b" " + name[: begin + 3].encode(): None}
    return TokenTexts(tuple(pieces))
