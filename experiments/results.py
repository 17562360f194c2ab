"""What a row gave: one small JSON file, found again by what decided it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from experiments.row_settings import as_values, default_values, kind_of
from experiments.table_file import Row, TableFile
from vlhmm.data.atomic import atomic_write
from vlhmm.data.json_file import parse_json

SCHEMA = 1
SHORT_HASH = 8
"""Characters of a hash in a file's name."""


class ResultError(ValueError):
    """A result that cannot be used as it is."""


@dataclass(frozen=True)
class Identity:
    """All that decides a result: settings, text and seed. Names of rows, machines and versions do not."""

    kind: str
    settings: dict[str, Any]
    """All of them; those left at their defaults do not count, so that a setting added later changes no identity."""
    data: dict[str, Any]
    seed: int

    @property
    def configuration(self) -> str:
        """The same for every seed."""
        defaults = default_values(self.kind, self.settings)
        counted = {
            f"{section}.{name}": value
            for section, settings in self.settings.items()
            for name, value in settings.items()
            if name not in defaults.get(section, {}) or defaults[section][name] != value
        }
        return _hash({"kind": self.kind, "settings": counted, "data": self.data})

    @property
    def hash(self) -> str:
        return _hash({"configuration": self.configuration, "seed": self.seed})


def _hash(values: object) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True)
class Result:
    """What was measured, and everything one would want to know about how."""

    table: str
    row: str
    kind: str
    settings: dict[str, Any]
    data: dict[str, Any]
    seed: int
    status: Literal["finished", "diverged"]
    measured: dict[str, float]
    """By quantity."""
    protocols: dict[str, str]
    """How a quantity was measured, in words."""
    curve: list[dict[str, float]]
    """Validation perplexity against tokens seen, thinned."""
    seconds: float
    """Of training, resumed runs together."""
    device: str
    command: str
    commit: str | None
    versions: dict[str, str]
    corpus_hash: str
    message: str = ""

    @property
    def identity(self) -> Identity:
        return Identity(self.kind, self.settings, self.data, self.seed)


def identity_of(row: Row, text: Mapping[str, str], seed: int) -> Identity:
    """`text`: the checksums."""
    data: dict[str, Any] = {"checksums": dict(text), "train_fraction": row.train_fraction}
    if row.tokens:
        data["train_tokens"] = row.tokens
    if row.windows:
        data["windows"] = row.windows
    return Identity(kind_of(row.settings), as_values(row.settings), data, seed)


def results_folders(table: Path) -> tuple[Path, ...]:
    """Where results are looked for: beside the table, where they are written too, and beside its sister folders' tables."""
    own = table.absolute().parent / "results"
    sisters = table.absolute().parent.parent.glob("*/results")
    return own, *sorted(folder for folder in sisters if folder != own)


def result_files(folders: Sequence[Path], identity: Identity) -> list[Path]:
    """Files that by their name hold the result of this identity, whichever table or row it was made for."""
    name = f"*-{identity.configuration[:SHORT_HASH]}-seed{identity.seed}.json"
    return [path for folder in folders for path in sorted(folder.glob(name))]


def find_result(folders: Sequence[Path], identity: Identity) -> tuple[Path, Result] | None:
    for path in result_files(folders, identity):
        result = read_result(path)
        if result.identity.hash == identity.hash:
            return path, result
    return None


def find_seeds(folders: Sequence[Path], row: Row, text: Mapping[str, str]) -> list[Result]:
    """The results of a row, one for each seed."""
    configuration = identity_of(row, text, 0).configuration
    found: dict[int, Result] = {}
    for folder in folders:
        for path in sorted(folder.glob(f"*-{configuration[:SHORT_HASH]}-seed*.json")):
            result = read_result(path)
            if result.identity.configuration == configuration:
                found.setdefault(result.seed, result)
    return [found[seed] for seed in sorted(found)]


def outdated_results(folder: Path, table: TableFile, row: Row, identity: Identity) -> list[tuple[Path, list[str]]]:
    """Results of the same row and seed with other settings, and what differs."""
    outdated = []
    for path in sorted(folder.glob(f"{_stem(table.name, row.name)}-*-seed{identity.seed}.json")):
        result = read_result(path)
        if (result.table, result.row) == (table.name, row.name) and result.identity.hash != identity.hash:
            outdated.append((path, _differences(result, identity)))
    return outdated


def _differences(result: Result, now: Identity) -> list[str]:
    differences = [
        f"{name} = {before!r}, not {settings[name]!r}"
        for section, settings in now.settings.items()
        for name, before in result.settings.get(section, {}).items()
        if name in settings and settings[name] != before
    ]
    if result.kind != now.kind:
        differences.append(f"{result.kind}, not {now.kind}")
    if result.data != now.data:
        differences.append("another text")
    return differences


def write_result(folder: Path, result: Result) -> Path:
    identity = result.identity
    short = identity.configuration[:SHORT_HASH]
    path = folder / f"{_stem(result.table, result.row)}-{short}-seed{result.seed}.json"
    values = {"schema": SCHEMA, "identity": identity.hash, **asdict(result)}
    atomic_write(path, (json.dumps(values, indent=1) + "\n").encode())
    return path


def read_result(path: Path) -> Result:
    """What `write_result` wrote; a file that is half-written, foreign or edited is refused."""
    remedy = "move it away, or run the row again with --force"
    try:
        values = parse_json(path.read_bytes(), "it")
    except ValueError as error:
        raise ResultError(f"{path} is half-written or no result ({error}): {remedy}") from error
    if not isinstance(values, dict) or "schema" not in values:
        raise ResultError(f"{path} is no result of `python -m experiments run`: {remedy}")
    schema, identity = values.pop("schema"), values.pop("identity", None)
    if schema != SCHEMA:
        raise ResultError(f"{path} has schema {schema}, this program reads {SCHEMA}: {remedy}")
    try:
        result = Result(**values)
        found = result.identity.hash
    except (TypeError, ValueError, AttributeError, KeyError) as error:
        raise ResultError(f"{path} lacks something or has too much ({error}): {remedy}") from error
    if found != identity:
        raise ResultError(f"{path} was edited, or a default has changed since: its settings are not its own: {remedy}")
    return result


def _stem(table: str, row: str) -> str:
    """Letters, digits and dashes, for the name of a file."""
    return re.sub(r"[^a-z0-9]+", "-", f"{table} {row}".lower()).strip("-")[:80]
