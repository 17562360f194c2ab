"""Code blocks of Markdown pages: which are executed, which are marked with the reason why not."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
EXECUTED = ("python", "bash")
SHOWN = ("text", "toml", "json")
"""Output and files: nothing to execute."""
_FENCE = re.compile(
    r"(?P<mark>^[ ]*<!-- not run: (?P<reason>\S.*?) -->\n)?"
    r"^(?P<indent>[ ]*)```(?P<language>[^\n]*)\n(?P<code>.*?)^(?P=indent)```[ ]*$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    language: str
    code: str
    reason: str | None
    """Why it is not executed."""

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[Path]:
    """README, the guide for contributors, and all pages of the site that are written by hand."""
    site = sorted(page for page in (ROOT / "docs").rglob("*.md") if "_build" not in page.parts)
    return [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *site]


def blocks_of(page: Path) -> list[Block]:
    return blocks_in(page.read_text(encoding="utf-8"), str(page.relative_to(ROOT)))


def blocks_in(text: str, name: str) -> list[Block]:
    found = []
    for match in _FENCE.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        code = re.sub(rf"^{match['indent']}", "", match["code"], flags=re.MULTILINE)
        found.append(Block(name, line, match["language"].strip(), code, match["reason"]))
    return found
