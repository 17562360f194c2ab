"""Text of any size into a folder of token files, in bounded memory."""

import json
import os
import queue
import shutil
import threading
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

from vlhmm.arguments import check_count
from vlhmm.data.atomic import atomic_folder, atomic_write
from vlhmm.data.corpus import (
    MANIFEST,
    MANIFEST_VERSION,
    Corpus,
    corpus_hash,
    eos_rule,
    join_corpora,
    load_prepared,
    manifest_sha256,
    printable_name,
)
from vlhmm.data.encode import EosRule, LineEncoder
from vlhmm.data.parts import (
    PARTS,
    TOKENIZER,
    Job,
    Workers,
    count_documents,
    encode_into,
    merge_parts,
    require_text,
    token_writers,
    write_part,
)
from vlhmm.data.sources import SPLITS, paths_of
from vlhmm.data.splits import SplitBatch, Text, find_text, require_documents
from vlhmm.data.token_file import read_header
from vlhmm.data.tokenizer import Tokenizer
from vlhmm.data.vocabulary import Vocabulary
from vlhmm.distributed import ALONE, World, gather_when_done

# Size of the queue of batches between the thread that decompresses and the one that tokenizes.
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
    processes: int = 1,
) -> Corpus:
    """All of `prepare_steps`; the corpus in `out`."""
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
    processes: int = 1,
    here: World = ALONE,
) -> Generator[Progress, None, None]:
    """Writes text files or folders of them as a corpus into the new folder `out`, a step per batch of text.

    Splits, documents and EOS are as in `load_corpus`; `eos` asks for another rule: EOS after every line, every document,
    or none. So are `tokenizer`, `vocab_size` and `min_count`; to make a tokenizer the text is read once more. The folder appears under its name when
    all of it is written; a hidden `.NAME.partial-*` beside it is what a killed run leaves, and the next one removes.

    Several `processes`, or ranks, tokenize a file each at a time; the folder is the same to the byte. Ranks need one file system.
    Inputs that are prepared corpora themselves become one corpus, which refers to them.
    """
    check_count("processes", processes)
    if processes > 1 and here.size > 1:
        raise ValueError(f"{processes} processes for each of {here.size} ranks: each rank is one, leave processes out")
    if here.size > 1 and not here.is_first:
        yield from _help_to_prepare(here)
        return
    out = Path(out)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise ValueError(f"{out} exists already; choose another folder or delete it")
    if (valid is None) != (test is None):
        raise ValueError("1 of the 2 held-out texts given; name both valid and test, or neither")
    paths = paths_of(inputs)
    folders = [path for path in paths if isinstance(path, Path) and (path / MANIFEST).is_file()]
    if folders:
        if len(folders) < len(paths) or any(one is not None for one in (tokenizer, vocab_size, min_count, eos, valid)):
            raise ValueError(
                f"{folders[0]} is prepared: it can be joined with prepared corpora alone, without other options"
            )
        join_corpora(folders, out)
        gather_when_done(None, here, "preparing")
        gather_when_done(None, here, "prepared")
        return
    text = find_text(paths, None if valid is None or test is None else (valid, test))
    size = text.size
    made = Vocabulary.of(tokenizer, vocab_size, min_count).maker("bpe")
    counted = 0
    if isinstance(made, Tokenizer):
        tokenizer = made
    else:
        # The tokenizer depends on the order of lines: a single process reads them all.
        with closing(_in_thread(text.batches())) as batches:
            for batch in batches:
                made.add(batch)
                yield Progress(batch.bytes_read, 2 * size, 0)
        tokenizer = made.tokenizer()
        counted = size
    # The text that it holds is as long as the longest line.
    del made
    rule = eos or eos_rule(tokenizer)
    # It refuses a tokenizer that the rule does not fit.
    encoder = LineEncoder(tokenizer, rule)
    try:
        with atomic_folder(out) as partial:
            tokenizer.save(partial / TOKENIZER)
            if processes == here.size == 1:
                steps = _write_tokens(text, encoder, tokenizer, partial)
            else:
                steps = _write_in_parts(Job(text, rule, partial.absolute()), tokenizer, processes, here)
            with closing(steps):
                for step in steps:
                    yield Progress(counted + step.bytes_read, counted + size, step.num_tokens)
            write_manifest(partial, printable_name(out), tokenizer, rule)
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror}; nothing was kept", error.filename or str(out)) from error
    gather_when_done(None, here, "prepared")


def _write_in_parts(job: Job, tokenizer: Tokenizer, processes: int, here: World) -> Generator[Progress, None, None]:
    """The token files, of parts that processes or ranks write."""
    (job.folder / PARTS).mkdir()
    if here.size > 1:
        gather_when_done(job, here, "preparing")
        yield from _merged(job, tokenizer, iter(_own_parts(job, here)))
        shutil.rmtree(job.folder / PARTS)
        return
    with Workers(processes) as workers:
        documents = list(workers.counted(job)) if job.counts_documents else []
        if job.text.splits is None:
            require_documents(sum(documents))
        yield from _merged(job, tokenizer, workers.written(job, documents))
    shutil.rmtree(job.folder / PARTS)


def _merged(job: Job, tokenizer: Tokenizer, finished: Iterator[int]) -> Generator[Progress, None, None]:
    sizes, total = [0, *accumulate(job.text.sizes)], job.text.size
    for step in merge_parts(job, tokenizer, finished):
        yield Progress(sizes[step.files], total, step.num_tokens)


def _own_parts(job: Job, here: World) -> list[int]:
    """Writes this rank's parts; the tokens of all."""
    own = range(here.rank, len(job.text.files), here.size)
    documents: list[int] = []
    if job.counts_documents:
        counts = gather_when_done({n: count_documents(job, n) for n in own}, here, "counting documents")
        by_file = {n: count for part in counts for n, count in part.items()}
        documents = [by_file[n] for n in range(len(job.text.files))]
        if job.text.splits is None:
            require_documents(sum(documents))
    written = gather_when_done({n: write_part(job, n, documents[:n]) for n in own}, here, "tokenizing")
    by_file = {n: count for part in written for n, count in part.items()}
    return [by_file[n] for n in range(len(job.text.files))]


def _help_to_prepare(here: World) -> Generator[Progress, None, None]:
    """What ranks other than the first do."""
    yield Progress(0, 0, 0)
    unknown: Job | None = None
    job = gather_when_done(unknown, here, "preparing")[0]
    if job is not None:
        if not job.folder.is_dir():
            raise ValueError(f"{job.folder.parent} is not on rank {here.rank}: ranks need one file system")
        _own_parts(job, here)
    gather_when_done(None, here, "prepared")


def _write_tokens(
    text: Text, encoder: LineEncoder, tokenizer: Tokenizer, folder: Path
) -> Generator[Progress, None, None]:
    size = text.size
    with token_writers(tokenizer, lambda split: folder / f"{split}.tokens") as writers:
        with closing(_in_thread(text.batches())) as batches:
            for batch in batches:
                encode_into(writers, encoder, batch)
                yield Progress(batch.bytes_read, size, sum(w.num_tokens for w in writers.values()))
        require_text(writers)


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
    """The same batches, prefetched by a thread, so that decompression and tokenization overlap."""
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
            # Re-raised in the consuming thread.
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
