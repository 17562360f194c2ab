"""Parquet files: refused, or lines that are text; with checksums of pages, the lines of the undamaged file."""

from __future__ import annotations

import io
import random
from pathlib import Path
from typing import Any

from tests.fuzz.clear import refused_or
from tests.fuzz.mutate import damaged_bytes
from vlhmm.data.sources import read_batches


def prepare(folder: Path) -> dict[str, tuple[bytes, list[str | None]]]:
    import pyarrow
    from pyarrow import parquet

    texts = [None if number % 9 == 5 else f"line {number} of a text\nand é 中 {number % 7}" for number in range(300)]
    columns: dict[str, dict[str, Any]] = {
        "plain": {"text": texts},
        "wide": {"text": pyarrow.array(texts, pyarrow.large_string()), "id": list(range(300))},
        "nested": {"text": texts, "more": [{"a": [number]} for number in range(300)]},
    }
    made = {}
    for name, table in columns.items():
        for compression in ("none", "snappy", "gzip", "zstd"):
            for dictionary in (True, False):
                path = folder / f"{name}-{compression}-{dictionary}.parquet"
                stream = io.BytesIO()
                parquet.write_table(
                    pyarrow.table(table), stream, compression=compression, use_dictionary=dictionary, row_group_size=100
                )
                path.write_bytes(stream.getvalue())
                made[path.name] = stream.getvalue(), [line for batch in read_batches(path) for line in batch.lines]
    return made


def run(material: dict[str, tuple[bytes, list[str | None]]], seed: int, scratch: Path) -> str:
    draw = random.Random(seed)
    name, (content, good) = draw.choice(sorted(material.items()))
    path = scratch / name
    if draw.random() < 0.4:
        # Where the file says what is in it.
        cut = len(content) - int.from_bytes(content[-8:-4], "little") - 8
        path.write_bytes(content[:cut] + damaged_bytes(content[cut:-8], draw) + content[-8:])
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
    return "same answer" if lines == good else "read"
