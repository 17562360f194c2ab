"""Writes a notebook beside each tutorial, from its page; with --check it only compares them.

Python blocks become code cells, shell blocks that the page runs become `!` lines, everything else is text. Nothing is stored of
what cells print.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

TUTORIALS = Path(__file__).parent / "tutorials"
PAGES = ("first-model", "your-own-text", "steering", "hmm-in-arrays")
_BLOCK = re.compile(r"(<!-- not run: [^\n]*-->\n)?^```(\w*)\n(.*?)^```[ ]*\n", re.MULTILINE | re.DOTALL)


def notebook_of(page: Path) -> str:
    """The notebook of a tutorial as JSON: format 4, without outputs, the same for the same page."""
    cells: list[dict[str, Any]] = []

    def add(kind: str, text: str) -> None:
        if not text.strip():
            return
        if kind == "markdown" and cells and cells[-1]["cell_type"] == "markdown":
            cells[-1]["source"] += "\n" + text
        else:
            cells.append({"cell_type": kind, "metadata": {}, "source": text})

    text, end = page.read_text(encoding="utf-8"), 0
    for block in _BLOCK.finditer(text):
        add("markdown", _without_download(text[end : block.start()]))
        mark, language, code = block.groups()
        if mark is None and language == "python":
            add("code", code)
        elif mark is None and language == "bash":
            commands = re.sub(r"\\\n\s*", "", code).splitlines()
            add("code", "\n".join(f"!{line}" for line in commands if line))
        else:
            add("markdown", f"```{language}\n{code}```\n")
        end = block.end()
    add("markdown", _without_download(text[end:]))
    for number, cell in enumerate(cells):
        source = cell["source"].strip("\n").splitlines(keepends=True)
        cell |= {"id": f"cell-{number}", "source": source}
        if cell["cell_type"] == "code":
            cell |= {"execution_count": None, "outputs": []}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    values = {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(values, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _without_download(text: str) -> str:
    """The link to the notebook itself is left out."""
    return re.sub(r"^\{download\}.*\n", "", text, flags=re.MULTILINE)


def main(check: bool) -> int:
    status = 0
    for name in PAGES:
        path, wanted = TUTORIALS / f"{name}.ipynb", notebook_of(TUTORIALS / f"{name}.md")
        if path.is_file() and path.read_text(encoding="utf-8") == wanted:
            continue
        if check:
            print(f"{path} differs from {name}.md: run `make tables`", file=sys.stderr)
            status = 1
        else:
            path.write_text(wanted, encoding="utf-8")
            print(f"written: {path}")
    return status


if __name__ == "__main__":
    sys.exit(main("--check" in sys.argv[1:]))
