"""A corpus: a tokenizer and three splits of token ids, by name or from any text."""

import difflib
import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from vlhmm.data.atomic import atomic_folder, atomic_write
from vlhmm.data.benchmarks import SHA256, Benchmark, benchmark_batches, benchmark_files
from vlhmm.data.checksums import verify_wanted
from vlhmm.data.encode import Encoded, EosRule, LineEncoder
from vlhmm.data.json_file import one_line, read_json_object
from vlhmm.data.pydocs import pydocs_documents, python_version
from vlhmm.data.remote import TextPath, text_path
from vlhmm.data.sources import SPLITS, Split
from vlhmm.data.splits import SplitBatch, find_text
from vlhmm.data.token_file import id_dtype, read_header
from vlhmm.data.tokenizer import Tokenizer
from vlhmm.data.tokens import Tokens
from vlhmm.data.vocabulary import Learner, Vocabulary

MANIFEST: Final = "corpus.json"
MANIFEST_VERSION: Final = 1
JOINED_VERSION: Final = 2
"""Of a corpus that refers to others."""
NAMES: Final = ("pydocs", *SHA256)
PYDOCS_MIN_COUNT: Final = 3

Reader = Callable[[], Iterator[SplitBatch]]


@dataclass(frozen=True, eq=False)
class Corpus:
    r"""Training, validation and test text as token ids, with their tokenizer.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("animals.txt").write_text(50 * "the cat sees a bird\nthe dog sees a fish\n")
        >>> corpus = vlhmm.load_corpus("animals.txt", tokenizer="words")
        >>> corpus.train
        Tokens(540 tokens, 90 documents, uint16)
        >>> corpus.tokenizer.decode(corpus.train.ids[:6])
        'the cat sees a bird'
    """

    name: str
    """The name of the corpus, file or folder."""
    tokenizer: Tokenizer
    """The tokenizer that made the ids."""
    train: Tokens
    """Training text."""
    valid: Tokens
    """Validation text."""
    test: Tokens
    """Test text."""
    hash: str
    """SHA-256 over the tokenizer, all ids and all document offsets."""
    note: str = ""
    """What else determines the text, such as the Python version for pydocs."""

    @classmethod
    def from_splits(
        cls, name: str, tokenizer: Tokenizer, train: Tokens, valid: Tokens, test: Tokens, note: str = ""
    ) -> "Corpus":
        """Make a corpus of tokens in memory.

        Args:
            name: The name.
            tokenizer: The tokenizer that made the ids.
            train: Training text.
            valid: Validation text.
            test: Test text.
            note: What else determines the text.

        Returns:
            The corpus.

        Raises:
            ValueError: A split has no tokens.

        Example:
            >>> from vlhmm.data import Tokens, word_tokenizer
            >>> tokenizer = word_tokenizer(["the", "cat", "sees"])
            >>> tokens = Tokens.from_documents([tokenizer.encode("the cat sees the cat")], tokenizer.vocab_size)
            >>> vlhmm.Corpus.from_splits("cats", tokenizer, tokens, tokens, tokens).train
            Tokens(5 tokens, 1 documents, uint16)
        """
        splits = {"train": train, "valid": valid, "test": test}
        for split, tokens in splits.items():
            if not len(tokens):
                raise ValueError(f"{name}: 0 tokens for {split}; every split needs text")
        digest = corpus_hash(tokenizer.hash, [tokens.digest() for tokens in splits.values()])
        return cls(name, tokenizer, train, valid, test, digest, note)

    @property
    def short_hash(self) -> str:
        """The first 12 digits of the hash."""
        return self.hash[:12]


def corpus_hash(tokenizer_hash: str, digests: Iterable[str]) -> str:
    return hashlib.sha256("\n".join([tokenizer_hash, *digests]).encode()).hexdigest()


