"""Strings and numbers of JSON as parts of an automaton over bytes.

A string has one spelling, that of `json.dumps(..., ensure_ascii=False)`: only what must be escaped is. Of the control
characters only those with a short escape can occur. A number is written with at most 15 digits, so that no two are the same
floating-point number, or with as many as its limits have.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import lru_cache
from typing import Final

import numpy as np
import torch

from vlhmm.control import byte_parts as bp
from vlhmm.control.automaton import Automaton
from vlhmm.control.operations import explore
from vlhmm.control.regex import check_pattern, searched

DIGITS: Final = 15
ESCAPES: Final = {'"': '"', "\\": "\\", "\b": "b", "\f": "f", "\n": "n", "\r": "r", "\t": "t"}
"""Characters, and what stands after the backslash for them."""
_CONTROL: Final = "".join(chr(code) for code in range(32) if chr(code) not in ESCAPES)
_LAST: Final = range(0x80, 0xC0)

FORMATS: Final = {
    "date": (
        r"([0-9]{4}-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"
        r"|([0-9]{2}(0[48]|[2468][048]|[13579][26])|([02468][048]|[13579][26])00)-02-29)"
    ),
    "time": r"([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])",
    "email": r"[A-Za-z0-9_+-]{1,32}(\.[A-Za-z0-9_+-]{1,31})?@([A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?\.){1,3}[A-Za-z]{2,24}",
    "uuid": r"[0-9a-f]{8}-([0-9a-f]{4}-){3}[0-9a-f]{12}",
    "ipv4": r"((25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])\.){3}(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])",
    "uri": r"https?://([a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?\.){1,3}[a-z]{2,24}(/[A-Za-z0-9._~-]+)*/?(\?[A-Za-z0-9._~=&-]+)?(#[A-Za-z0-9._~-]+)?",
}
"""Patterns that match a part of what the format allows, and nothing else."""
FORMATS["date-time"] = f"{FORMATS['date']}T{FORMATS['time']}"
# The year 0 is none to most programs.
_YEAR: Final = r"^([1-9]|0[1-9]|00[1-9]|000[1-9])"


def format_patterns(name: str) -> tuple[str, ...]:
    """What a string of this format matches."""
    whole = f"^({FORMATS[name]})$"
    return (whole, _YEAR) if name.startswith("date") else (whole,)


def string(at_least: int = 0, at_most: int | None = None, patterns: tuple[str, ...] = ()) -> bp.Part | None:
    """A string of so many characters in which every pattern is found."""
    for pattern in patterns:
        check_pattern(pattern)
    if at_most is not None and at_most < at_least:
        return None
    inside = _of_patterns(at_least, at_most, patterns) if patterns else bp.repeated(_CHARACTER, at_least, at_most)
    return bp.sequence(bp.literal('"'), inside, bp.literal('"'))


# Plain ASCII, escapes, and two to four bytes of UTF-8 without surrogates.
_CHARACTER: Final = bp.one_of(
    [
        bp.byte_of([byte for byte in range(0x20, 0x80) if chr(byte) not in ESCAPES]),
        bp.byte_of(b"\\", "".join(ESCAPES.values()).encode()),
        bp.byte_of(range(0xC2, 0xE0), _LAST),
        bp.byte_of([0xE0], range(0xA0, 0xC0), _LAST),
        bp.byte_of([*range(0xE1, 0xED), 0xEE, 0xEF], _LAST, _LAST),
        bp.byte_of([0xED], range(0x80, 0xA0), _LAST),
        bp.byte_of([0xF0], range(0x90, 0xC0), _LAST, _LAST),
        bp.byte_of(range(0xF1, 0xF4), _LAST, _LAST, _LAST),
        bp.byte_of([0xF4], range(0x80, 0x90), _LAST, _LAST),
    ]
)


def _of_patterns(at_least: int, at_most: int | None, patterns: tuple[str, ...]) -> bp.Part:
    def add(nodes: bp.Nodes, begin: int) -> int:
        of_bytes, escapes = _content(at_least, at_most, patterns)
        end = nodes.new()
        node_of = bp.embedded(nodes, begin, end, of_bytes)
        for state, targets in enumerate(escapes):
            escape = nodes.new()
            nodes.reads[node_of[state]].append((frozenset(b"\\"), escape))
            for letter, target in targets:
                nodes.reads[escape].append((frozenset([letter]), node_of[target]))
        return end

    return add


@lru_cache(maxsize=64)
def _content(
    at_least: int, at_most: int | None, patterns: tuple[str, ...]
) -> tuple[Automaton, list[list[tuple[int, int]]]]:
    """An automaton over bytes without those that are escaped, and where each state leads by each escape."""
    alone = [*ESCAPES, _CONTROL]
    found = searched(patterns, [f"[{re.escape(characters)}]" for characters in alone], at_least, at_most)
    of_characters, dead = found.automaton, found.automaton.dead_state()
    next_state = of_characters.next_state.clone()
    class_of = [found.class_of(ord(character)) for character in ESCAPES]
    targets = next_state[:, class_of].tolist()
    if dead is None:
        dead = len(next_state)
        next_state = torch.cat([next_state, torch.full((1, next_state.shape[1]), dead)])
    next_state[:, [*class_of, *{found.class_of(ord(character)) for character in _CONTROL}]] = dead
    accepting = torch.cat([of_characters.accepting, torch.zeros(len(next_state) - len(of_characters.accepting)).bool()])
    letters = [ord(letter) for letter in ESCAPES.values()]
    escapes = [
        [(letter, target) for letter, target in zip(letters, row, strict=True) if target != dead] for row in targets
    ]
    without = Automaton(of_characters.class_of_token, next_state, of_characters.start, accepting)
    return found.over_bytes(without), escapes


@dataclass(frozen=True)
class Limits:
    """Which numbers."""

    low: Decimal | None = None
    high: Decimal | None = None
    low_open: bool = False
    """`low` itself is not among them."""
    high_open: bool = False
    integer: bool = False
    multiple_of: int = 1
    """Of integers."""
    decimals: int | None = None
    """Digits behind the point at most."""

    @property
    def plain(self) -> bool:
        """Whether exponents may be written."""
        return self.low is None and self.high is None and not self.integer and self.decimals is None


def beyond_rounding(limits: Limits) -> Limits:
    """The same where a number is written with at most 15 digits; else without those that are rounded to an open limit."""

    def closed(limit: Decimal | None, is_open: bool, towards: float) -> tuple[Decimal | None, bool]:
        # No number is rounded to zero, however many digits it is given here.
        if limit is None or not limit or not is_open:
            return limit, is_open
        return Decimal(repr(math.nextafter(float(limit), towards))), False

    longest = max((_num_digits(limit) for limit in (limits.low, limits.high) if limit is not None), default=0)
    if longest < DIGITS:
        return limits
    low, low_open = closed(limits.low, limits.low_open, math.inf)
    high, high_open = closed(limits.high, limits.high_open, -math.inf)
    return replace(limits, low=low, high=high, low_open=low_open, high_open=high_open)


def number(limits: Limits) -> bp.Part | None:
    """A number within the limits; negative ones have a sign, zero has none."""
    zero = Decimal(0)
    low, high = limits.low, limits.high
    parts: list[bp.Part | None] = []
    if high is None or high > zero or (high == zero and not limits.high_open):
        if low is None or low < zero:
            parts.append(_magnitude(limits, zero, False, high, limits.high_open))
        else:
            parts.append(_magnitude(limits, low, limits.low_open, high, limits.high_open))
    if low is None or low < zero:
        largest = None if low is None else low.copy_negate()
        if high is None or high >= zero:
            negative = _magnitude(limits, zero, True, largest, limits.low_open)
        else:
            negative = _magnitude(limits, high.copy_negate(), limits.high_open, largest, limits.low_open)
        parts.append(bp.sequence(bp.literal("-"), negative))
    exponent = bp.sequence(
        bp.byte_of(b"eE"),
        bp.one_of([bp.literal(""), bp.byte_of(b"+-")]),
        bp.byte_of(range(0x31, 0x3A)),
        bp.optional(_DIGIT),
    )
    return bp.sequence(bp.one_of(parts), bp.optional(exponent) if limits.plain else bp.literal(""))


_DIGIT: Final = bp.byte_of(range(0x30, 0x3A))


@dataclass(frozen=True)
class _Read:
    """What is known of the digits read so far."""

    whole: int = 0
    """Digits before the point."""
    behind: int = -1
    """Digits behind it; -1 before it is read."""
    to_low: int = 0
    """Whether the digits are below (-1), equal to or above (1) as many of the limit's."""
    to_high: int = 0
    remainder: int = 0
    leading_zero: bool = False


