"""`vlhmm prepare` and `vlhmm cluster`: from text to token files, from words to blocks."""

from __future__ import annotations

import time
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlhmm.cli.options import CorpusName, DataDir, Json, read_corpus
from vlhmm.cli.show import duration, facts, line, print_json, print_table, program, progress_bar, short, table, watch

if TYPE_CHECKING:
    from vlhmm.cluster import Blocks
    from vlhmm.data import Corpus
    from vlhmm.training.presets import Recipe

SAMPLE_BLOCKS, SAMPLE_WORDS = 8, 8


class EosChoice(StrEnum):
    line = "line"
    document = "document"
    none = "none"


class EosBlock(StrEnum):
    own = "own"
    word = "word"
    last = "last"
    none = "none"


class Kind(StrEnum):
    brown = "brown"
    one = "one"
    cloned = "cloned"


def register(app: typer.Typer) -> None:
    app.command(
        epilog="Examples:\n  vlhmm prepare train.txt valid.txt test.txt --out data/mine\n"
        "  vlhmm prepare crawl/*.jsonl.gz --tokenizer llama/tokenizer.json --out data/crawl"
    )(prepare)
    app.command(
        epilog="Examples:\n  vlhmm cluster ptb --blocks 128 --eos none --data-dir data\n"
        "  vlhmm train pydocs --out runs/first --blocks pydocs-64.blocks.tsv"
    )(cluster)


