"""Damage as it happens to files, and as someone who knows the format would do it."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

NUMBERS = (
    0,
    1,
    -1,
    2,
    255,
    1 << 15,
    1 << 30,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    (1 << 63) - 1,
    10**30,
    10**400,
)
VALUES = (*NUMBERS, None, True, False, "", "a", "é\ud800", [], {}, [[]], 0.5, 1e308, -1e-308, "[" * 50)


def damaged_bytes(content: bytes, draw: random.Random) -> bytes:
    """One to a few changes, small and large."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        begin = draw.randrange(len(changed) + 1)
        end = min(len(changed), begin + draw.choice((1, 2, 4, 8, 100, 4096)))
        match draw.randrange(9):
            case 0 | 1 if begin < len(changed):
                changed[begin] ^= 1 << draw.randrange(8)
            case 2 if begin < len(changed):
                changed[begin] = draw.randrange(256)
            case 3:
                del changed[begin:end]
            case 4:
                changed[begin:begin] = draw.randbytes(draw.choice((1, 4, 100)))
            case 5:
                changed[begin:end] = bytes(end - begin)
            case 6:
                changed[begin:begin] = changed[begin:end]
            case 7:
                size = draw.choice((1, 2, 4, 8))
                number = draw.choice(NUMBERS) % (1 << 8 * size)
                changed[begin : begin + size] = number.to_bytes(size, "little")
            case 8:
                del changed[draw.randrange(len(changed) + 1) :]
            case _:
                changed += b"\0"
    return bytes(changed)


def damaged_json(values: Any, draw: random.Random) -> Any:
    """The same with some values replaced, dropped, doubled or exchanged; `values` itself is left alone."""
    values = json.loads(json.dumps(values))
    for _ in range(draw.choice((1, 1, 2, 3))):
        places = list(_places(values))
        if not places:
            return draw.choice(VALUES)
        shallow = [place for place in places if place[0] <= 1]
        _, holder, key = draw.choice(shallow if draw.random() < 0.5 and shallow else places)
        _, other, other_key = draw.choice(places)
        match draw.randrange(6):
            case 0:
                del holder[key]
            case 1 if isinstance(holder[key], int | float) and holder[key]:
                holder[key] = holder[key] * draw.choice((-1, 2, 10, 1 << 20)) + draw.choice((0, 1, -1))
            case 2:
                holder[key] = json.loads(json.dumps(other[other_key]))
            case 3 if isinstance(holder[key], list):
                holder[key] = holder[key] * 2
            case 4 if isinstance(holder[key], str):
                holder[key] = damaged_bytes(holder[key].encode("utf-8", "replace"), draw).decode("utf-8", "replace")
            case _:
                holder[key] = draw.choice(VALUES)
    return values


def _places(values: Any, depth: int = 0) -> Iterator[tuple[int, Any, Any]]:
    """(depth, holder, key) of every value inside."""
    keys = list(values) if isinstance(values, dict) else range(len(values)) if isinstance(values, list) else ()
    for key in keys:
        yield depth, values, key
        yield from _places(values[key], depth + 1)


def dumped(values: Any) -> bytes:
    return json.dumps(values).encode()
