"""Perplexity of a text beside that of models which only count."""

from __future__ import annotations

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import torch

from vlhmm.baselines import KneserNey, Uniform, Unigram
from vlhmm.baselines.kneser_ney import FALLBACK_DISCOUNTS
from vlhmm.data import Corpus
from vlhmm.distributed import ALONE, World, gather_when_done, require_alike
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
    lm: LanguageModel, source: Source, *, streams: int = 1, here: World = ALONE
) -> Generator[Progress | Note, None, TextEvaluation]:
    """`evaluate_source`, telling how far it is. Ranks share the text; the last one counts the baselines besides."""
    require_alike({"the text": source.tokens.digest(), "the number of streams": streams}, here)
    evaluation = yield from evaluating(
        HMMScorer(lm.hmm.tables), source.tokens, lm.tokenizer, streams=streams, here=here
    )
    found, notes = dict[str, float](), list[Note]()
    if here.rank == here.size - 1:
        for step in _evaluating_baselines(lm, source, found):
            if isinstance(step, Note) and here.size > 1:
                # Only the first rank prints.
                notes.append(step)
            else:
                yield step
    baselines, told = gather_when_done((found, notes), here, "baselines")[-1]
    if here.size > 1:
        yield from told
    return TextEvaluation(source, evaluation, streams, baselines)


def _evaluating_baselines(
    lm: LanguageModel, source: Source, found: dict[str, float]
) -> Generator[Progress | Note, None, None]:
    """Puts the perplexity by each baseline into `found`."""
    scorers: dict[str, Scorer[Any]] = {"uniform": Uniform(lm.tokenizer.vocab_size)}
    # Only a corpus has a training text to count in.
    if source.corpus is not None:
        scorers = yield from counting_baselines(source.corpus)
    for name, scorer in scorers.items():
        found[name] = (yield from evaluating(scorer, source.tokens, lm.tokenizer, what=name)).perplexity


@dataclass(frozen=True)
class HeldOutText:
    """Perplexities of the held-out text of a corpus, each in one exact stream."""

    perplexity: dict[str, dict[str, float]]
    """By model, then by split."""
    valid: Evaluation
    """Of the HMM."""
    test: Evaluation
    bits_per_byte: dict[str, dict[str, float | None]]
    """By model, then by split; None: the number of bytes is not known, or the tokens do not spell every text."""
    comparison: str | None
    """Which is better on the test text, the HMM or Kneser-Ney, in a sentence; None: there is no Kneser-Ney."""


def compare_with_kneser_ney(hmm: Evaluation, kneser_ney: Evaluation) -> str:
    """Say which of the two gives a text more probability, and by how much, whichever it is.

    Args:
        hmm: The text by the HMM.
        kneser_ney: The same tokens by Kneser-Ney.

    Returns:
        A sentence with both figures: bits per byte where they are known, else perplexities.

    Example:
        >>> from vlhmm.evaluate import Evaluation
        >>> from vlhmm.reports.evaluation import compare_with_kneser_ney
        >>> def scored(perplexity, bits):
        ...     return Evaluation(perplexity, -100.0, 20, 0, None, bits, None, "one stream")
        >>> compare_with_kneser_ney(scored(90.0, 2.25), scored(100.0, 2.3))
        'HMM better than Kneser-Ney 5-gram on the test text: 2.250 against 2.300 bits per byte, 2.2 % less'
        >>> compare_with_kneser_ney(scored(110.0, None), scored(100.0, None))
        'HMM worse than Kneser-Ney 5-gram on the test text: perplexity 110.0 against 100.0, 10.0 % more'
    """
    if hmm.bits_per_byte is None or kneser_ney.bits_per_byte is None:
        ours, theirs = hmm.perplexity, kneser_ney.perplexity
        figures = f"perplexity {ours:,.1f} against {theirs:,.1f}"
    else:
        ours, theirs = hmm.bits_per_byte, kneser_ney.bits_per_byte
        figures = f"{ours:.3f} against {theirs:.3f} bits per byte"
    if ours == theirs:
        return f"{HMM_NAME} as good as {KNESER_NEY} on the test text: {figures}"
    how, much = ("better", "less") if ours < theirs else ("worse", "more")
    # Infinite where a model gives the text no probability; no bits where it is certain.
    compared = math.isfinite(ours + theirs) and theirs > 0
    by = f", {abs(ours / theirs - 1):.1%} {much}".replace("%", " %") if compared else ""
    return f"{HMM_NAME} {how} than {KNESER_NEY} on the test text: {figures}{by}"


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
    ours, kneser_ney = evaluations[HMM_NAME], evaluations.get(KNESER_NEY)
    return HeldOutText(
        {name: {split: one.perplexity for split, one in by.items()} for name, by in evaluations.items()},
        **ours,
        bits_per_byte={
            name: {split: one.bits_per_byte for split, one in by.items()} for name, by in evaluations.items()
        },
        comparison=None if kneser_ney is None else compare_with_kneser_ney(ours["test"], kneser_ney["test"]),
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
