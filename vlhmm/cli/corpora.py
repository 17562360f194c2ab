"""`vlhmm prepare` and `vlhmm cluster`: from text to token files, from words to blocks."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from vlhmm.cli.options import CorpusName, DataDir, Json, MinCount, TokenizerOption, VocabSize, read_corpus
from vlhmm.cli.show import duration, facts, line, print_json, print_table, program, short, table, watch

if TYPE_CHECKING:
    from vlhmm.reports import ClusteredWords, PreparedCorpus


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
        "  vlhmm prepare crawl/*.jsonl.gz --tokenizer llama/tokenizer.json --processes 8 --out data/crawl\n"
        "  vlhmm prepare data/crawl data/books --out data/all"
    )(prepare)
    app.command(
        epilog="Examples:\n  vlhmm cluster ptb --blocks 128 --eos none --data-dir data\n"
        "  vlhmm train pydocs --out runs/first --blocks pydocs-64.blocks.tsv"
    )(cluster)


def prepare(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUTS",
            help="Text files (.txt, .jsonl, .parquet, also .gz and .xz), folders of them, or addresses such as s3://...; or "
            "prepared folders, to join them.",
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The new folder.")],
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSize = None,
    min_count: MinCount = None,
    eos: Annotated[
        EosChoice | None,
        typer.Option(
            "--eos",
            show_default=False,
            help="Where EOS is put; default: after every line for words, every document for subwords.",
        ),
    ] = None,
    valid: Annotated[str | None, typer.Option(help="Validation text.", show_default=False)] = None,
    test: Annotated[str | None, typer.Option(help="Test text.", show_default=False)] = None,
    processes: Annotated[
        int,
        typer.Option("--processes", min=1, metavar="N", help="Processes, each of which tokenizes one file at a time."),
    ] = 1,
    as_json: Json = False,
) -> None:
    """Turn text of any size into a corpus on disk.

    The folder holds memory-mapped token files of train, valid and test text. Files named train*, valid* and test* become these splits; other text is split by document, 90 : 5 : 5. Prepared folders are joined by reference, not copied.
    """
    from vlhmm.distributed import world
    from vlhmm.reports import preparing_corpus

    steps = preparing_corpus(
        inputs,
        tokenizer,
        out,
        vocab_size=vocab_size,
        min_count=min_count,
        eos=None if eos is None else eos.value,
        valid=valid,
        test=test,
        processes=processes,
        here=world(),
    )
    made = watch(steps, "reading")
    if as_json:
        print_json(made)
    else:
        _print_prepared(made)


def _print_prepared(made: PreparedCorpus) -> None:
    from vlhmm.reports.corpora import splits_of

    shown = table("split", "tokens", "documents", "words", right=("tokens", "documents", "words"))
    splits = splits_of(made.corpus)
    for name, tokens in splits.items():
        shown.add_row(name, f"{len(tokens):,}", f"{tokens.num_documents:,}", f"{tokens.words or 0:,}")
    print_table(shown)
    line()
    num_tokens = sum(len(tokens) for tokens in splits.values())
    facts(
        [
            ("corpus", f"{made.folder} ({made.corpus.short_hash})"),
            ("tokenizer", repr(made.corpus.tokenizer)),
            ("time", f"{duration(made.seconds)}, {short(num_tokens / max(made.seconds, 1e-9))} tokens/s"),
            ("next", f"{program()} train {made.folder} --out runs/first"),
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
    tokenizer: TokenizerOption = None,
    vocab_size: VocabSize = None,
    min_count: MinCount = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Cluster words that occur in similar contexts into blocks.

    Writes a line `block TAB word TAB count` for every word.
    """
    from vlhmm.distributed import world
    from vlhmm.reports import clustering_words
    from vlhmm.training.presets import BlockSettings

    corpus = read_corpus(corpus_name, data_dir, tokenizer, vocab_size, min_count)
    settings = BlockSettings(clustering=kind.value, num_blocks=blocks, eos_block=eos.value)
    made = watch(clustering_words(corpus, settings, out=out, seed=seed, here=world()), "clustering words")
    if as_json:
        print_json(made)
    else:
        _print_clustered(made)


def _print_clustered(made: ClusteredWords) -> None:
    from vlhmm.reports.corpora import sample_blocks

    shown = table("block", "tokens", "words", "most frequent", right=("block", "tokens", "words"))
    for one in sample_blocks(made.blocks, made.corpus):
        shown.add_row(
            str(one.block),
            f"{one.num_tokens:,}",
            f"{one.num_words:,}",
            " ".join(map(made.corpus.tokenizer.shown, one.frequent)),
        )
    print_table(shown)
    line()
    facts(
        [
            ("information", f"{made.information:.4f} nats between the blocks of adjacent words"),
            ("time", duration(made.seconds)),
            ("blocks", f"{made.blocks.num_blocks:,} of {made.blocks.vocab_size:,} words, in {made.file}"),
        ]
    )
