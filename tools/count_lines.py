"""Counts lines of Python per folder of the package, all of them and those of code; optionally beside a git revision.

Lines of code are those that are neither blank, nor comment, nor docstring (of modules, classes, functions and attributes).

    python tools/count_lines.py
    python tools/count_lines.py --base v0.1.0
    python tools/count_lines.py experiments --longest 10
"""

from __future__ import annotations

import argparse
import ast
import io
import subprocess
import tarfile
import tokenize
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).resolve().parents[1]
NOT_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}


@dataclass(frozen=True)
class Count:
    files: int = 0
    lines: int = 0
    code: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(self.files + other.files, self.lines + other.lines, self.code + other.code)


def count(source: str) -> Count:
    """Of one file."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in NOT_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(source)):
        # A string that is a statement does nothing: it is a docstring.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return Count(1, len(source.splitlines()), len(code))


def count_files(folder: str, base: str | None = None) -> dict[PurePosixPath, Count]:
    """Of every Python file below a folder of the repository, as it is now or in a git revision."""
    sources = _files_now(folder) if base is None else _files_in(base, folder)
    return {path: count(source) for path, source in sources}


def _files_now(folder: str) -> Iterator[tuple[PurePosixPath, str]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield PurePosixPath(path.relative_to(ROOT)), path.read_text(encoding="utf-8")


def _files_in(base: str, folder: str) -> Iterator[tuple[PurePosixPath, str]]:
    ran = subprocess.run(["git", "archive", base, folder], cwd=ROOT, capture_output=True)
    if ran.returncode:
        raise SystemExit(f"git has no {folder} in {base}: {ran.stderr.decode().strip()}")
    with tarfile.open(fileobj=io.BytesIO(ran.stdout)) as archive:
        for member in archive:
            content = archive.extractfile(member) if member.name.endswith(".py") else None
            if content is not None:
                yield PurePosixPath(member.name), content.read().decode("utf-8")


def by_folder(files: Mapping[PurePosixPath, Count]) -> dict[str, Count]:
    """Files directly in the package, and everything below each of its folders."""
    summed: dict[str, Count] = {}
    for path, one in files.items():
        name = "/".join(path.parts[: min(2, len(path.parts) - 1)])
        summed[name] = summed.get(name, Count()) + one
    return dict(sorted(summed.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", default="vlhmm", help="a folder of the repository (default: vlhmm)")
    parser.add_argument("--base", metavar="REV", help="a git revision to compare with")
    parser.add_argument("--longest", metavar="N", type=int, default=0, help="also the N files with most lines of code")
    arguments = parser.parse_args()
    if not any((ROOT / arguments.folder).rglob("*.py")):
        raise SystemExit(f"no Python file below {ROOT / arguments.folder}: name a folder of the repository")

    files = count_files(arguments.folder)
    now = by_folder(files)
    before = by_folder(count_files(arguments.folder, arguments.base)) if arguments.base else None
    width = max(map(len, ("folder", *now, *(before or ()))))
    headings = f"{'files':>7}{'lines':>9}{'code':>9}"
    print(f"{'folder':<{width}}{headings}" + (f"   code in {arguments.base}, and since" if before is not None else ""))
    for name in sorted({*now, *(before or ())}):
        print(f"{name:<{width}}{_row(now.get(name, Count()), None if before is None else before.get(name, Count()))}")
    print(
        f"{'all':<{width}}{_row(sum(now.values(), Count()), None if before is None else sum(before.values(), Count()))}"
    )
    for path, one in sorted(files.items(), key=lambda item: -item[1].code)[: arguments.longest]:
        print(f"{one.code:>6}  {path}")


def _row(now: Count, before: Count | None) -> str:
    shown = f"{now.files:>7,}{now.lines:>9,}{now.code:>9,}"
    return shown if before is None else f"{shown}   {before.code:>7,}  {now.code - before.code:+,}"


if __name__ == "__main__":
    main()
