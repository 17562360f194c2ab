"""Record files: where they are, on which machine they were made, and when two numbers count as equal.

Results are bit-identical only between runs on the same kind of CPU: PyTorch and its matrix libraries choose their kernels
by vendor and instruction set, and these sum in different orders. Where vendor, instruction set and torch version are those of
the record, equal means bit-identical; elsewhere it means within TOLERANCE, relative to the largest number of its array, since
an entry that is small by cancellation has no relative accuracy of its own.
"""

from __future__ import annotations

import json
import platform
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

FOLDER = Path(__file__).parent
RECORDS = FOLDER / "records"
REPOSITORY = FOLDER.parents[1]
TOLERANCE = {torch.float64: 1e-12, torch.float32: 1e-5}
JSON_TOLERANCE = 1e-5
"""Numbers in JSON are Python floats, but come from models in float32."""


def machine() -> dict[str, str]:
    """What decides whether results can be compared bit by bit."""
    return {
        "torch": torch.__version__,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "vendor": _cpu_vendor(),
        "system": platform.system(),
    }


def _cpu_vendor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("vendor_id"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def write_tensors(name: str, tensors: Mapping[str, Tensor]) -> None:
    RECORDS.mkdir(exist_ok=True)
    contiguous = {key: value.detach().contiguous().clone() for key, value in tensors.items()}
    save_file(contiguous, RECORDS / f"{name}.safetensors", {"machine": json.dumps(machine(), sort_keys=True)})


def read_tensors(name: str) -> tuple[dict[str, Tensor], bool]:
    """The record, and whether it was made on a machine like this one."""
    with safe_open(RECORDS / f"{name}.safetensors", framework="pt") as file:
        made_on = json.loads(file.metadata()["machine"])
        return {key: file.get_tensor(key) for key in file.keys()}, made_on == machine()  # noqa: SIM118


def write_json(name: str, values: Any) -> None:
    RECORDS.mkdir(exist_ok=True)
    text = json.dumps({"machine": machine(), "values": values}, indent=1, sort_keys=True, ensure_ascii=False)
    (RECORDS / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def read_json(name: str) -> tuple[Any, bool]:
    """The record, and whether it was made on a machine like this one."""
    record = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return record["values"], record["machine"] == machine()


def tensor_difference(found: Tensor, recorded: Tensor, bitwise: bool, computed_in: torch.dtype) -> str | None:
    """How the two differ, or None. `computed_in`: a sum in float64 of float32 numbers is no more exact than they are."""
    if found.dtype != recorded.dtype or found.shape != recorded.shape:
        return f"is {found.dtype} {tuple(found.shape)}, was {recorded.dtype} {tuple(recorded.shape)}"
    found, recorded = found.detach(), recorded.detach()
    if bitwise or not recorded.is_floating_point():
        if torch.equal(found, recorded):
            return None
        return f"is not bit-identical: {found.flatten()[:6].tolist()}, was {recorded.flatten()[:6].tolist()}"
    finite = recorded.isfinite()
    if not torch.equal(found[~finite], recorded[~finite]):
        return "is infinite at other places"
    largest = float(recorded[finite].abs().max()) if finite.any() else 0.0
    error = float((found[finite] - recorded[finite]).abs().max()) if finite.any() else 0.0
    limit = TOLERANCE[computed_in] * largest
    return None if error <= limit else f"differs by {error:.3g}, allowed are {limit:.3g}"


def tensor_differences(
    found: Mapping[str, Tensor], recorded: Mapping[str, Tensor], bitwise: bool, computed_in: torch.dtype
) -> list[str]:
    """What was recorded and is no longer so; answers that were not recorded do not count."""
    missing = [f"{name} is missing" for name in recorded if name not in found]
    compared = {
        name: tensor_difference(found[name], recorded[name], bitwise, computed_in) for name in recorded if name in found
    }
    return missing + [f"{name} {difference}" for name, difference in compared.items() if difference]


def json_differences(found: Any, recorded: Any, bitwise: bool, where: str = "") -> Iterator[str]:
    """Keys, texts and whole numbers are compared exactly, other numbers within JSON_TOLERANCE unless `bitwise`."""
    if isinstance(recorded, dict) and isinstance(found, dict):
        for key in sorted(recorded.keys() | found.keys()):
            if key not in found or key not in recorded:
                yield f"{where}.{key} is {'missing' if key not in found else 'new'}"
            else:
                yield from json_differences(found[key], recorded[key], bitwise, f"{where}.{key}")
    elif isinstance(recorded, list) and isinstance(found, list):
        if len(found) != len(recorded):
            yield f"{where} has {len(found)} entries, had {len(recorded)}"
        for number, (one, other) in enumerate(zip(found, recorded, strict=False)):
            yield from json_differences(one, other, bitwise, f"{where}[{number}]")
    elif isinstance(recorded, float) and isinstance(found, float) and not bitwise:
        if found != recorded and not abs(found - recorded) <= JSON_TOLERANCE * max(1.0, abs(recorded)):
            yield f"{where} is {found!r}, was {recorded!r}"
    elif type(found) is not type(recorded) or found != recorded:
        yield f"{where} is {found!r}, was {recorded!r}"
