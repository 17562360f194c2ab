"""A text made into a corpus on disk, and its words into blocks: what was made."""

from __future__ import annotations

import time
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from pathlib import Path

from vlhmm.cluster import Blocks, count_bigrams, mutual_information, word_counts
from vlhmm.data import Corpus, Tokens, load_corpus, prepare_steps
from vlhmm.data.encode import EosRule
from vlhmm.distributed import ALONE, World, first_does, require_alike
from vlhmm.progress import Progress, result_of
from vlhmm.training.presets import BlockSettings, Recipe
from vlhmm.training.settings import TrainSettings

SAMPLE_BLOCKS, SAMPLE_WORDS = 8, 8


@dataclass(frozen=True)
class PreparedCorpus:
    """A corpus that was made of text."""

    folder: Path
    corpus: Corpus
    seconds: float


def preparing_corpus(
    inputs: Sequence[str | Path],
    tokenizer: str | None,
    out: Path,
    *,
    vocab_size: int | None = None,
    min_count: int | None = None,
    eos: EosRule | None = None,
    valid: str | Path | None = None,
    test: str | Path | None = None,
    processes: int = 1,
    here: World = ALONE,
) -> Generator[Progress, None, PreparedCorpus]:
    """`vlhmm.data.prepare`, telling how far it is."""
    begun = time.monotonic()
    steps = prepare_steps(
        inputs,
        tokenizer,
        out,
        vocab_size=vocab_size,
        min_count=min_count,
        eos=eos,
        valid=valid,
        test=test,
        processes=processes,
        here=here,
    )
    for step in steps:
        yield Progress(
            "tokenizing" if step.num_tokens else "reading for the vocabulary",
            step.bytes_read,
            step.bytes_total,
            unit="tokens",
            amount=step.num_tokens,
            note=f"{step.num_tokens:,} tokens",
        )
    seconds = time.monotonic() - begun
    return PreparedCorpus(out, load_corpus(out), seconds)


def splits_of(corpus: Corpus) -> dict[str, Tokens]:
    return {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}


@dataclass(frozen=True)
class ClusteredWords:
    """Blocks of the words of a corpus, in a file."""

    file: Path
    blocks: Blocks
    information: float
    """Mutual information of the blocks of adjacent words, in nats."""
    seconds: float
    seed: int
    eos: str
    """Where EOS is."""
    corpus: Corpus


def cluster_words(
    corpus: Corpus, settings: BlockSettings | None = None, *, out: Path | None = None, seed: int = 0
) -> ClusteredWords:
    r"""Put the words of a corpus into blocks, and write these to a file.

    Args:
        corpus: The corpus; its training text is read.
        settings: Number and kind of the blocks; None: the defaults.
        out: The file; None: named after the corpus and the number of blocks.
        seed: Seed of the search.

    Returns:
        The blocks, their mutual information and the file.

    Example:
        >>> from pathlib import Path
        >>> from vlhmm.reports import cluster_words
        >>> from vlhmm.training.presets import BlockSettings
        >>> _ = Path("animals.txt").write_text(50 * "the cat sees a bird\nthe dog sees a fish\n")
        >>> made = cluster_words(vlhmm.load_corpus("animals.txt", tokenizer="words"), BlockSettings(num_blocks=4))
        >>> made.blocks.num_blocks, str(made.file), made.information > 1
        (4, 'animals-4.blocks.tsv', True)
    """
    return result_of(clustering_words(corpus, settings, out=out, seed=seed))


def clustering_words(
    corpus: Corpus,
    settings: BlockSettings | None = None,
    *,
    out: Path | None = None,
    seed: int = 0,
    here: World = ALONE,
) -> Generator[Progress, None, ClusteredWords]:
    """`cluster_words`, telling how far it is."""
    settings = settings or BlockSettings()
    require_alike({"the corpus": corpus.hash, "the blocks": settings, "the seed": seed}, here)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    tokenizer, begun = corpus.tokenizer, time.monotonic()
    blocks = yield from Recipe(blocks=settings, train=TrainSettings(seed=seed)).making_blocks(corpus, here)
    seconds = time.monotonic() - begun
    information = blocks.information
    if information is None:
        eos, eos_id = settings.eos_block, tokenizer.eos_id
        bigrams = count_bigrams(corpus.train, eos=eos, eos_id=eos_id, vocab_size=tokenizer.vocab_size)
        information = mutual_information(bigrams, blocks.block_of_word)
    file = out or Path(f"{corpus.name.split('.')[0]}-{blocks.num_blocks}.blocks.tsv")
    counts = word_counts(corpus.train, tokenizer.vocab_size)
    first_does(lambda: blocks.save(file, tokenizer.tokens(), counts), here, "writing blocks")
    return ClusteredWords(file, blocks, information, seconds, seed, settings.eos_block, corpus)


@dataclass(frozen=True)
class BlockWords:
    """A block and its most frequent words."""

    block: int
    num_tokens: int
    num_words: int
    frequent: list[str]


def sample_blocks(blocks: Blocks, corpus: Corpus) -> list[BlockWords]:
    """A few blocks, spread from the most frequent to the rarest."""
    counts = word_counts(corpus.train, corpus.tokenizer.vocab_size)
    step = max(1, blocks.num_blocks // SAMPLE_BLOCKS)
    samples = []
    for block in list(range(0, blocks.num_blocks, step))[:SAMPLE_BLOCKS]:
        words = blocks.words(block)
        best = words[(-counts[words]).argsort(kind="stable")][:SAMPLE_WORDS]
        names = [corpus.tokenizer.token(word) for word in best]
        samples.append(BlockWords(block, int(counts[words].sum()), len(words), names))
    return samples
