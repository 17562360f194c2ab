"""Why no text satisfies a constraint, in words for the person who wrote it."""

from __future__ import annotations

import math

from vlhmm.control.constraints import Constraint, all_of
from vlhmm.control.phrase_constraints import Phrases
from vlhmm.control.time_limit import TIME_LIMIT, limited_to
from vlhmm.control.token_texts import HuggingFaceTokenizer, TokenTexts
from vlhmm.data import Tokenizer


def explain_empty(
    constraint: Constraint,
    tokenizer: Tokenizer | HuggingFaceTokenizer | TokenTexts,
    max_tokens: int | None = None,
    *,
    time_limit: float | None = TIME_LIMIT,
) -> str | None:
    """Which parts no sequence of at most `max_tokens` tokens (EOS not counted) satisfies; None if there is one.

    The parts named are impossible together, and possible as soon as any one of them is left out. To find them takes a
    compilation of each part's rest: all of them together within `time_limit` seconds of CPU time.
    """
    with limited_to(time_limit):
        return _explained(constraint, TokenTexts.of(tokenizer), max_tokens)


def _explained(constraint: Constraint, texts: TokenTexts, max_tokens: int | None) -> str | None:
    needed = _tokens_needed(list(constraint.parts()), texts)
    if math.isfinite(needed) and (max_tokens is None or needed <= max_tokens):
        return None
    # Parts that contradict each other (infinite length) are a better explanation than parts that are merely too long.
    too_many = math.inf if math.isinf(needed) or max_tokens is None else max_tokens + 1
    guilty = list(constraint.parts())
    for part in constraint.parts():
        others = [other for other in guilty if other is not part]
        if others and _tokens_needed(others, texts) >= too_many:
            guilty = others
    named = repr(all_of(guilty))
    if math.isfinite(needed):
        least = int(_tokens_needed(guilty, texts))
        return f"{named} takes at least {least} tokens, but at most {max_tokens} are allowed; allow more"
    if len(guilty) > 1:
        return f"{named} is impossible: no text satisfies these {len(guilty)} parts together; leave one out"
    return f"{named} is impossible: {_why_impossible(guilty[0], texts)}"


def _tokens_needed(parts: list[Constraint], texts: TokenTexts) -> float:
    automaton = all_of(parts).compile(texts, time_limit=None)
    return float(automaton.shortest()[automaton.start])


def _why_impossible(constraint: Constraint, texts: TokenTexts) -> str:
    """Names what the vocabulary cannot spell, where that is simple to see."""
    if isinstance(constraint, Phrases) and not constraint.ignore_case:
        usable = {text for text in texts.bytes_of_token if text is not None}
        bytes_spelt = {byte for text in usable for byte in text + texts.joiner}
        phrase = " ".join(constraint.phrases)
        lacking = sorted({repr(c) for c in phrase if not bytes_spelt.issuperset(c.encode())})
        if not lacking and texts.joiner and constraint.whole_words:
            lacking = [repr(word) for word in phrase.split() if word.encode() not in usable]
        if lacking:
            return f"no token that can be used spells {', '.join(lacking)}; choose other words"
    return "no sequence of the tokens that can be used satisfies it; change it"