def prepare(
    inputs: Annotated[
        list[Path],
        typer.Argument(
            metavar="INPUTS", help="Text files (.txt, .jsonl, .parquet, also .gz and .xz) or folders of them."
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The new folder.")],
    tokenizer: Annotated[
        str, typer.Option("--tokenizer", metavar="PATH|word", help="A tokenizer.json, a SentencePiece .model, or word.")
    ] = "word",
    eos: Annotated[
        EosChoice | None,
        typer.Option(
            "--eos",
            show_default=False,
            help="Where EOS is put; default: after every line for words, every document for subwords.",
        ),
    ] = None,
    valid: Annotated[Path | None, typer.Option(help="Validation text.", show_default=False)] = None,
    test: Annotated[Path | None, typer.Option(help="Test text.", show_default=False)] = None,
    as_json: Json = False,
) -> None:
    """Turn text of any size into a corpus on disk.

    The folder holds memory-mapped token files of train, valid and test text. Files named train*, valid* and test* are
    those; other text is split by document, 90 : 5 : 5.
    """
    from vlhmm.data import load_corpus, prepare_steps

    begun = time.monotonic()
    words = tokenizer == "word"
    with progress_bar("counting words" if words else "reading", None) as shown:
        steps = prepare_steps(
            inputs, None if words else tokenizer, out, eos=None if eos is None else eos.value, valid=valid, test=test
        )
        for step in steps:
            rate = step.num_tokens / max(time.monotonic() - begun, 1e-9)
            note = f"{short(step.num_tokens)} tokens, {short(rate)}/s"
            shown.update(step.bytes_read, step.bytes_total, note, "tokenizing")
    seconds = time.monotonic() - begun
    corpus = load_corpus(out)
    splits = {"train": corpus.train, "valid": corpus.valid, "test": corpus.test}
    num_tokens = sum(len(tokens) for tokens in splits.values())
    if as_json:
        print_json(
            {
                "folder": str(out),
                "hash": corpus.hash,
                "tokenizer_hash": corpus.tokenizer.hash,
                "vocab_size": corpus.tokenizer.vocab_size,
                "tokens": {name: len(tokens) for name, tokens in splits.items()},
                "documents": {name: tokens.num_documents for name, tokens in splits.items()},
                "seconds": seconds,
            }
        )
        return
    shown_table = table("split", "tokens", "documents", "words", right=("tokens", "documents", "words"))
    for name, tokens in splits.items():
        shown_table.add_row(name, f"{len(tokens):,}", f"{tokens.num_documents:,}", f"{tokens.words or 0:,}")
    print_table(shown_table)
    line()
    facts(
        [
            ("corpus", f"{out} ({corpus.short_hash})"),
            ("tokenizer", repr(corpus.tokenizer)),
            ("time", f"{duration(seconds)}, {short(num_tokens / max(seconds, 1e-9))} tokens/s"),
            ("next", f"{program()} train {out} --out runs/first"),
        ]
    )


def cluster(
    corpus_name: CorpusName,
    blocks: Annotated[int, typer.Option("--blocks", metavar="M", help="Number of blocks, EOS's own included.")] = 128,
    eos: Annotated[
        EosBlock, typer.Option("--eos", help="EOS in a block of its own, as a word, in the last block, or anywhere.")
    ] = EosBlock.own,
    kind: Annotated[
        Kind, typer.Option("--kind", help="brown: Brown clusters; one: a single block; cloned: a block a word.")
    ] = Kind.brown,
    out: Annotated[
        Path | None, typer.Option("--out", show_default=False, help="The file; default: CORPUS-M.blocks.tsv.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Put words that stand in the same places into blocks.

    Writes a line `block TAB word TAB count` for every word.
    """
    from vlhmm.cluster import count_bigrams, mutual_information, word_counts
    from vlhmm.training.presets import BlockSettings, Recipe
    from vlhmm.training.settings import TrainSettings

    corpus = read_corpus(corpus_name, data_dir)
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    begun = time.monotonic()
    settings = BlockSettings(clustering=kind.value, num_blocks=blocks, eos_block=eos.value)
    made = make_blocks(Recipe(blocks=settings, train=TrainSettings(seed=seed)), corpus)
    seconds = time.monotonic() - begun
    information = made.information
    if information is None:
        bigrams = count_bigrams(
            corpus.train, eos=eos.value, eos_id=corpus.tokenizer.eos_id, vocab_size=corpus.tokenizer.vocab_size
        )
        information = mutual_information(bigrams, made.block_of_word)
    file = out or Path(f"{corpus.name.split('.')[0]}-{made.num_blocks}.blocks.tsv")
    counts = word_counts(corpus.train, corpus.tokenizer.vocab_size)
    made.save(file, corpus.tokenizer.tokens(), counts)
    if as_json:
        print_json(
            {
                "file": str(file),
                "num_blocks": made.num_blocks,
                "information": information,
                "seconds": seconds,
                "seed": seed,
                "eos": eos.value,
                "corpus": {"name": corpus.name, "hash": corpus.hash, "note": corpus.note},
            }
        )
        return
    print_sample_blocks(made, corpus)
    line()
    facts(
        [
            ("information", f"{information:.4f} nats between the blocks of adjacent words"),
            ("time", duration(seconds)),
            ("blocks", f"{made.num_blocks:,} of {made.vocab_size:,} words, in {file}"),
        ]
    )


def make_blocks(recipe: Recipe, corpus: Corpus) -> Blocks:
    """The recipe's blocks, with a bar while they are made."""
    return watch(recipe.making_blocks(corpus), "clustering words")


def print_sample_blocks(blocks: Blocks, corpus: Corpus) -> None:
    """A few blocks, spread from the most frequent to the rarest, with their most frequent words."""
    from vlhmm.cluster import word_counts

    counts = word_counts(corpus.train, corpus.tokenizer.vocab_size)
    shown = table("block", "tokens", "words", "most frequent", right=("block", "tokens", "words"))
    step = max(1, blocks.num_blocks // SAMPLE_BLOCKS)
    for block in list(range(0, blocks.num_blocks, step))[:SAMPLE_BLOCKS]:
        words = blocks.words(block)
        best = words[(-counts[words]).argsort(kind="stable")][:SAMPLE_WORDS]
        names = " ".join(corpus.tokenizer.token(word) for word in best)
        shown.add_row(str(block), f"{counts[words].sum():,}", f"{len(words):,}", names)
    print_table(shown)