def _magnitude(limits: Limits, low: Decimal, low_open: bool, high: Decimal | None, high_open: bool) -> bp.Part:
    return bp.automaton(lambda: _unsigned(limits, low, low_open, high, high_open))


@lru_cache(maxsize=64)
def _unsigned(limits: Limits, low: Decimal, low_open: bool, high: Decimal | None, high_open: bool) -> Automaton:
    """Numbers without a sign from `low` to `high`."""
    bounds = [_digits(low), ("", "") if high is None else _digits(high)]
    most = max(DIGITS, *(_num_digits(limit) + 1 for limit in (low, high) if limit is not None))
    max_behind = 0 if limits.integer else most if limits.decimals is None else limits.decimals

    def compared(before: int, place: int, digit: int, digits: str) -> int:
        if before:
            return before
        other = int(digits[place]) if place < len(digits) else 0
        return (digit > other) - (digit < other)

    def step(state: _Read | None, symbol: int) -> _Read | None:
        """`symbol` is a digit, 10 for the point, 11 for anything else."""
        if state is None or symbol == 11:
            return None
        if symbol == 10:
            if state.behind >= 0 or state.whole == 0 or max_behind == 0:
                return None
            ends = [
                _by_length(state.whole, len(whole), sign)
                for (whole, _), sign in zip(bounds, (state.to_low, state.to_high), strict=True)
            ]
            return _Read(state.whole, 0, ends[0], 1 if high is None else ends[1])
        place, part = (state.whole, 0) if state.behind < 0 else (state.behind, 1)
        if state.leading_zero or state.whole + max(state.behind, 0) == most or (part and state.behind == max_behind):
            return None
        to_low = compared(state.to_low, place, symbol, bounds[0][part])
        to_high = compared(state.to_high, place, symbol, bounds[1][part])
        if part:
            return _Read(state.whole, state.behind + 1, to_low, to_high)
        remainder = (state.remainder * 10 + symbol) % limits.multiple_of if limits.integer else 0
        return _Read(state.whole + 1, -1, to_low, to_high, remainder, state.whole == 0 and symbol == 0)

    def accepts(state: _Read | None) -> bool:
        if state is None or state.whole == 0 or state.behind == 0 or state.remainder:
            return False
        signs = []
        for (whole, behind), sign in zip(bounds, (state.to_low, state.to_high), strict=True):
            if state.behind < 0:
                sign = _by_length(state.whole, len(whole), sign)
            # The limit has digits left, the last of which is not zero.
            signs.append(-1 if sign == 0 and max(state.behind, 0) < len(behind) else sign)
        return signs[0] >= low_open and (high is None or signs[1] <= -high_open)

    class_of_byte = np.full(256, 11)
    class_of_byte[0x30:0x3A] = np.arange(10)
    class_of_byte[ord(".")] = 10
    start: _Read | None = _Read()

    def successors(state: _Read | None) -> Iterator[_Read | None]:
        return (step(state, symbol) for symbol in range(12))

    return explore(start, successors, accepts, class_of_byte)


def _by_length(length: int, other: int, sign: int) -> int:
    """How whole numbers compare whose first digits compare so: the longer one is larger."""
    return (length > other) - (length < other) or sign


def _num_digits(limit: Decimal) -> int:
    return sum(map(len, _digits(abs(limit))))


def _digits(limit: Decimal) -> tuple[str, str]:
    """Before and behind the point, without zeros that say nothing."""
    whole, _, behind = f"{limit:f}".partition(".")
    return whole.lstrip("0") or "0", behind.rstrip("0")
