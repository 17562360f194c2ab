"""The inspection of a text, by what is known of the text."""

from __future__ import annotations

from collections.abc import Generator

from vlhmm.cluster import word_counts
from vlhmm.distributed import ALONE, World
from vlhmm.inspection import Inspection, inspecting
from vlhmm.lm import LanguageModel
from vlhmm.progress import Progress, result_of
from vlhmm.reports.sources import Source


def inspect_source(
    lm: LanguageModel, source: Source, *, streams: int = 1, memory: int = 64, top: int = 12
) -> Inspection:
    """Compute what a model does inside on a text.

    Args:
        lm: The model.
        source: The text, as `read_source` reads it. Of a corpus, words are counted in its training text.
        streams: Parts that are read side by side; 1 is exact.
        memory: The longest context whose perplexity is computed; 0: none.
        top: Number of the most used states.

    Returns:
        The states that the text uses, their entropy, and perplexities by context, place and frequency.

    Example:
        >>> from vlhmm.reports import inspect_source, read_source
        >>> lm = vlhmm.load("demo-model")
        >>> source = read_source(lm, "demo-model", "a line", lines=["the dog sees a bird"])
        >>> found = inspect_source(lm, source, memory=2, top=1)
        >>> round(found.perplexity, 1), len(found.memory.perplexity), len(found.states)
        (1.5, 3, 1)
    """
    return result_of(inspecting_source(lm, source, streams=streams, memory=memory, top=top))


def inspecting_source(
    lm: LanguageModel, source: Source, *, streams: int = 1, memory: int = 64, top: int = 12, here: World = ALONE
) -> Generator[Progress, None, Inspection]:
    """`inspect_source`, telling how far it is."""
    counts = None if source.corpus is None else word_counts(source.corpus.train, lm.tokenizer.vocab_size)
    steps = inspecting(lm, source.tokens, train_counts=counts, streams=streams, memory=memory, top=top, here=here)
    return (yield from steps)
