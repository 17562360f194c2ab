"""The sets of keywords, the prompts that ask for them, and what it means that a text has them."""

from __future__ import annotations

import json
import random
import re
from dataclasses import asdict, dataclass
from pathlib import Path

HERE = Path(__file__).parent
SETS = HERE / "sets.json"
NUM_SETS = 200
SEED = 2026
PHRASE_CHANCE = 0.3


@dataclass(frozen=True)
class KeywordSet:
    items: tuple[str, ...]
    """Two to four words or phrases, all of which must occur."""
    words: tuple[int, int] | None
    """White-space words of the text, at least and at most; None: as many as its tokens allow."""
    max_tokens: int
    """The text must have ended by then, EOS counted."""

    @property
    def prompt(self) -> str:
        return prompt_for(self.items)


def prompt_for(items: tuple[str, ...]) -> str:
    return f"Write a sentence with the words: {', '.join(items)}."


def satisfies(keywords: KeywordSet, text: str) -> bool:
    """Whether the text has every item as whole words, in upper or lower case, and its length; decided on the text alone."""
    if keywords.words is not None and not keywords.words[0] <= num_words(text) <= keywords.words[1]:
        return False
    return all(contains(item, text) for item in keywords.items)


def contains(item: str, text: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(item)}(?!\w)", text, re.IGNORECASE) is not None


def num_words(text: str) -> int:
    """As `str.split` counts them, but for ASCII white space alone."""
    return len(re.findall(r"[^\s\x1c-\x1f]+", text, re.ASCII))


def read_sets(path: Path = SETS) -> list[KeywordSet]:
    return [
        KeywordSet(tuple(entry["items"]), tuple(entry["words"]) if entry["words"] else None, entry["max_tokens"])
        for entry in json.loads(path.read_text(encoding="utf-8"))
    ]


def make_sets() -> list[KeywordSet]:
    """Always the same ones: items from the first halves of the two lists, in an order that the seed decides."""
    words, phrases, draw = *(half[0] for half in _halves()), random.Random(SEED)
    sets = []
    for number in range(NUM_SETS):
        size = 2 + number % 3
        items = draw.sample(words, size)
        if draw.random() < PHRASE_CHANCE:
            items[-1] = draw.choice(phrases)
        # A limit on words multiplies the states of the automaton; those of four items are many as it is.
        low = draw.randrange(5, 9) + 2 * (size - 2)
        limit = (low, low + draw.randrange(3, 7)) if size < 4 else None
        sets.append(KeywordSet(tuple(items), limit, max_tokens=draw.choice((24, 32, 40) if size < 4 else (32, 40))))
    return sets


def write_sets(path: Path = SETS) -> None:
    lines = ",\n".join(" " + json.dumps(asdict(keywords)) for keywords in make_sets())
    path.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def other_prompts(num: int, seed: int) -> list[str]:
    """Prompts of the same form from the second halves of the lists: no item of any set is among them."""
    words, phrases = (half[1] for half in _halves())
    draw = random.Random(seed)
    prompts = []
    for _ in range(num):
        items = draw.sample(words, draw.randrange(2, 5))
        if draw.random() < PHRASE_CHANCE:
            items[-1] = draw.choice(phrases)
        prompts.append(prompt_for(tuple(items)))
    return prompts


def _halves() -> list[tuple[list[str], list[str]]]:
    halves = []
    for name in ("words.txt", "phrases.txt"):
        items = (HERE / name).read_text(encoding="utf-8").split("\n")
        items = [item for item in items if item]
        random.Random(SEED).shuffle(items)
        halves.append((items[: len(items) // 2], items[len(items) // 2 :]))
    return halves
