"""The text that a question is about: a split of a corpus, a file, or lines, in the tokens of a model."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from vlhmm.data import Corpus, Tokenizer, Tokens, load_corpus
from vlhmm.data.corpus import MANIFEST, eos_rule
from vlhmm.data.encode import LineEncoder
from vlhmm.data.remote import text_path
from vlhmm.data.sources import Split, read_batches, text_files
from vlhmm.data.token_file import id_dtype
from vlhmm.lm import LanguageModel
from vlhmm.training.plan import read_plan


@dataclass(frozen=True)
class Source:
    """A text in the tokens of a model."""

    name: str
    """As it was asked for; where nothing was, the label."""
    label: str
    """What to call the text."""
    tokens: Tokens
    corpus: Corpus | None = None
    """None: a text of its own, no part of a corpus."""
    split: Split | None = None
    notes: tuple[str, ...] = ()
    """What the reader should know about the text."""


def corpus_label(corpus: Corpus) -> str:
    """Its name, what else decides its text, and its hash."""
    return " ".join(part for part in (corpus.name, corpus.note, f"({corpus.short_hash})") if part)


def read_source(
    lm: LanguageModel,
    folder: str | Path,
    source: str | None = None,
    *,
    split: Split | None = None,
    default: Split = "test",
    data_dir: Path | None = None,
    lines: Iterable[str] | None = None,
) -> Source:
    """Read a text for a model.

    Args:
        lm: The model.
        folder: Its folder, which says what it was trained on.
        source: A corpus or a text file; None: the corpus of its training.
        split: Which part of a corpus; None: `default`. A file has no parts.
        default: The part if `split` is None.
        data_dir: The folder that holds ptb/ and wikitext-2/.
        lines: The text itself, in place of a file of the name `source`.

    Returns:
        The text in the tokens of the model.

    Raises:
        ValueError: The text is empty, or there is none, or it is in the tokens of another tokenizer.

    Example:
        >>> from vlhmm.reports import read_source
        >>> lm = vlhmm.load("demo-model")
        >>> read_source(lm, "demo-model", "two lines", lines=["the cat sees a bird", "the dog hears a fish"]).tokens
        Tokens(12 tokens, 2 documents, uint16)
    """
    folder = Path(folder)
    plan = read_plan(folder)
    notes: list[str] = []
    if source is None:
        if plan is None:
            raise ValueError(f"{folder} does not say what it was trained on: name a corpus or a text file")
        corpus, notes = corpus_for(lm, plan.source, data_dir or plan.data_dir)
    elif lines is not None or text_path(source).is_file():
        if split is not None:
            raise ValueError(f"--split {split} is for a corpus, but {source} is one text: leave --split out")
        if plan is not None and lines is None and Path(source).resolve() == Path(plan.source).resolve():
            notes.append(
                f"note: most of {source} was read in training; leave it out to get the part that was kept back"
            )
        marked = _lines_of_file(source) if lines is None else _marked(lines)
        tokens = _not_empty(_encode(_with_ends(marked), lm.tokenizer), source)
        return Source(source, source, tokens, notes=tuple(notes))
    else:
        corpus, notes = corpus_for(lm, source, data_dir)
    part = split or default
    label = f"{part} of {corpus_label(corpus)}"
    tokens = _not_empty(getattr(corpus, part), label)
    return Source(label if source is None else source, label, tokens, corpus, part, tuple(notes))


def corpus_for(lm: LanguageModel, source: str, data_dir: Path | None) -> tuple[Corpus, list[str]]:
    """The corpus in the model's own tokens, and notes about it; one prepared with another tokenizer is refused."""
    if not (Path(source) / MANIFEST).is_file():
        corpus = load_corpus(source, data_dir=data_dir, tokenizer=lm.tokenizer)
    else:
        corpus = load_corpus(source)
        if corpus.tokenizer.hash != lm.tokenizer.hash:
            raise ValueError(
                f"{source} was prepared with tokenizer {corpus.tokenizer.hash[:12]}, but the model reads tokens of "
                f"{lm.tokenizer.hash[:12]}: prepare the text with the model's tokenizer.json"
            )
    trained_on = lm.about.get("corpus", {})
    if trained_on.get("name") != corpus.name or trained_on.get("hash") == corpus.hash:
        return corpus, []
    other = (
        f"note: the model was trained on another {corpus.name} ({trained_on.get('note') or 'other text'}, "
        f"{str(trained_on.get('hash'))[:12]}): some of this text may have been in its training"
    )
    return corpus, [other]


def first_tokens(source: Source, count: int) -> Source:
    """The first `count` tokens of a text; all of it where there are no more."""
    tokens = source.tokens
    if count >= len(tokens):
        return source
    offsets = tokens.offsets[tokens.offsets < count]
    part = Tokens(tokens.ids[:count], np.concatenate([offsets, [count]]).astype(np.int64))
    return Source(source.name, f"the beginning of {source.label}", part, source.corpus, source.split, source.notes)


def _not_empty(tokens: Tokens, label: str) -> Tokens:
    if not len(tokens):
        raise ValueError(f"{label} has 0 tokens, at least 1 is needed")
    return tokens


def _lines_of_file(source: str) -> list[str | None]:
    return [line for file in text_files(source) for batch in read_batches(file) for line in batch.lines]


def _marked(lines: Iterable[str]) -> list[str | None]:
    """Lines, and None once for the blank ones between two of them."""
    marked: list[str | None] = []
    for text in lines:
        if text.strip():
            marked.append(text)
        elif marked and marked[-1] is not None:
            marked.append(None)
    return marked


def _with_ends(lines: list[str | None]) -> list[str | None]:
    """None after each document: a blank line ends one, or else every line does."""
    while lines and lines[-1] is None:
        lines.pop()
    if None not in lines:
        return [mark for text in lines for mark in (text, None)]
    return [*lines, None]


def _encode(lines: list[str | None], tokenizer: Tokenizer) -> Tokens:
    encoded = LineEncoder(tokenizer, eos_rule(tokenizer)).encode(lines)
    offsets = np.unique(np.concatenate([np.zeros(1, np.int64), encoded.document_ends]))
    ids = encoded.ids.astype(id_dtype(tokenizer.vocab_size))
    return Tokens(ids, offsets, encoded.words, encoded.bytes)
