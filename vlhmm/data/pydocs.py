"""The built-in corpus: English sentences from the running Python's own documentation.

Documents are the help topics of `pydoc` and the docstrings of each source file of the standard library. Prose is kept;
code, doctests, signatures, grammars and tables are dropped, and so is a sentence that was seen before.
"""

import ast
import hashlib
import json
import platform
import re
import sys
import sysconfig
import warnings
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from vlhmm.data.atomic import atomic_write
from vlhmm.data.cache import cache_dir
from vlhmm.data.sources import SPLITS, Split
from vlhmm.data.splits import split_of

Documents = list[list[str]]
"""Sentences by document."""

MIN_SENTENCES: Final = 3_000
"""Fewer than this, and the standard library was stripped of its documentation."""

_SKIPPED_FOLDERS: Final = frozenset(
    # Not the library itself; tests; generated tables.
    ("site-packages", "dist-packages", "_bundled", "pydoc_data", "test", "tests", "idle_test", "encodings")
)
# A twelfth of the documents each for validation and test: a twentieth would be too few sentences to measure on.
_SPLIT_GROUP: Final = 12
_MIN_WORDS: Final = 4
_MAX_WORDS: Final = 60


def python_version() -> str:
    return f"{platform.python_implementation().replace('CPython', 'Python')} {platform.python_version()}"


def pydocs_documents(*, cache: bool = True) -> dict[Split, Documents]:
    """The sentences of each split; words and punctuation parted by spaces, in lower case, numbers as N."""
    file = cache_dir() / "pydocs" / f"{_cache_key()}.json"
    if cache and file.is_file():
        try:
            return _by_split(_read_cache(file))
        except ValueError:
            # A damaged cache is made again.
            with suppress(OSError):
                file.unlink()
    documents = _read_documentation()
    num_sentences = sum(map(len, documents))
    if num_sentences < MIN_SENTENCES:
        raise ValueError(
            f"this Python ({python_version()}, {sysconfig.get_path('stdlib')}) has {num_sentences} sentences of "
            f"documentation, at least {MIN_SENTENCES} are needed: its standard library was stripped of sources or "
            "docstrings; use text of your own with --data, or another Python"
        )
    if cache:
        text = json.dumps(documents).encode()
        try:
            atomic_write(file, hashlib.sha256(text).hexdigest().encode() + b"\n" + text)
        except OSError as error:
            warnings.warn(
                f"{file} cannot be written ({error.strerror}), so the documentation is read anew each time: "
                "set VLHMM_CACHE to a folder that can be written to",
                stacklevel=2,
            )
    return _by_split(documents)


def _read_cache(file: Path) -> Documents:
    """What was written behind its checksum; ValueError where that is another."""
    recorded, _, text = file.read_bytes().partition(b"\n")
    if recorded.decode("ascii", "replace") != hashlib.sha256(text).hexdigest():
        raise ValueError(f"{file} is damaged")
    documents: Documents = json.loads(text)
    return documents


def _by_split(documents: Documents) -> dict[Split, Documents]:
    """Splits by document; valid and test have documents of all sizes, which differ a hundredfold."""
    splits: dict[Split, Documents] = {split: [] for split in SPLITS}
    for rank, document in enumerate(sorted(documents, key=len, reverse=True)):
        splits[split_of(rank, _SPLIT_GROUP)].append(document)
    return splits


def _cache_key() -> str:
    """Changes with the Python, its place, and the cleaning below."""
    parts = [sys.version, sysconfig.get_path("stdlib"), Path(__file__).read_text(encoding="utf-8")]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def _read_documentation() -> Documents:
    seen: set[str] = set()
    documents: Documents = []
    for text in _raw_documents():
        # Topics repeat each other, and so do classes: a test sentence must not have been in training.
        sentences = [s for s in dict.fromkeys(clean_sentences(text)) if s not in seen]
        seen.update(sentences)
        if sentences:
            documents.append(sentences)
    return documents


def _raw_documents() -> Iterator[str]:
    # Stripped installations lack the topics.
    with suppress(ImportError):
        from pydoc_data.topics import topics

        for name in sorted(topics):
            yield topics[name]
    library = Path(sysconfig.get_path("stdlib"))
    for file in sorted(library.rglob("*.py")):
        if _SKIPPED_FOLDERS.isdisjoint(file.relative_to(library).parts):
            yield "\n\n".join(_docstrings(file.read_bytes()))


def _docstrings(source: bytes) -> Iterator[str]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            tree = ast.parse(source)
        except (SyntaxError, ValueError):
            # Templates and broken samples lie among the sources.
            return
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and (
            docstring := ast.get_docstring(node)
        ):
            yield docstring


def clean_sentences(text: str) -> Iterator[str]:
    """The English sentences of a text in reStructuredText or the like."""
    for paragraph in _paragraphs(text):
        for sentence in _SENTENCE_END.split(_strip_markup(paragraph)):
            words = _words(sentence)
            if words is not None:
                yield " ".join(words)


