"""Text files by line, packed or not: refused, or lines that are text."""

from __future__ import annotations

import gzip
import json
import lzma
import random
from pathlib import Path

from tests.fuzz.clear import refused_or
from tests.fuzz.mutate import damaged_bytes, damaged_json
from vlhmm.data.sources import read_batches

RECORDS = [
    {"id": 1, "text": "a first line\na second, é 中 \U0001f600"},
    {"id": 2, "meta": {"url": "x", "tags": ["a", "b"]}, "text": 'tabs\tand "quotes"\r\nand more'},
    {"id": 3, "text": ""},
    {"id": 4.5e3, "text": "the end " * 20},
]


def prepare(folder: Path) -> dict[str, bytes]:
    escaped = "\n".join(map(json.dumps, RECORDS)).encode()
    plain = "\n".join(json.dumps(record, ensure_ascii=False) for record in RECORDS).encode()
    text = "\n\n".join(str(record["text"]) for record in RECORDS).encode()
    return {
        "escaped.jsonl": escaped,
        "plain.jsonl": plain,
        "packed.jsonl.gz": gzip.compress(plain, mtime=0),
        "packed.jsonl.xz": lzma.compress(plain),
        "text.txt": text,
        "packed.txt.gz": gzip.compress(text, mtime=0),
        "packed.txt.xz": lzma.compress(text),
    }


def run(material: dict[str, bytes], seed: int, scratch: Path) -> str:
    draw = random.Random(seed)
    name, content = draw.choice(sorted(material.items()))
    path = scratch / name
    if name.endswith(".jsonl") and draw.random() < 0.5:
        records = [json.dumps(damaged_json(record, draw), ensure_ascii=draw.random() < 0.7) for record in RECORDS]
        nested = draw.choice(("[", '{"text":', '{"text": "a", "b": [')) * draw.choice((0, 0, 0, 50, 5_000, 200_000))
        path.write_bytes("\n".join([*records, nested]).encode("utf-8", "surrogatepass"))
    else:
        path.write_bytes(damaged_bytes(content, draw))
    lines = refused_or(lambda: [line for batch in read_batches(path) for line in batch.lines], path)
    if lines is None:
        return "refused"
    for line in lines:
        if line is not None:
            line.encode()
            assert line.strip(), "a blank line"
            assert "\n" not in line, "two lines in one"
    return "read"
