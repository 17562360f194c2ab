"""`vlhmm eval`: perplexity, and how it was counted."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vlhmm.cli import options
from vlhmm.cli.options import DataDir, DeviceOption, Json, ModelDir, choose_device, stdin_lines
from vlhmm.cli.show import corpus_label, facts, message, print_json

if TYPE_CHECKING:
    from collections.abc import Iterable

    from vlhmm.data import Corpus, Tokenizer, Tokens
    from vlhmm.evaluate import Evaluation
    from vlhmm.lm import LanguageModel


class Split(StrEnum):
    train = "train"
    valid = "valid"
    test = "test"


SourceArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="CORPUS|FILE",
        show_default=False,
        help="A corpus, a text file, or `-` for stdin; left out: the corpus it was trained on.",
    ),
]


def register(app: typer.Typer) -> None:
    app.command(
        "eval",
        epilog="Examples:\n  vlhmm eval runs/demo\n  vlhmm eval runs/demo letters.txt --json\n"
        "  zcat news.gz | vlhmm eval runs/demo -",
    )(evaluate_text)


def evaluate_text(
    folder: ModelDir,
    source: SourceArgument = None,
    split: Annotated[
        Split | None,
        typer.Option("--split", show_default=False, help="Which part of a corpus, test if not said; a file has none."),
    ] = None,
    streams: Annotated[
        int, typer.Option("--streams", min=1, help="1: exact; more: faster, each warmed up on the text before it.")
    ] = 1,
    device: DeviceOption = options.Device.auto,
    data_dir: DataDir = None,
    as_json: Json = False,
) -> None:
    """Perplexity of a text, with everything that was counted."""
    from vlhmm.baselines import Uniform
    from vlhmm.cli.run import counting_baselines, evaluate_shown
    from vlhmm.evaluate import HMMScorer
    from vlhmm.lm import load

    lm = load(folder, choose_device(device))
    corpus, tokens, label = read_source(lm, folder, source, split, Split.test, data_dir)
    evaluation = evaluate_shown(HMMScorer(lm.hmm.tables), tokens, lm.tokenizer, "scoring", streams)
    # Only a corpus has a training text to count in.
    scorers = {"uniform": Uniform(lm.tokenizer.vocab_size)} if corpus is None else counting_baselines(corpus)
    baselines = {name: evaluate_shown(scorer, tokens, lm.tokenizer, name) for name, scorer in scorers.items()}
    if as_json:
        values: dict[str, Any] = {
            "text": label if source is None else source,
            "split": None if corpus is None else (split or Split.test).value,
            **evaluation.to_dict(),
            "byte_perplexity": _byte_perplexity(evaluation),
            "streams": streams,
            "baselines": {name: baseline.perplexity for name, baseline in baselines.items()},
            "corpus": None if corpus is None else {"name": corpus.name, "hash": corpus.hash, "note": corpus.note},
        }
        print_json(values)
        return
    rows = [("text", label), ("perplexity", f"{evaluation.perplexity:,.2f} per token")]
    if not lm.tokenizer.word_level:
        rows += _subword_rows(evaluation)
    rows += [
        ("log p", f"{evaluation.log_prob:,.1f} nats"),
        ("tokens", f"{evaluation.num_tokens:,} scored"),
        ("unknown", f"{evaluation.num_unknown:,} tokens, {evaluation.unknown_rate:.2%}"),
        ("protocol", evaluation.protocol),
        ("compare", ", ".join(f"{name} {baseline.perplexity:,.1f}" for name, baseline in baselines.items())),
    ]
    facts(rows)


def _subword_rows(evaluation: Evaluation) -> list[tuple[str, str]]:
    rows = []
    if evaluation.word_perplexity is not None:
        rows.append(("", f"{evaluation.word_perplexity:,.2f} per word"))
    if evaluation.bits_per_byte is not None:
        rows.append(("", f"{_byte_perplexity(evaluation):,.3f} per byte, {evaluation.bits_per_byte:.4f} bits per byte"))
    return rows


def _byte_perplexity(evaluation: Evaluation) -> float | None:
    return None if evaluation.bits_per_byte is None else float(2**evaluation.bits_per_byte)


def read_source(
    lm: LanguageModel, folder: Path, source: str | None, split: Split | None, default: Split, data_dir: Path | None
) -> tuple[Corpus | None, Tokens, str]:
    """A split of a corpus, or a text file or stdin without one, in the model's own tokens; and how to call it."""
    from vlhmm.cli.run import read_plan

    plan = read_plan(folder)
    if source is None:
        if plan is None:
            raise ValueError(f"{folder} does not say what it was trained on: name a corpus or a text file")
        corpus = corpus_for(lm, plan.source, data_dir or plan.data_dir)
    elif _is_file(source):
        if split is not None:
            raise ValueError(f"--split {split} is for a corpus, but {source} is one text: leave --split out")
        if plan is not None and source != "-" and Path(source).resolve() == Path(plan.source).resolve():
            message(f"note: most of {source} was read in training; leave it out to get the part that was kept back")
        return None, _not_empty(_read_text(source, lm.tokenizer), source), source
    else:
        corpus = corpus_for(lm, source, data_dir)
    part = split or default
    label = f"{part.value} of {corpus_label(corpus)}"
    return corpus, _not_empty(getattr(corpus, part.value), label), label


def _not_empty(tokens: Tokens, label: str) -> Tokens:
    if not len(tokens):
        raise ValueError(f"{label} has 0 tokens, at least 1 is needed")
    return tokens


def _is_file(source: str) -> bool:
    return source == "-" or Path(source).is_file()


def corpus_for(lm: LanguageModel, source: str, data_dir: Path | None) -> Corpus:
    """The corpus in the model's own tokens; one prepared with another tokenizer is refused."""
    from vlhmm.data import load_corpus
    from vlhmm.data.corpus import MANIFEST

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
    if trained_on.get("name") == corpus.name and trained_on.get("hash") != corpus.hash:
        message(
            f"note: the model was trained on another {corpus.name} ({trained_on.get('note') or 'other text'}, "
            f"{str(trained_on.get('hash'))[:12]}): some of this text may have been in its training"
        )
    return corpus


def _read_text(source: str, tokenizer: Tokenizer) -> Tokens:
    """A text file or stdin in the model's tokens; a blank line ends a document, or else every line does."""
    from vlhmm.data.sources import read_batches, text_files

    lines: list[str | None] = []
    if source == "-":
        for text in stdin_lines():
            if text.strip():
                lines.append(text)
            elif lines and lines[-1] is not None:
                lines.append(None)
    else:
        for file in text_files(source):
            for batch in read_batches(file):
                lines += batch.lines
    while lines and lines[-1] is None:
        lines.pop()
    if None not in lines:
        lines = [mark for text in lines for mark in (text, None)]
    elif lines:
        lines.append(None)
    return _encode(lines, tokenizer)


def _encode(lines: Iterable[str | None], tokenizer: Tokenizer) -> Tokens:
    import numpy as np

    from vlhmm.data import Tokens
    from vlhmm.data.corpus import eos_rule
    from vlhmm.data.encode import LineEncoder
    from vlhmm.data.tokens import id_dtype

    encoded = LineEncoder(tokenizer, eos_rule(tokenizer)).encode(list(lines))
    offsets = np.unique(np.concatenate([np.zeros(1, np.int64), encoded.document_ends]))
    ids = encoded.ids.astype(id_dtype(tokenizer.vocab_size))
    return Tokens(ids, offsets, encoded.words, encoded.bytes)
