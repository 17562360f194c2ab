"""The commands that are killed, how they go on, and what must be equal at the end."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open

MODEL = "--preset demo --device cpu --set num_blocks=5 --set states_per_block=4 --set dim=8 --set batch_size=4 --set window=16"


@dataclass(frozen=True)
class Scenario:
    name: str
    command: tuple[str, ...]
    resume: tuple[str, ...]
    """What is added to go on; nothing: the same command does."""
    refuses_finished: bool = False
    """The command refuses to do again what is done, and says that it exists."""


def scenarios(material: Path) -> list[Scenario]:
    """All read their text from `material` and write to `out` in the working directory."""
    text, teacher = str(material / "text.txt"), str(material / "teacher")
    em = "--method em --device cpu --set num_blocks=5 --set states_per_block=4 --set iterations=2 --set batch_size=4"
    drawn = "--states 8 --tokens 1500 --max-tokens 16 --batch-size 32 --device cpu --set epochs=2 --set batch_size=8 --set dim=8"
    resume = ("--resume",)
    return [
        Scenario("train", ("train", text, "--out", "out", *MODEL.split(), "--set", "epochs=1"), resume),
        Scenario("em", ("train", text, "--out", "out", *em.split(), "--set", "window=16"), resume),
        Scenario("prepare", ("prepare", text, "--out", "out"), (), refuses_finished=True),
        Scenario("distill", ("distill", teacher, "--out", "out", *drawn.split(), "--lvd"), ()),
        Scenario("cluster", ("cluster", text, "--blocks", "5", "--out", "out/blocks.tsv"), ()),
    ]


def write_material(folder: Path, teacher: bool) -> None:
    """A text with few words, and a teacher that has learnt a few sentences."""
    draw = random.Random(0)
    nouns, verbs = ["file", "name", "list", "string", "value"], ["reads", "returns", "opens", "holds"]
    lines = [f"the {draw.choice(nouns)} {draw.choice(verbs)} a {draw.choice(nouns)} ." for _ in range(200)]
    (folder / "text.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")
    if teacher:
        from tests.tiny_teacher import write_tiny_teacher

        write_tiny_teacher(folder / "teacher", num_steps=30)


def differences(first: Path, second: Path) -> list[str]:
    """What differs between the results of two runs, times and commands apart; leftovers of saves count as differences."""
    found = [f"{path.relative_to(second)} is left over" for path in second.rglob("*") if "partial" in path.name]
    found += [f"{path.relative_to(second)} is left over" for path in second.rglob(".tmp*")]
    ours, theirs = (
        {path.relative_to(folder) for path in folder.rglob("*") if path.is_file() and path.name != ".lock"}
        for folder in (first, second)
    )
    found += [f"{path} is in one of them alone" for path in ours ^ theirs]
    return found + [
        f"{path} differs"
        for path in sorted(ours & theirs)
        if _content(first, first / path) != _content(second, second / path)
    ]


def damage(folder: Path) -> list[str]:
    """Files under their own names that are not whole: nothing may be, whenever a process was stopped."""
    found = []
    for path in folder.rglob("*"):
        if path.is_file() and not any(part.startswith(".") for part in path.relative_to(folder).parts):
            try:
                _content(folder, path)
            except Exception as error:
                found.append(f"{path.relative_to(folder)} is damaged: {error!r}")
    return found


def _content(root: Path, path: Path) -> Any:
    if path.suffix == ".safetensors":
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        # Bits, not numbers: NaN differs from itself.
        return {name: (str(one.dtype), one.shape, _bits(one)) for name, one in tensors.items()}
    if path.name == "log.jsonl":
        # The last line may be cut short by a kill; the next run drops it.
        lines = path.read_text(encoding="utf-8").split("\n")
        return [_timeless(json.loads(line)) for line in lines[:-1]]
    if path.suffix == ".json":
        # A run remembers its own place.
        return _timeless(json.loads(path.read_text(encoding="utf-8").replace(str(root), "")))
    if path.suffix == ".png":
        return path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.read_bytes()[-8:-4] == b"IEND"
    return path.read_bytes()


def _bits(values: torch.Tensor) -> bytes:
    return values.contiguous().view(torch.uint8).numpy().tobytes() if values.ndim else str(values.item()).encode()


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(one) for name, one in value.items() if "seconds" not in name and name != "command"}
    return value
