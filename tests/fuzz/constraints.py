"""Random constraints: the probability that is computed against the sum over all texts that Python finds to satisfy them.

`prepare` and `run` are what `python -m tests.fuzz` calls. A case is an expression of constraints over one of three tiny
vocabularies; it is typed as text too, so that a failure can be repeated. Outcomes: "answered", "refused" (an error of one line
that says why) and "out of time" (the time limit was told).
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vlhmm import HMM, Tokenizer, control
from vlhmm.control import Constraint, TimeLimitError, TokenTexts, constraint_log_prob
from vlhmm.control.controlled import ControlledHMM
from vlhmm.data import word_tokenizer
from vlhmm.inference.past import Past

LONGEST = 4
"""Tokens of a text."""
SECONDS = 2.0
TOLERANCE = 1e-9

PHRASES = ["a", "b", "ab", "a b", "é", "b a", "ba", "A", "É", "a a", ".", "a.", "A.", " ", "éa"]
LEAVES = ["a", "b", "é", " ", ".", r"\w", r"\s", r"\S", r"\d", r"\W", "[ab]", "[^a]", "[^aé]", "ab", "", r"\n", "[a-b]"]
COUNTS = [
    "*",
    "+",
    "?",
    "*?",
    "+?",
    "??",
    "{0}",
    "{0,0}",
    "{1}",
    "{1,1}",
    "{2}",
    "{3,3}",
    "{1,2}",
    "{2,}",
    "{,2}",
    "{2,4}",
]
LARGE_COUNTS = ["{0,300}", "{7,60}", "{40}", "{0,5000}", "{2,99999}"]
FLAGS = ["", "", "", "", "(?i)", "(?s)", "(?a)", "(?x)", "(?i:a)", "(?-i:b)", "(?m)", "^", r"\A"]
STRAY = [*"()[]{}*+?|^$\\.,-09abé \n", r"\b", r"\1", "(?=a)", "(?<!b)", "(?>a)", "a*+", r"\Z", "(?P<n>a)", "(?#x)"]

REFUSALS = [
    r"^the pattern .* is no regular expression: ",
    r"^the pattern .* has .*, which (no automaton can follow|is not supported); rewrite it without",
    r"^a pattern of \d+ characters is too large \(.*\); make it smaller",
    r"^(words|length)\(\d+, \d+\) counts beyond [\d,]+; give smaller numbers",
    r"^the phrase ' ' has white space at its ends, .*; write ",
    r"^the constraint needs .*[\d,]+ automaton states; use fewer or shorter phrases",
    r"^the constraint needs a table of .*[\d,]+ cells, at most [\d,]+ are allowed; use fewer or shorter phrases",
]
"""What a refusal may say; any other ValueError is a crash."""

Holds = Callable[[str, int], bool]
"""Whether a text satisfies a constraint, and the number of its tokens."""


@dataclass(frozen=True)
class Vocabulary:
    name: str
    texts: TokenTexts
    hmm: HMM
    tokenizer: Tokenizer | None
    probs: dict[tuple[int, ...], float]
    """p(tokens) of every sequence of up to `LONGEST` tokens."""

    @property
    def eos_id(self) -> int | None:
        return None if self.tokenizer is None else self.tokenizer.eos_id

    def text(self, tokens: tuple[int, ...]) -> str | None:
        """None where a token has no text, or where the bytes are no UTF-8."""
        spelt = [self.texts.bytes_of_token[token] for token in tokens]
        if None in spelt:
            return None
        try:
            return self.texts.joiner.join(part for part in spelt if part is not None).decode()
        except UnicodeDecodeError:
            return None


def prepare(folder: Path) -> list[Vocabulary]:
    """`folder` stays empty: nothing here is a file."""
    tokenizer = word_tokenizer(["a", "b", "ab", "é", "A."])
    return [
        _vocabulary("words", TokenTexts.of(tokenizer), 0, tokenizer),
        _vocabulary("subwords", TokenTexts((b"a", b"b", b" ", b"ab", b" a", b"\n", "é".encode())), 1),
        # Characters in pieces, and a token without text.
        _vocabulary("bytes", TokenTexts((b"a", b"\xc3", b"\xa9", b" b", b"\xa9a", "É".encode(), None)), 2),
    ]


def run(material: list[Vocabulary], seed: int, scratch: Path) -> str:
    draw = random.Random(seed)
    vocabulary = material[draw.randrange(len(material))]
    length = draw.randint(1, LONGEST)
    until_eos = vocabulary.eos_id is not None and draw.random() < 0.3
    limit = 0.0 if draw.random() < 0.02 else SECONDS
    with warnings.catch_warnings():
        # Of `re`, about sets that may mean something else one day.
        warnings.simplefilter("ignore", FutureWarning)
        try:
            typed, constraint, holds = _expression(draw, depth=draw.randint(0, 2))
            if vocabulary.name == "bytes":
                # What broken UTF-8 is to phrases is not documented: only whole characters count.
                typed, constraint = f"({typed}) & regex('(?s).*')", constraint & control.regex("(?s).*")
            found = _probability(vocabulary, constraint, length, until_eos, limit)
        except TimeLimitError as error:
            if f"within {limit:g} s, the time limit" not in str(error):
                raise AssertionError("the limit is not told") from error
            return "out of time"
        except ValueError as error:
            if not any(re.search(refusal, str(error), re.DOTALL) for refusal in REFUSALS):
                raise
            return "refused"
        assert limit > 0, f"compiled in no time: {typed}"
        expected = _enumerated(vocabulary, holds, length, until_eos)
    where = f"{typed} over {vocabulary.name}, {length} tokens, until_eos={until_eos}"
    assert abs(found - expected) <= TOLERANCE, f"p = {found!r}, but all texts together have {expected!r}: {where}"
    return "answered"


def _probability(vocabulary: Vocabulary, constraint: Constraint, length: int, until_eos: bool, limit: float) -> float:
    if vocabulary.tokenizer is not None:
        controlled = ControlledHMM(vocabulary.hmm, vocabulary.tokenizer)
        past = Past.opened(vocabulary.hmm.tables, None)
        return controlled.probability(constraint, length, past, until_eos=until_eos, time_limit=limit)[0]
    automaton = constraint.compile(vocabulary.texts, time_limit=limit)
    return float(constraint_log_prob(vocabulary.hmm, automaton, length).exp())


def _enumerated(vocabulary: Vocabulary, holds: Holds, length: int, until_eos: bool) -> float:
    total = 0.0
    for tokens, prob in vocabulary.probs.items():
        if until_eos:
            counted = 0 < len(tokens) <= length and tokens[-1] == vocabulary.eos_id
            tokens = tokens[:-1]
        else:
            counted = len(tokens) == length
        if counted and prob > 0 and (text := vocabulary.text(tokens)) is not None and holds(text, len(tokens)):
            total += prob
    return total


def _vocabulary(name: str, texts: TokenTexts, seed: int, tokenizer: Tokenizer | None = None) -> Vocabulary:
    generator = np.random.default_rng(seed)
    num_states, num_words = 3, texts.num_tokens
    start, transition = generator.dirichlet(np.ones(num_states)), generator.dirichlet(np.ones(num_states), num_states)
    emission = generator.dirichlet(np.ones(num_words), num_states)
    # Some exact zeros; among them long tokens, as `re` takes exponential time for some patterns.
    emission[0, generator.integers(num_words)] = 0
    emission[:, [text is not None and len(text) > 3 for text in texts.bytes_of_token]] = 0
    emission /= emission.sum(1, keepdims=True)
    reset = None if tokenizer is None else tokenizer.eos_id
    hmm = HMM.from_probabilities(start, transition, emission, reset_token=reset, dtype=torch.float64)
    ahead = {(): start}
    probs = {(): 1.0}
    for _ in range(LONGEST):
        for tokens in [tokens for tokens in ahead if len(tokens) == max(map(len, ahead))]:
            for token in range(num_words):
                joint = ahead[tokens] * emission[:, token]
                probs[(*tokens, token)] = float(joint.sum())
                ahead[(*tokens, token)] = joint.sum() * start if token == reset else joint @ transition
    return Vocabulary(name, texts, hmm, tokenizer, probs)


def _expression(draw: random.Random, depth: int) -> tuple[str, Constraint, Holds]:
    """As it is typed, as an object, and as a predicate in plain Python."""
    if depth and draw.random() < 0.8:
        first, one, in_first = _expression(draw, depth - 1)
        if draw.random() < 0.25:
            return f"~({first})", ~one, lambda text, tokens: not in_first(text, tokens)
        second, other, in_second = _expression(draw, depth - 1)
        if draw.random() < 0.5:
            both: Holds = lambda text, tokens: in_first(text, tokens) and in_second(text, tokens)  # noqa: E731
            return f"({first}) & ({second})", one & other, both
        either: Holds = lambda text, tokens: in_first(text, tokens) or in_second(text, tokens)  # noqa: E731
        return f"({first}) | ({second})", one | other, either
    name = draw.choice(
        ["contains", "contains_all", "contains_any", "in_order", "excludes", "starts_with", "ends_with"]
        + ["words", "length"]
        + ["regex"] * 6
    )
    if name == "regex":
        return _regex(draw)
    if name in ("words", "length"):
        return _count(draw, name)
    return _phrases(draw, name)


def _count(draw: random.Random, name: str) -> tuple[str, Constraint, Holds]:
    low = draw.choice([0, 0, 1, 2, 3, 40])
    high = draw.choice([None, low, low + 1, low + 2, 300, 5000])
    constraint = getattr(control, name)(low, high)

    def holds(text: str, tokens: int) -> bool:
        number = len(text.split()) if name == "words" else tokens
        return low <= number and (high is None or number <= high)

    return f"{name}({low}, {high})", constraint, holds


def _phrases(draw: random.Random, name: str) -> tuple[str, Constraint, Holds]:
    several = name in ("contains_all", "contains_any", "in_order", "excludes")
    phrases = [draw.choice(PHRASES) for _ in range(draw.choice([1, 2, 3, 5]) if several else 1)]
    whole_words, ignore_case = draw.random() < 0.6, draw.random() < 0.4
    constraint = getattr(control, name)(*phrases, whole_words=whole_words, ignore_case=ignore_case)
    flags = re.DOTALL | (re.IGNORECASE if ignore_case else 0)
    found = [_found(phrase, whole_words) for phrase in phrases]

    def holds(text: str, tokens: int) -> bool:
        match name:
            case "contains" | "contains_all":
                return all(re.search(one, text, flags) for one in found)
            case "contains_any":
                return any(re.search(one, text, flags) for one in found)
            case "excludes":
                return not any(re.search(one, text, flags) for one in found)
            case "in_order":
                return bool(re.search(".*".join(found), text, flags))
            case "starts_with":
                return bool(re.match(rf"\s*{found[0]}", text, flags))
            case _:
                return bool(re.search(rf"{found[0]}\s*\Z", text, flags))

    options = f"whole_words={whole_words}, ignore_case={ignore_case}"
    return f"{name}({', '.join(map(repr, phrases))}, {options})", constraint, holds


def _found(phrase: str, whole_words: bool) -> str:
    word = r"[A-Za-z0-9_\u00c0-\u1fff\u3000-\uffff]"
    before = f"(?<!{word})" if whole_words and re.match(word, phrase[0]) else ""
    after = f"(?!{word})" if whole_words and re.match(word, phrase[-1]) else ""
    return f"{before}{re.escape(phrase)}{after}"


def _regex(draw: random.Random) -> tuple[str, Constraint, Holds]:
    damaged = draw.random() < 0.25
    # `re` tries every way to cut a text into rounds: no more than two repetitions in one another.
    pattern = _pattern(draw, draw.randint(0, 4), counts=1 if damaged else 2)
    if draw.random() < 0.05:
        pattern = f"(?:{draw.choice(LEAVES)}){draw.choice(LARGE_COUNTS)}{draw.choice(LEAVES)}"
    pattern = draw.choice(FLAGS) + pattern + draw.choice(["", "", "", "$", r"\Z"])
    if damaged:
        for _ in range(draw.randint(1, 3)):
            at = draw.randint(0, len(pattern))
            pattern = pattern[:at] + draw.choice(STRAY) + pattern[at + draw.randint(0, 1) :]
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError):
        compiled = None
    try:
        constraint = control.regex(pattern, strip=True)
    except ValueError as error:
        if compiled is not None and "no regular expression" in str(error):
            raise AssertionError(f"{pattern!r} is one") from error
        raise
    assert compiled is not None, f"{pattern!r} is no regular expression, but was taken for one"
    return f"regex({pattern!r}, strip=True)", constraint, lambda text, _: bool(compiled.fullmatch(text.strip()))


def _pattern(draw: random.Random, depth: int, counts: int) -> str:
    kind = draw.random()
    if depth == 0 or kind < 0.15:
        return draw.choice(LEAVES)
    opened = draw.choice(["(", "(?:"])
    if kind < 0.4:
        return _pattern(draw, depth - 1, counts) + _pattern(draw, depth - 1, counts)
    if kind < 0.6 or not counts:
        return f"{opened}{_pattern(draw, depth - 1, counts)}|{_pattern(draw, depth - 1, counts)})"
    return f"{opened}{_pattern(draw, depth - 1, counts - 1)}){draw.choice(COUNTS)}"
