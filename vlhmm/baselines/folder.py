"""A trained baseline on disk: baseline.json says what it is, its weights lie in a few safetensors files beside it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vlhmm.baselines.scorer import Baseline, build_baseline
from vlhmm.data.atomic import atomic_write
from vlhmm.data.json_file import read_json_object
from vlhmm.settings import settings_from
from vlhmm.tensor_file import FolderError, read_tensors, write_tensors
from vlhmm.training.baseline_settings import BASELINES, BaselineSettings, kind_of

ABOUT = "baseline.json"
FORMAT, VERSION = "vlhmm baseline", 1
FILE_BYTES = 15 << 20
"""Of weights in one file at most, so that each can be kept where files are small."""
DTYPES = {"float32": torch.float32, "float16": torch.float16}


@dataclass(frozen=True)
class TrainedWeights:
    """A baseline that was read from a folder."""

    model: Baseline
    tokenizer: str
    """`Tokenizer.hash` of the tokens that it reads."""
    hash: str
    """SHA-256 of its settings and weights."""
    about: dict[str, Any]


def is_baseline_folder(folder: Path) -> bool:
    return (folder / ABOUT).is_file()


def save_baseline(
    folder: Path,
    model: Baseline,
    tokenizer: str,
    about: Mapping[str, Any],
    *,
    dtype: Literal["float32", "float16"] = "float32",
) -> None:
    """Write a trained baseline, in files of at most 15 MiB.

    Args:
        folder: The folder; files of an earlier model are replaced.
        model: The model.
        tokenizer: `Tokenizer.hash` of the tokens that it reads.
        about: How it was made: corpus, seed, perplexity.
        dtype: The type of the weights; float16 halves them, and rounds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    sums = []
    for number, tensors in enumerate(_files(model.state_dict(), DTYPES[dtype])):
        path = folder / _file(number)
        write_tensors(path, tensors, {"kind": "baseline"})
        sums.append(hashlib.sha256(path.read_bytes()).hexdigest())
    values = {
        "format": FORMAT,
        "version": VERSION,
        "kind": kind_of(model.settings),
        "settings": asdict(model.settings),
        "num_words": model.num_words,
        "tokenizer": tokenizer,
        "files": sums,
        "about": dict(about),
    }
    # Last: a folder that has it is whole.
    atomic_write(folder / ABOUT, (json.dumps(values, indent=2) + "\n").encode())


def load_baseline(folder: str | Path, device: torch.device | str = "cpu") -> TrainedWeights:
    """Read a baseline that `save_baseline` wrote.

    Args:
        folder: The folder.
        device: Where the model goes.

    Returns:
        The model in float32, and what its folder says of it.

    Raises:
        FolderError: A file is missing, damaged or of another model.
    """
    folder = Path(folder)
    path = folder / ABOUT
    if not path.is_file():
        raise FolderError(f"{folder} has no {ABOUT}: it is no folder of a trained baseline")
    try:
        values = read_json_object(path)
        if values["format"] != FORMAT or values["version"] != VERSION:
            raise ValueError(f"format {values['format']!r}, version {values['version']!r}")
        settings: BaselineSettings = settings_from(BASELINES[values["kind"]], values["settings"])
        num_words, sums = int(values["num_words"]), list(values["files"])
        tokenizer, about = str(values["tokenizer"]), dict(values["about"])
    except (ValueError, KeyError, TypeError) as error:
        raise FolderError(f"{path} cannot be read ({error}): it was edited or is of another version") from None
    with torch.device("meta"):
        model = build_baseline(settings, num_words)
    found = _joined(folder, sums)
    needed = model.state_dict()
    for name, wanted in needed.items():
        if name not in found or found[name].shape != wanted.shape:
            told = tuple(found[name].shape) if name in found else "missing"
            raise FolderError(f"{folder} does not fit its {ABOUT}: {name} is {told}, {tuple(wanted.shape)} is needed")
    model = build_baseline(settings, num_words, torch.Generator().manual_seed(0))
    model.load_state_dict({name: found[name].float() for name in needed})
    digest = hashlib.sha256(json.dumps([values["kind"], values["settings"], sums], sort_keys=True).encode()).hexdigest()
    return TrainedWeights(model.to(device), tokenizer, digest, about)


def _file(number: int) -> str:
    return f"weights-{number:02d}.safetensors"


def _files(weights: Mapping[str, Tensor], dtype: torch.dtype) -> Iterator[dict[str, Tensor]]:
    """Tensors that fit into one file each time; a large one is cut into stretches of rows, `NAME@FIRST_ROW`."""
    tensors: dict[str, Tensor] = {}
    size = 0
    for name, weight in weights.items():
        value = weight.detach().to(dtype).cpu()
        rows = max(1, FILE_BYTES // max(1, value[0].numel() * value.itemsize))
        for first in range(0, len(value), rows):
            part = value[first : first + rows].contiguous()
            part_size = part.numel() * part.itemsize
            if tensors and size + part_size > FILE_BYTES:
                yield tensors
                tensors, size = {}, 0
            tensors[f"{name}@{first}"] = part
            size += part_size
    yield tensors


def _joined(folder: Path, sums: list[str]) -> dict[str, Tensor]:
    parts: dict[str, dict[int, Tensor]] = {}
    for number, expected in enumerate(sums):
        path = folder / _file(number)
        if not path.is_file():
            raise FolderError(f"{folder} lacks {path.name}: restore it, or train the baseline again")
        if hashlib.sha256(path.read_bytes()).hexdigest() != expected:
            raise FolderError(
                f"{path} is damaged or of another model: it does not have the SHA-256 that {ABOUT} records"
            )
        for name, value in read_tensors(path)[0].items():
            weight, _, first = name.rpartition("@")
            parts.setdefault(weight, {})[int(first)] = value
    return {name: torch.cat([rows[first] for first in sorted(rows)]) for name, rows in parts.items()}
