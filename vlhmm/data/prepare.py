"""Text of any size into a folder of token files, in bounded memory."""

import json
import os
import queue
import threading
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from vlhmm.data.atomic import atomic_folder, atomic_write
from vlhmm.data.corpus import (
    MANIFEST,
    MANIFEST_VERSION,
    Corpus,
    corpus_hash,
    encode_batch,
    eos_rule,
    load_prepared,
    manifest_sha256,
    printable_name,
)
from vlhmm.data.encode import EosRule, LineEncoder
from vlhmm.data.sources import SPLITS, Split
from vlhmm.data.splits import SplitBatch, Text, find_text
from vlhmm.data.tokenizer import Tokenizer
from vlhmm.data.tokens import TokenWriter, read_header, token_writer
from vlhmm.data.vocabulary import Vocabulary

# Batches that may wait between the thread that unpacks and the one that tokenizes.
_WAITING: Final = 4

StrPath = str | os.PathLike[str]


@dataclass(frozen=True)
class Progress:
    """How far `prepare_steps` has come."""

    bytes_read: int
    """Of the files as they lie on disk; text whose words are counted first is read twice."""
    bytes_total: int
    num_tokens: int


def prepare(
    inputs: StrPath | Sequence[StrPath],
    tokenizer: Tokenizer | StrPath | None,
    out: StrPath,
    *,
    vocab_size: int | None = None,
    min_count: int | None = None,
    eos: EosRule | None = None,
    valid: StrPath | None = None,
    test: StrPath | None = None,
) -> Corpus:
    """All of `prepare_steps`; the corpus in `out`."""
    steps = prepare_steps(
        inputs, tokenizer, out, vocab_size=vocab_size, min_count=min_count, eos=eos, valid=valid, test=test
    )
    for _ in steps:
        pass
    return load_prepared(Path(out))


def prepare_steps(
    inputs: StrPath | Sequence[StrPath],
    tokenizer: Tokenizer | StrPath | None,
    out: StrPath,
    *,
    vocab_size: int | None = None,
    min_count: int | None = None,
    eos: EosRule | None = None,
    valid: StrPath | None = None,
    test: StrPath | None = None,
) -> Generator[Progress, None, None]:
    """Writes text files or folders of them as a corpus into the new folder `out`, a step per batch of text.

    Splits, documents and EOS are as in `load_corpus`; `eos` asks for another rule: EOS after every line, every document,
    or none. So are `tokenizer`, `vocab_size` and `min_count`; to make a tokenizer the text is read once more. The folder appears under its name when
    all of it is written; a hidden `.NAME.partial-*` beside it is what a killed run leaves, and the next one removes.
    """
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists already; choose another folder or delete it")
    if (valid is None) != (test is None):
        raise ValueError("1 of the 2 held-out texts given; name both valid and test, or neither")
    paths = [Path(inputs)] if isinstance(inputs, str | os.PathLike) else [Path(path) for path in inputs]
    text = find_text(paths, None if valid is None or test is None else (Path(valid), Path(test)))
    size = text.size
    made = Vocabulary.of(tokenizer, vocab_size, min_count).maker("bpe")
    counted = 0
    if isinstance(made, Tokenizer):
        tokenizer = made
    else:
        with closing(_in_thread(text.batches())) as batches:
            for batch in batches:
                made.add(batch)
                yield Progress(batch.bytes_read, 2 * size, 0)
        tokenizer = made.tokenizer()
        counted = size
    rule = eos or eos_rule(tokenizer)
    encoder = LineEncoder(tokenizer, rule)
    try:
        with atomic_folder(out) as partial:
            with closing(_write_tokens(text, encoder, tokenizer, partial)) as steps:
                for step in steps:
                    yield Progress(counted + step.bytes_read, counted + size, step.num_tokens)
            tokenizer.save(partial / "tokenizer.json")
            write_manifest(partial, printable_name(out), tokenizer, rule)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; nothing was kept", error.filename or str(out)) from error


def _write_tokens(
    text: Text, encoder: LineEncoder, tokenizer: Tokenizer, folder: Path
) -> Generator[Progress, None, None]:
    size = text.size
    with ExitStack() as stack:
        writers: dict[Split, TokenWriter] = {
            split: stack.enter_context(
                token_writer(folder / f"{split}.tokens", vocab_size=tokenizer.vocab_size, tokenizer_hash=tokenizer.hash)
            )
            for split in SPLITS
        }
        for batch in stack.enter_context(closing(_in_thread(text.batches()))):
            writer = writers[batch.split]
            for encoded in encode_batch(encoder, batch):
                ends = encoded.document_ends + writer.num_tokens
                writer.write(encoded.ids)
                writer.add_documents(ends)
                writer.add_source(encoded.words, encoded.bytes)
            yield Progress(batch.bytes_read, size, sum(w.num_tokens for w in writers.values()))
        for split, writer in writers.items():
            if not writer.num_tokens:
                raise ValueError(f"0 tokens for {split}; every split needs text")


def write_manifest(folder: Path, name: str, tokenizer: Tokenizer, rule: EosRule, note: str = "") -> None:
    """Makes a folder with a token file for each split and the tokenizer a corpus."""
    headers = {split: read_header(folder / f"{split}.tokens") for split in SPLITS}
    manifest: dict[str, Any] = {
        "version": MANIFEST_VERSION,
        "name": name,
        "note": note,
        "eos": rule,
        "hash": corpus_hash(tokenizer.hash, [header.sha256 for header in headers.values()]),
        "splits": {split: asdict(header) for split, header in headers.items()},
    }
    manifest["sha256"] = manifest_sha256(manifest)
    atomic_write(folder / MANIFEST, json.dumps(manifest, indent=2).encode())


def _in_thread(batches: Iterable[SplitBatch]) -> Generator[SplitBatch, None, None]:
    """The same batches, read ahead in a thread: unpacking runs beside tokenizing."""
    waiting: queue.Queue[SplitBatch | BaseException | None] = queue.Queue(_WAITING)
    stopped = threading.Event()

    def put(item: SplitBatch | BaseException | None) -> bool:
        while not stopped.is_set():
            try:
                waiting.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def read() -> None:
        try:
            for batch in batches:
                if not put(batch):
                    return
            put(None)
        except BaseException as error:
            # Raised again where the batches are used.
            put(error)

    thread = threading.Thread(target=read, name="vlhmm-prepare-reader", daemon=True)
    thread.start()
    try:
        while (item := waiting.get()) is not None:
            if isinstance(item, BaseException):
                raise item
            yield item
    finally:
        stopped.set()
        thread.join()
