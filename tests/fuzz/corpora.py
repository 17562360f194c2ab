"""Prepared corpora: refused, or the same tokens under the same name."""

from __future__ import annotations

import json
import random
import shutil
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.fuzz.clear import refused_or
from tests.fuzz.mutate import damaged_bytes, damaged_json, dumped
from vlhmm.data import Corpus, load_corpus
from vlhmm.data import prepare as prepare_corpus
from vlhmm.data.sources import SPLITS

HEADER_BYTES = 4096


@dataclass(frozen=True)
class Material:
    folder: Path
    answer: tuple[Any, ...]


def prepare(folder: Path) -> Material:
    lines = [
        f"the {noun} {verb} the {other}"
        for noun in ["cat", "dog", "bird"]
        for verb in ["sees", "hears"]
        for other in ["fish", "hill", "cat", "house"]
    ]
    (folder / "text.txt").write_text("\n\n".join(lines) + "\n")
    corpus = prepare_corpus(folder / "text.txt", None, folder / "corpus")
    return Material(folder / "corpus", _content(corpus))


def run(material: Material, seed: int, scratch: Path) -> str:
    draw = random.Random(seed)
    folder = scratch / "damaged"
    shutil.copytree(material.folder, folder)
    path = draw.choice(sorted(folder.iterdir()))
    content = path.read_bytes()
    if draw.random() < 0.5:
        path.write_bytes(damaged_bytes(content, draw))
    elif path.suffix == ".json":
        path.write_bytes(dumped(damaged_json(json.loads(content), draw)))
    else:
        path.write_bytes(_forged(content, draw))
    verify = draw.random() < 0.8
    found = refused_or(lambda: _content(load_corpus(folder, verify=verify)), folder)
    if found is None:
        return "refused"
    if found == material.answer:
        return "same answer"
    if path.name == "corpus.json" and "sha256" not in json.loads(path.read_bytes()):
        # As the first edition wrote it: the name and the note had no checksum, the tokens had.
        assert found[2:] == material.answer[2:], "corpus.json was damaged, loads, and holds other tokens"
        return "same tokens, no checksum of their name"
    assert not verify, f"{path.name} was damaged, loads, and holds other tokens"
    return "unverified, another answer"


def _content(corpus: Corpus) -> tuple[Any, ...]:
    splits = [getattr(corpus, split) for split in SPLITS]
    texts = [(tokens.ids.tolist(), tokens.offsets.tolist(), tokens.words, tokens.bytes) for tokens in splits]
    return corpus.name, corpus.note, corpus.hash, corpus.tokenizer.tokens(), texts


def _forged(content: bytes, draw: random.Random) -> bytes:
    """A header that was changed, and its checksum made to fit."""
    size = int.from_bytes(content[12:16], "little")
    values = json.loads(content[16 : 16 + size])
    del values["header_crc"]
    changed = damaged_json(values, draw)
    if isinstance(changed, dict):
        changed["header_crc"] = zlib.crc32(json.dumps(changed, sort_keys=True).encode())
    text = dumped(changed)[: HEADER_BYTES - 16]
    return (content[:12] + len(text).to_bytes(4, "little") + text).ljust(HEADER_BYTES, b"\0") + content[HEADER_BYTES:]