def _paragraphs(text: str) -> Iterator[str]:
    """Prose paragraphs and list items, each on one line."""
    code_indent: int | None = None
    for block in re.split(r"\n[ \t]*\n", text.expandtabs()):
        lines = [line for line in block.split("\n") if line.strip()]
        if not lines:
            continue
        indent = min(len(line) - len(line.lstrip()) for line in lines)
        # What is indented deeper than a paragraph that ends in a double colon is its code.
        if code_indent is not None and indent > code_indent:
            continue
        code_indent = indent if lines[-1].rstrip().endswith("::") else None
        if any(_NO_PROSE.search(line) for line in lines):
            continue
        for item in _items(lines):
            yield re.sub(r"(?<=[a-z])- (?=[a-z])", "-", " ".join(item))


def _items(lines: list[str]) -> Iterator[list[str]]:
    """Parts a paragraph where a list item, a field or the text under a term begins."""
    item: list[str] = []
    indent = 0
    for line in lines:
        bullet = _BULLET.match(line)
        begin = bullet.end() if bullet else len(line) - len(line.lstrip())
        if bullet or begin > indent:
            yield item
            item = []
        indent = begin
        item.append(line[begin:].rstrip())
    yield item


def _strip_markup(text: str) -> str:
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    return text.strip()


def _words(sentence: str) -> list[str] | None:
    """The sentence's tokens, None if it is not English prose."""
    sentence = sentence.strip()
    if not sentence[:1].isalpha() or _CODE.search(sentence):
        return None
    words = [_NUMBER.sub("N", token.lower()) for token in _TOKEN.findall(sentence)]
    # Sentences may begin with the name of an argument; other text in lower case is a fragment.
    if sentence[0].islower() and (words[-1] != "." or len(words) < _MIN_WORDS + 3):
        return None
    spelled = sum(word.replace("'", "").replace("-", "").isalpha() for word in words)
    marks = sum(word in _PUNCTUATION for word in words)
    if not _MIN_WORDS <= spelled <= len(words) <= _MAX_WORDS or spelled < 0.8 * (len(words) - marks):
        return None
    # Lists of names, with hardly a word between the commas.
    return words if marks < 0.4 * len(words) else None


# Lines of doctests, grammars, tables, rulers, signatures and code.
_NO_PROSE: Final = re.compile(
    r"^\s*(>>>|\.\.\.|\$ |% |#|@|\.\. )|::=|^\s*[-=*~^+|_#]{3,}|\|\s*$|-->|=>|\w\s{3,}\w"
    r"|^\s*(def|class|import|from|return|print) .*[:()]|^\s*[\w.]+\(.*\)\s*$|^\s*[\w.]+ = "
)
# Bullets, numbers, and names of fields: `- `, `(a) `, `address: `, `'action' -- `, `Returns: `.
_BULLET: Final = re.compile(
    r"^\s*([*+o-]|\(?[0-9a-zA-Z]{1,2}[.)]|:?[\w* ]{2,24}:(?=\s+[A-Z])|['\"]?[\w.]+['\"]?\s+--?(?=\s+[A-Z]))\s+|^\s*\w+:\s*$"
)
_SENTENCE_END: Final = re.compile(
    r"(?<=[.!?])(?<!\be\.g\.)(?<!\bi\.e\.)(?<!\betc\.)(?<!\bvs\.)(?<!\bcf\.)(?<!\bEg\.)[\"')]*\s+(?=[\"'(]?[A-Z])"
)
_MARKUP: Final = [
    (re.compile(r"[“”]"), '"'),
    (re.compile(r"[‘’]"), "'"),
    (re.compile(r"\s*[—–]\s*|\s+-\s+"), " -- "),
    (re.compile(r"\s*<(https?|ftp)://[^>]*>"), ""),
    (re.compile(r":[a-z:]+:`~?([^`]*)`"), r"\1"),
    (re.compile(r"\[\d+\]_?|\(see .*?\)"), ""),
    (re.compile(r"``?([^`']*)(``?|''?)"), r"\1"),
    (re.compile(r"\*\*?([^\s*][^*]*)\*\*?"), r"\1"),
    (re.compile(r"\"([^\"]*)\""), r"\1"),
    (re.compile(r"(?<!\w)'([^']*)'(?!\w)"), r"\1"),
    (re.compile(r"(?<=\w)\(\)"), ""),
    (re.compile(r"\be\.g\.,?"), "for example"),
    (re.compile(r"\bi\.e\.,?"), "that is"),
    (re.compile(r":+(?=\s|$)"), ":"),
]
_CODE: Final = re.compile(
    r"[=<>{}\[\]\\|%$@#~^&*`+\"]|://|\w\(|(?<! )--|--(?! )|\.\.\.|\(\s*[,)]|[,:;]\s*[,:;]|(?<!\w)'|(?<!s)'(?!\w)"
)
# Names such as os.environ, __init__ and utf-8 are words of this language; numbers become N, 4-tuple N-tuple.
_TOKEN: Final = re.compile(
    r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:['-]\w+)*|\d+(?:[.,]\d+)*(?:\.x\b)?(?:-[A-Za-z]+)*|--|[^\sA-Za-z0-9]"
)
_NUMBER: Final = re.compile(r"^\d+(?:[.,]\d+)*(?:\.x)?")
_PUNCTUATION: Final = frozenset((*".,:;!?()'/", "--"))
