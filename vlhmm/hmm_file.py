"""An HMM in one safetensors file: its tables in their own form, whatever the support and the transition. Never pickled."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlhmm.data.json_file import one_line, parse_json
from vlhmm.records import named_tensors
from vlhmm.support import Support
from vlhmm.tables import Tables
from vlhmm.tensor_file import FolderError, read_tensors, write_tensors
from vlhmm.transitions import KINDS

ABOUT = "hmm"
"""In the file's metadata: what is no tensor, as JSON."""
COMPUTED = ("log_normalizer",)
"""Of a transition: computed from its other parts when a file is read, whatever the file says. Earlier versions read them."""
OF_SUPPORT = ("group_of_word", "states_of_group")


def write_hmm(path: str | Path, tables: Tables) -> None:
    kind = next((name for name, record in KINDS.items() if type(tables.transition) is record), None)
    if kind is None:
        raise ValueError(
            f"the transition is a {type(tables.transition).__name__}, but a file holds one of {', '.join(KINDS)}: "
            "TableTransition(transition.log_rows(torch.arange(num_states))) is any of them as a table"
        )
    tensors = {f"support.{name}": getattr(tables.support, name) for name in OF_SUPPORT}
    tensors |= {f"transition.{name}": part for name, part in named_tensors(tables.transition).items()}
    tensors |= {"log_start": tables.log_start, "log_emission": tables.log_emission}
    about = {
        "num_states": tables.num_states,
        "partition": tables.support.partition,
        "transition": kind,
        "reset_token": None if tables.reset_token is None else int(tables.reset_token),
        "precision": tables.precision,
    }
    if Path(path).is_dir():
        raise FolderError(
            f"{path} is a folder, but HMM.save writes a file: give the name of a file in it, {Path(path) / 'hmm.safetensors'}"
        )
    write_tensors(Path(path), _apart(tensors), {ABOUT: json.dumps(about)})


def read_hmm(path: str | Path, verify: bool | None = None, device: torch.device | None = None) -> Tables:
    """The tables in a file, on `device`; whoever makes an HMM of them checks their rows."""
    path = Path(path)
    if path.is_dir():
        raise FolderError(
            f"{path} is a folder, but HMM.save writes a file: vlhmm.load reads the folder of a language model"
        )
    tensors, metadata = read_tensors(path, verify=verify)
    if ABOUT not in metadata:
        raise FolderError(f"{path} holds no HMM: HMM.save writes one; vlhmm.load reads the folder of a language model")
    about = parse_json(metadata[ABOUT], f"{path}: its metadata {ABOUT!r}")
    with whole_hmm(path):
        tables = _tables(tensors, about)
    tables = tables.to(device)
    with whole_hmm(path), torch.no_grad():
        return replace(tables, transition=tables.transition.renormalized())


@contextmanager
def whole_hmm(path: str | Path) -> Iterator[None]:
    """Errors in what a file holds are one error that names it."""
    try:
        yield
    # Tensors of shapes and types that do not go together are a RuntimeError of torch.
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise FolderError(
            f"{path} holds no whole HMM ({one_line(error)}): it was edited, or a later vlhmm wrote it"
        ) from None


def _tables(tensors: dict[str, Tensor], about: dict[str, Any]) -> Tables:
    if about["transition"] not in KINDS:
        raise ValueError(f"transition {about['transition']!r} is none of {', '.join(KINDS)}")
    record = KINDS[about["transition"]]
    parts = {field.name: tensors[f"transition.{field.name}"] for field in fields(record) if field.name not in COMPUTED}
    if len(parts) < len(fields(record)):
        parts |= {name: parts["out"].new_zeros(len(parts["out"])) for name in COMPUTED}
    support = Support(
        tensors["support.group_of_word"],
        tensors["support.states_of_group"],
        num_states=int(about["num_states"]),
        partition=bool(about["partition"]),
    )
    return Tables(
        support,
        tensors["log_start"],
        record(**parts),
        tensors["log_emission"],
        about["reset_token"],
        about["precision"],
    )


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Each tensor in memory of its own, as the file needs it: features of sources and targets are often the same ones."""
    seen, apart = set[int](), dict[str, Tensor]()
    for name, tensor in tensors.items():
        shared = tensor.untyped_storage().data_ptr() in seen
        seen.add(tensor.untyped_storage().data_ptr())
        apart[name] = tensor.detach().clone(memory_format=torch.contiguous_format) if shared else tensor
    return apart
