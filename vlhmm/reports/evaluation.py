"""Perplexity of a text beside that of models which only count."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from vlhmm.baselines import KneserNey, Uniform, Unigram
from vlhmm.baselines.kneser_ney import FALLBACK_DISCOUNTS
from vlhmm.data import Corpus
from vlhmm.evaluate import Evaluation, HMMScorer, Scorer, evaluating
from vlhmm.lm import LanguageModel
from vlhmm.models import Model
from vlhmm.progress import Note, Progress, result_of
from vlhmm.reports.sources import Source

KNESER_NEY = "Kneser-Ney 5-gram"
KNESER_NEY_TOKENS = 20_000_000
"""Of a longer text, counting n-grams for comparison would take more than half a minute."""
HMM_NAME = "HMM"


@dataclass(frozen=True)
class TextEvaluation:
    """The perplexity of a text, and that of baselines."""

    source: Source
    evaluation: Evaluation
    streams: int
    baselines: dict[str, float]
    """Their perplexities of the same text."""

    @property
    def byte_perplexity(self) -> float | None:
        """exp(-log p / number of bytes of the source text); None: not known."""
        bits = self.evaluation.bits_per_byte
        return None if bits is None else float(2**bits)


def evaluate_source(lm: LanguageModel, source: Source, *, streams: int = 1) -> TextEvaluation:
    """Compute the perplexity of a text, beside that of baselines.

    Args:
        lm: The model.
        source: The text, as `read_source` reads it.
        streams: Parts that are scored side by side; 1 is exact.

    Returns:
        The perplexities, and what was counted. For a corpus the baselines are uniform, unigram and Kneser-Ney of its training
        text; for any other text uniform alone.

    Example:
        >>> from vlhmm.reports import evaluate_source, read_source
        >>> lm = vlhmm.load("demo-model")
        >>> source = read_source(lm, "demo-model", "a line", lines=["the dog sees a bird"])
        >>> report = evaluate_source(lm, source)
        >>> round(report.evaluation.perplexity, 1), report.baselines
        (1.5, {'uniform': 12.0})
    """
    return result_of(evaluating_source(lm, source, streams=streams))


def evaluating_source(
    lm: LanguageModel, source: Source, *, streams: int = 1
) -> Generator[Progress | Note, None, TextEvaluation]:
    """`evaluate_source`, telling how far it is."""
    evaluation = yield from evaluating(HMMScorer(lm.hmm.tables), source.tokens, lm.tokenizer, streams=streams)
    scorers: dict[str, Scorer[Any]] = {"uniform": Uniform(lm.tokenizer.vocab_size)}
    # Only a corpus has a training text to count in.
    if source.corpus is not None:
        scorers = yield from counting_baselines(source.corpus)
    baselines = {}
    for name, scorer in scorers.items():
        baselines[name] = (yield from evaluating(scorer, source.tokens, lm.tokenizer, what=name)).perplexity
    return TextEvaluation(source, evaluation, streams, baselines)


@dataclass(frozen=True)
class HeldOutText:
    """Perplexities of the held-out text of a corpus, each in one exact stream."""

    perplexity: dict[str, dict[str, float]]
    """By model, then by split."""
    valid: Evaluation
    """Of the HMM."""
    test: Evaluation


def evaluating_held_out(model: Model, corpus: Corpus) -> Generator[Progress | Note, None, HeldOutText]:
    """Validation and test text by the model, and by models that only count."""
    with torch.no_grad():
        hmm = HMMScorer(model.tables().detach())
    scorers = {**(yield from counting_baselines(corpus)), HMM_NAME: hmm}
    evaluations: dict[str, dict[str, Evaluation]] = {}
    for name, scorer in scorers.items():
        evaluations[name] = {}
        for split, tokens in (("valid", corpus.valid), ("test", corpus.test)):
            steps = evaluating(scorer, tokens, corpus.tokenizer, what=f"scoring {split}")
            evaluations[name][split] = yield from steps
    return HeldOutText(
        {
            name: {split: evaluation.perplexity for split, evaluation in by_split.items()}
            for name, by_split in evaluations.items()
        },
        **evaluations[HMM_NAME],
    )


def counting_baselines(corpus: Corpus) -> Generator[Note, None, dict[str, Scorer[Any]]]:
    """Models of the training text that take seconds to make; Kneser-Ney is left out, with a note, where it would not."""
    num_words, num_tokens = corpus.tokenizer.vocab_size, len(corpus.train)
    scorers: dict[str, Scorer[Any]] = {"uniform": Uniform(num_words), "unigram": Unigram.of(corpus.train, num_words)}
    if num_tokens > KNESER_NEY_TOKENS:
        yield Note(
            f"no {KNESER_NEY}: {num_tokens:,} training tokens, counted for comparison up to {KNESER_NEY_TOKENS:,}"
        )
        return scorers
    try:
        model = KneserNey.fit(
            corpus.train, num_words=num_words, eos_id=corpus.tokenizer.eos_id, fallback=FALLBACK_DISCOUNTS
        )
    # Too little memory for a comparison must not cost the run's own figures.
    except ValueError as error:
        yield Note(f"no {KNESER_NEY}: {error}")
        return scorers
    guessed = [str(order) for order, discounts in enumerate(model.discounts or (), 1) if not discounts.estimated]
    if guessed:
        fixed = ", ".join(map(str, FALLBACK_DISCOUNTS))
        yield Note(
            f"{KNESER_NEY}: the text is too small to estimate discounts of order {', '.join(guessed)}; {fixed} instead"
        )
    return {**scorers, KNESER_NEY: model}