def manifest_sha256(manifest: Mapping[str, Any]) -> str:
    """Of all that a manifest says but its own checksum."""
    content = {name: value for name, value in manifest.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def load_corpus(
    source: str | os.PathLike[str],
    *,
    data_dir: str | os.PathLike[str] | None = None,
    tokenizer: Tokenizer | str | os.PathLike[str] | None = None,
    vocab_size: int | None = None,
    min_count: int | None = None,
    cache: bool = True,
    valid: str | os.PathLike[str] | None = None,
    test: str | os.PathLike[str] | None = None,
    verify: bool | None = None,
) -> Corpus:
    r"""Load a corpus: "pydocs", "ptb", "wikitext-2", a folder written by `prepare`, a text file or a folder of text files.

    - Text files: a line is a paragraph, and a blank line ends a document. Without blank lines every line is a document. A blank
      line is no token, except in WikiText-2, where it is an EOS.
    - Splits: files named train*, valid* and test*, or the files given as `valid` and `test`. Any other text is split by document,
      90 : 5 : 5, always in the same way.
    - EOS ends every line of a word-level corpus and every document of a subword corpus. Inside documents byte-level tokenizers have
      line ends as tokens.
    - "bpe": byte-level BPE made from the training text. It spells every text, so that no word is unknown.
    - "words": words and punctuation of the training text. Words rarer than `min_count`, and all others, are `<unk>`.
    - "whitespace": for text that is tokenized already, words as white space separates them. A text with an `<unk>` of its own is
      always read so, and keeps all its words.

    Args:
        source: Name or path, or an address that fsspec reads, such as `s3://bucket/text.txt` or `hf://datasets/OWNER/NAME/text.jsonl`
            (`pip install 'vlhmm[hub]'`).
        data_dir: Folder with ptb/ and wikitext-2/; None: the environment variable `VLHMM_DATA`, else they are downloaded.
        tokenizer: "bpe", "words", "whitespace", a tokenizer, a `tokenizer.json`, a folder with one, or a SentencePiece `.model`; None: "bpe",
            but "whitespace" for pydocs, ptb and wikitext-2.
        vocab_size: Number of tokens of a tokenizer that is made, at most; None: 8 * sqrt(bytes of the training text), at least 512
            and at most 16,384, for "bpe", and no limit for words.
        min_count: How often a piece or word occurs in the training text at least; None: 2 (pydocs: 3, ptb and wikitext-2: 1).
        cache: Keep the extracted text of pydocs on disk.
        valid: File of the validation text; needs `test`.
        test: File of the test text; needs `valid`.
        verify: Compare all of a prepared folder with its checksums; None: unless the environment variable `VLHMM_VERIFY` is 0.

    Returns:
        The corpus.

    Raises:
        ValueError: There is no such corpus, a split is empty, or the options contradict each other.

    Example:
        >>> from pathlib import Path
        >>> _ = Path("animals.txt").write_text(50 * "the cat sees a bird\nthe dog sees a fish\n")
        >>> corpus = vlhmm.load_corpus("animals.txt", tokenizer="words")
        >>> corpus.tokenizer.vocab_size, len(corpus.train), len(corpus.valid), len(corpus.test)
        (9, 540, 30, 30)
    """
    vocabulary = Vocabulary.of(tokenizer, vocab_size, min_count)
    if (valid is None) != (test is None):
        raise ValueError("1 of the 2 held-out texts given; name both valid and test, or neither")
    name = os.fspath(source)
    if name in NAMES:
        if valid is not None:
            raise ValueError(f"{name} has its own valid and test text; leave both out")
        if name == "pydocs":
            return _load_pydocs(vocabulary, cache)
        return _load_benchmark("ptb" if name == "ptb" else "wikitext-2", vocabulary, data_dir)
    path = text_path(name)
    if isinstance(path, Path) and (path / MANIFEST).is_file():
        if vocabulary != Vocabulary() or valid is not None:
            raise ValueError(f"{path} is prepared: its tokenizer and splits are fixed; prepare the text anew instead")
        return load_prepared(path, verify=verify)
    if not path.exists():
        close = difflib.get_close_matches(name, NAMES, 1, 0.5)
        raise ValueError(
            f"no corpus {name!r}: neither a file or folder nor one of {', '.join(NAMES)}"
            + (f"; did you mean {close[0]}?" if close else "")
        )
    text = find_text(path, None if valid is None or test is None else (valid, test))
    return _build(printable_name(path), text.batches, vocabulary.maker("bpe"))


def printable_name(path: TextPath) -> str:
    """The last part of `path` as text that every file can hold, whatever bytes it is made of and whatever the locale."""
    return os.fsencode(path.name).decode("utf-8", "backslashreplace")


def load_prepared(folder: Path, *, verify: bool | None = None) -> Corpus:
    """A folder written by `prepare`, its token files memory-mapped.

    `verify` reads all of them, so that damage in a text that is needed last is found first; None: unless `VLHMM_VERIFY` is 0.
    """
    verify = verify_wanted(verify)
    try:
        manifest = read_json_object(folder / MANIFEST)
        version, name, note = manifest["version"], str(manifest["name"]), str(manifest["note"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder} is no prepared corpus: {MANIFEST} cannot be read ({one_line(error, 400)})"
        ) from error
    if version == JOINED_VERSION:
        return _load_joined(folder, name, manifest, verify)
    if version != MANIFEST_VERSION:
        raise ValueError(
            f"{folder} has version {one_line(version, 80)}, this program reads {MANIFEST_VERSION}; prepare it again"
        )
    # vlhmm 0.1 recorded the checksums of the texts, but none of the manifest itself.
    if manifest.get("sha256", manifest_sha256(manifest)) != manifest_sha256(manifest):
        raise ValueError(f"{folder} is damaged: {MANIFEST} does not have the SHA-256 that it records; prepare it again")
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    files = {split: folder / f"{split}.tokens" for split in SPLITS}
    headers = {split: read_header(file) for split, file in files.items()}
    for split, header in headers.items():
        recorded = manifest.get("splits")
        if not isinstance(recorded, dict) or recorded.get(split) != asdict(header):
            raise ValueError(
                f"{files[split]} is damaged: its header is not the one that {MANIFEST} records; prepare it again"
            )
        if header.tokenizer_hash == tokenizer.hash and header.vocab_size != tokenizer.vocab_size:
            raise ValueError(
                f"{files[split]} is damaged: it is of {header.vocab_size} tokens, the tokenizer has {tokenizer.vocab_size}; "
                "prepare it again"
            )
    tokens = {split: Tokens.load(file, tokenizer_hash=tokenizer.hash, verify=verify) for split, file in files.items()}
    digest = corpus_hash(tokenizer.hash, [header.sha256 for header in headers.values()])
    if digest != manifest.get("hash"):
        raise ValueError(f"{folder} is damaged: its files are not those of its {MANIFEST}; prepare it again")
    return Corpus(name, tokenizer, tokens["train"], tokens["valid"], tokens["test"], digest, note)


def join_corpora(folders: Sequence[Path], out: Path) -> None:
    """Writes the new folder `out` as one corpus of prepared ones, whose token files stay where they are."""
    corpora = [load_prepared(folder) for folder in folders]
    tokenizer = corpora[0].tokenizer
    for folder, corpus in zip(folders, corpora, strict=True):
        if corpus.tokenizer.hash != tokenizer.hash:
            raise ValueError(
                f"{folder} was prepared with tokenizer {corpus.tokenizer.hash[:12]}, but {folders[0]} with {tokenizer.hash[:12]}: "
                "prepare both with the same tokenizer.json"
            )
    manifest: dict[str, Any] = {
        "version": JOINED_VERSION,
        "name": printable_name(out),
        "note": "",
        "hash": corpus_hash(tokenizer.hash, [corpus.hash for corpus in corpora]),
        "parts": [
            {"folder": str(folder.absolute()), "hash": corpus.hash}
            for folder, corpus in zip(folders, corpora, strict=True)
        ],
    }
    manifest["sha256"] = manifest_sha256(manifest)
    with atomic_folder(out) as partial:
        tokenizer.save(partial / "tokenizer.json")
        atomic_write(partial / MANIFEST, json.dumps(manifest, indent=2).encode())


def _load_joined(folder: Path, name: str, manifest: Mapping[str, Any], verify: bool) -> Corpus:
    if manifest.get("sha256") != manifest_sha256(manifest):
        raise ValueError(f"{folder} is damaged: {MANIFEST} does not have the SHA-256 that it records; join it again")
    corpora = []
    for part in manifest["parts"]:
        path = Path(part["folder"])
        if not (path / MANIFEST).is_file():
            raise ValueError(
                f"{folder} refers to {path}, which is not a prepared corpus; join the corpora again from where they are"
            )
        corpora.append(load_prepared(path, verify=verify))
        if corpora[-1].hash != part["hash"]:
            raise ValueError(f"{folder} refers to {path}, which has changed since; join the corpora again")
    train, valid, test = (Tokens.joined([getattr(corpus, split) for corpus in corpora]) for split in SPLITS)
    return Corpus(name, corpora[0].tokenizer, train, valid, test, str(manifest["hash"]), str(manifest["note"]))


def eos_rule(tokenizer: Tokenizer) -> EosRule:
    """EOS ends lines where tokens are words, documents where they are parts of words."""
    if tokenizer.eos_id is None:
        return "none"
    return "line" if tokenizer.word_level else "document"


def encode_batch(encoder: LineEncoder, batch: SplitBatch) -> Iterator[Encoded]:
    """A batch's ids, part by part; text that cannot be encoded is refused with the name of its file."""
    try:
        yield from encoder.encode_parts(batch.lines, batch.split)
    except ValueError as error:
        raise ValueError(f"{batch.source}: {error}" if batch.source else str(error)) from error


def _build(name: str, read: Reader, tokenizer: Tokenizer | Learner, note: str = "") -> Corpus:
    """A corpus in memory."""
    if not isinstance(tokenizer, Tokenizer):
        for batch in read():
            tokenizer.add(batch)
        tokenizer = tokenizer.tokenizer()
    encoder = LineEncoder(tokenizer, eos_rule(tokenizer))
    encoded: dict[Split, list[Encoded]] = {split: [] for split in SPLITS}
    for batch in read():
        encoded[batch.split] += encode_batch(encoder, batch)
    train, valid, test = (_concatenate(encoded[split], tokenizer.vocab_size) for split in SPLITS)
    return Corpus.from_splits(name, tokenizer, train, valid, test, note)


def _concatenate(parts: list[Encoded], vocab_size: int) -> Tokens:
    ids, ends = [np.empty(0, id_dtype(vocab_size))], [np.zeros(1, np.int64)]
    num_tokens = 0
    for part in parts:
        ids.append(part.ids.astype(id_dtype(vocab_size)))
        ends.append(part.document_ends + num_tokens)
        num_tokens += len(part.ids)
    # Documents without tokens are left out.
    offsets = np.unique(np.concatenate(ends))
    return Tokens(np.concatenate(ids), offsets, sum(p.words for p in parts), sum(p.bytes for p in parts))


def _load_pydocs(vocabulary: Vocabulary, cache: bool) -> Corpus:
    documents = pydocs_documents(cache=cache)

    def read() -> Iterator[SplitBatch]:
        for split in SPLITS:
            yield SplitBatch(split, [line for document in documents[split] for line in (*document, None)])

    return _build("pydocs", read, vocabulary.maker("whitespace", PYDOCS_MIN_COUNT), python_version())


def _load_benchmark(name: Benchmark, vocabulary: Vocabulary, data_dir: str | os.PathLike[str] | None) -> Corpus:
    files = benchmark_files(name, None if data_dir is None else Path(data_dir))
    return _build(name, lambda: benchmark_batches(name, files), vocabulary.maker("whitespace", 1))
