"""ARPA files: the text form of back-off n-gram models that kenlm, SRILM and others read and write."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TextIO

import numpy as np

from vlhmm.baselines.ngrams import NOWHERE, Ids, Ngrams
from vlhmm.data import Tokenizer
from vlhmm.data.atomic import atomic_file

BOS, EOS, UNK = "<s>", "</s>", "<unk>"
# kenlm reads <UNK> as <unk>.
RESERVED = frozenset({BOS, EOS, UNK, "<UNK>"})


def arpa_names(tokenizer: Tokenizer) -> list[str]:
    """The names of all tokens in an ARPA file, `<s>` last; those that would be misread become `<token:ID>`."""
    names = [
        f"<token:{token}>" if name in RESERVED or not name or re.search(r"[\s\0]", name) else name
        for token, name in enumerate(tokenizer.tokens())
    ]
    if tokenizer.unk_id is not None:
        names[tokenizer.unk_id] = UNK
    # After <unk>: some tokenizers use one token for both.
    if tokenizer.eos_id is not None:
        names[tokenizer.eos_id] = EOS
    names.append(BOS)
    name, times = Counter(names).most_common(1)[0]
    if times > 1:
        raise ValueError(f"two tokens would be called {name!r} in the file: rename one of them in the tokenizer")
    return names


def write_arpa(path: Path, orders: Sequence[Ngrams], tokenizer: Tokenizer) -> None:
    names = arpa_names(tokenizer)
    with atomic_file(path) as file:
        file.write(b"\\data\\\n")
        for length, grams in enumerate(orders, 1):
            file.write(f"ngram {length}={len(grams)}\n".encode())
        texts = [""]
        for length, grams in enumerate(orders, 1):
            file.write(f"\n\\{length}-grams:\n".encode())
            words = [names[word] for word in grams.last_words.tolist()]
            if length == 1:
                texts = words
            else:
                texts = [
                    f"{texts[context]} {word}" for context, word in zip(grams.contexts.tolist(), words, strict=True)
                ]
            # repr gives the shortest digits that are read back as the same number.
            probs = map(repr, grams.log10_prob.tolist())
            if length == len(orders):
                lines = map("{}\t{}\n".format, probs, texts)
            else:
                lines = map("{}\t{}\t{}\n".format, probs, texts, map(repr, grams.log10_backoff.tolist()))
            file.write("".join(lines).encode())
        file.write(b"\n\\end\\\n")


def read_arpa(path: Path, tokenizer: Tokenizer) -> tuple[Ngrams, ...]:
    """The n-grams of a file over the tokenizer's words; each needs its context in the file, as every tool writes it."""
    if not path.is_file():
        raise ValueError(f"no ARPA file at {path}")
    names = arpa_names(tokenizer)
    ids = {name: token for token, name in enumerate(names)}
    try:
        with path.open(encoding="utf-8", newline="\n") as file:
            counts = _read_counts(file)
            orders: list[Ngrams] = []
            for length, count in enumerate(counts, 1):
                _expect(file, f"\\{length}-grams:")
                orders.append(_read_ngrams(file, count, orders, ids))
                if length == 1:
                    _check_unigrams(orders[0], names)
            _expect(file, "\\end\\")
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    return tuple(orders)


def _next_line(file: TextIO) -> str:
    """The next line that is not blank, without its end; "" after the last."""
    return next((text for line in file if (text := line.strip())), "")


def _expect(file: TextIO, text: str) -> None:
    found = _next_line(file)
    if found != text:
        raise ValueError(f"expected {text!r}, found {found[:60]!r}: the file is cut off or its counts are wrong")


def _read_counts(file: TextIO) -> list[int]:
    _expect(file, "\\data\\")
    counts: list[int] = []
    for line in file:
        if not line.strip():
            break
        match = re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line.strip())
        if match is None or int(match[1]) != len(counts) + 1:
            raise ValueError(f"expected 'ngram {len(counts) + 1}=COUNT', found {line.strip()[:60]!r}")
        counts.append(int(match[2]))
    if not counts:
        raise ValueError("no n-gram counts after \\data\\, at least those of 1-grams are needed")
    return counts


def _read_ngrams(file: TextIO, count: int, shorter: Sequence[Ngrams], ids: dict[str, int]) -> Ngrams:
    length, num_words = len(shorter) + 1, len(ids) - 1
    probs: list[float] = []
    backoffs: list[float] = []
    words: list[int] = []
    for line in islice(file, count):
        try:
            prob, text, *backoff = line.rstrip("\r\n").split("\t")
            names = text.split(" ")
            if len(names) != length or len(backoff) > 1:
                raise ValueError
            probs.append(float(prob))
            backoffs.append(float(backoff[0]) if backoff else 0.0)
            words += [ids[name] for name in names]
        except KeyError as missing:
            raise ValueError(
                f"the word {missing} is not among the tokenizer's {num_words}: give the tokenizer that made the model's text"
            ) from None
        except ValueError:
            raise ValueError(
                f"{line.strip()[:60]!r} is no line of {length}-grams: log10 p, a tab, {length} words, perhaps a tab and a back-off"
            ) from None
    if len(probs) < count:
        raise ValueError(f"{len(probs)} of {count} {length}-grams: the file is cut off")
    log10_prob, log10_backoff = np.array(probs), np.array(backoffs)
    if not (np.isfinite(log10_prob) & (log10_prob <= 0) & np.isfinite(log10_backoff)).all():
        raise ValueError(
            f"among the {length}-grams is a log10 p or a back-off that is not finite, or a log10 p above 0"
        )
    keys = _keys(np.array(words, np.int64).reshape(count, length), shorter, num_words)
    by_key = np.argsort(keys, kind="stable")
    keys = keys[by_key]
    if (keys[1:] == keys[:-1]).any():
        raise ValueError(f"a {length}-gram stands there twice")
    return Ngrams(num_words, keys, log10_prob[by_key], log10_backoff[by_key])


def _keys(words: Ids, shorter: Sequence[Ngrams], num_words: int) -> Ids:
    contexts = np.zeros(len(words), np.int64)
    for place, grams in enumerate(shorter):
        contexts = grams.find(contexts, words[:, place])
    lost = int((contexts == NOWHERE).sum())
    if lost:
        raise ValueError(
            f"{lost} {len(shorter) + 1}-grams without their first {len(shorter)} words as an n-gram of their own"
        )
    return contexts * (num_words + 1) + words[:, -1]


def _check_unigrams(unigrams: Ngrams, names: list[str]) -> None:
    """A word without a probability could not be scored."""
    missing = set(range(len(names))).difference(unigrams.keys.tolist())
    if missing:
        raise ValueError(
            f"{len(missing)} of the tokenizer's words have no 1-gram, {names[min(missing)]!r} for one: give the tokenizer that "
            "made the model's text"
        )
