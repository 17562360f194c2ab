"""What the makers of tables share."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent


def markdown_table(headings: Sequence[str], rows: Iterable[Sequence[str]], *, left: int = 1) -> str:
    """The first `left` columns are text, the others numbers."""
    marks = ["---" if number < left else "---:" for number in range(len(headings))]
    lines = [headings, marks, *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def read_json(file: str) -> Any:
    return json.loads((ROOT / file).read_text(encoding="utf-8"))
