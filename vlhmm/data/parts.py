"""Files of a text tokenized one by one, by several processes or ranks, and put together to the bytes that one process writes.

A part is what one file gives: a token file for each split. What a part is depends on the files before it alone through the
number of their documents, which is counted first where it matters.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vlhmm.data.corpus import encode_batch
from vlhmm.data.encode import EosRule, LineEncoder
from vlhmm.data.sources import SPLITS, Split
from vlhmm.data.splits import GROUP, SplitBatch, Text, split_of
from vlhmm.data.token_file import TokenWriter, read_header, token_writer
from vlhmm.data.tokenizer import Tokenizer
from vlhmm.data.tokens import Tokens, chunks

PARTS: Final = "parts"
"""The folder of the parts, in that of the corpus."""
STOP: Final = "stop"
"""A file in it that ends all who write parts."""
TOKENIZER: Final = "tokenizer.json"


@dataclass(frozen=True)
class Job:
    """A text on its way to a corpus."""

    text: Text
    rule: EosRule
    folder: Path
    """Of the corpus, which holds its tokenizer."""

    @property
    def counts_documents(self) -> bool:
        """Whether a part depends on the documents before it."""
        return self.text.splits is None or self.rule == "none"

    def part(self, number: int, split: Split) -> Path:
        return self.folder / PARTS / f"{number:06d}.{split}.tokens"


class AbandonedError(RuntimeError):
    """The part is no longer needed."""


def count_documents(job: Job, number: int) -> int:
    """Of one file."""
    count = 0
    for batch in job.text.batches_of(number):
        _require_wanted(job)
        count += batch.lines.count(None)
    return count


def write_part(job: Job, number: int, documents: Sequence[int]) -> int:
    """The part of one file, which has so many documents in each file before it; the number of its tokens."""
    tokenizer = Tokenizer.load(job.folder / TOKENIZER)
    first = sum(documents)
    encoder = LineEncoder(tokenizer, job.rule, _begun(job.text, number, documents))
    with token_writers(tokenizer, lambda split: job.part(number, split)) as writers:
        for batch in job.text.batches_of(number, first):
            _require_wanted(job)
            encode_into(writers, encoder, batch)
        return sum(writer.num_tokens for writer in writers.values())


def _begun(text: Text, number: int, documents: Sequence[int]) -> set[Split]:
    """The splits that have lines in files before this one."""
    if text.splits is None:
        # Of a whole group every split has some.
        return {split_of(document) for document in range(min(sum(documents), GROUP))}
    return {split for split, count in zip(text.splits[:number], documents, strict=False) if count}


Writers = dict[Split, TokenWriter]


@contextmanager
def token_writers(tokenizer: Tokenizer, path_of: Callable[[Split], Path]) -> Iterator[Writers]:
    """One for each split."""
    with ExitStack() as stack:
        yield {
            split: stack.enter_context(
                token_writer(path_of(split), vocab_size=tokenizer.vocab_size, tokenizer_hash=tokenizer.hash)
            )
            for split in SPLITS
        }


def encode_into(writers: Writers, encoder: LineEncoder, batch: SplitBatch) -> None:
    """Appends a batch's tokens to its split."""
    writer = writers[batch.split]
    for encoded in encode_batch(encoder, batch):
        ends = encoded.document_ends + writer.num_tokens
        writer.write(encoded.ids)
        writer.add_documents(ends)
        writer.add_source(encoded.words, encoded.bytes)


def require_text(writers: Writers) -> None:
    """Refuses a corpus with an empty split."""
    for split, writer in writers.items():
        if not writer.num_tokens:
            raise ValueError(f"0 tokens for {split}; every split needs text")


def _require_wanted(job: Job) -> None:
    parent = multiprocessing.parent_process()
    if (parent is not None and not parent.is_alive()) or (job.folder / PARTS / STOP).exists():
        raise AbandonedError(f"{job.folder} is no longer written")


@dataclass(frozen=True)
class MergeStep:
    """One more part is in the corpus."""

    files: int
    num_tokens: int


def merge_parts(job: Job, tokenizer: Tokenizer, finished: Iterator[int]) -> Generator[MergeStep, None, None]:
    """Puts the parts together in the order of their files, each as soon as it is finished, and removes it."""
    with token_writers(tokenizer, lambda split: job.folder / f"{split}.tokens") as writers:
        for number, _ in enumerate(finished):
            for split, writer in writers.items():
                _append(writer, job.part(number, split))
            yield MergeStep(number + 1, sum(writer.num_tokens for writer in writers.values()))
        require_text(writers)


def _append(writer: TokenWriter, part: Path) -> None:
    header, tokens, before = read_header(part), Tokens.load(part), writer.num_tokens
    for ids in chunks(tokens.ids):
        writer.write(ids)
    for ends in chunks(tokens.offsets[1:]):
        writer.add_documents(ends + before)
    writer.add_source(header.words, header.bytes)
    del tokens
    part.unlink()


class Workers:
    """Processes that work on the files of a job, as many at a time as there are."""

    def __init__(self, processes: int) -> None:
        # `spawn`, not `fork`: a forked process would inherit locks that other threads hold.
        self._pool = ProcessPoolExecutor(processes, multiprocessing.get_context("spawn"), _begin_worker)
        self._job: Job | None = None

    def __enter__(self) -> Workers:
        return self

    def __exit__(self, *_: object) -> None:
        if self._job is not None and (folder := self._job.folder / PARTS).is_dir():
            (folder / STOP).touch()
        self._pool.shutdown(cancel_futures=True)

    def counted(self, job: Job) -> Iterator[int]:
        """The documents of each file, in order."""
        self._job = job
        return self._results([self._pool.submit(count_documents, job, n) for n in range(len(job.text.files))])

    def written(self, job: Job, documents: Sequence[int]) -> Iterator[int]:
        """The tokens of each part, in order."""
        self._job = job
        tasks = [self._pool.submit(write_part, job, n, documents[:n]) for n in range(len(job.text.files))]
        return self._results(tasks)

    def _results(self, tasks: list[Future[int]]) -> Iterator[int]:
        for task in tasks:
            try:
                yield task.result()
            except BrokenProcessPool as error:
                raise ValueError(
                    "a process that tokenizes was killed, perhaps out of memory: use fewer --processes"
                ) from error


def _begin_worker() -> None:
    # SIGINT is left to the parent process. One thread for each worker: there is one worker for each core.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
