"""One safetensors file of vlhmm: tensors, text beside them, and a SHA-256 of both. Never pickled.

The checksum stands in the file's own metadata, so that file and checksum take their place in one rename.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vlhmm.data.atomic import atomic_path
from vlhmm.data.checksums import UncheckedFileWarning, verify_wanted
from vlhmm.data.json_file import one_line
from vlhmm.memory import require_memory

FORMAT = "vlhmm"
UNCHECKED_VERSION, FILE_VERSION = "1", "2"
"""In a file's metadata under "version". Files of version 1, of vlhmm 0.1, have no checksum; the layout is the same."""
DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}


class FolderError(ValueError):
    """A folder or a file of one that is not what it should be: another program's, damaged, not whole, of another version."""


@dataclass(frozen=True)
class TensorHeader:
    """What a file says of its tensors before any of them is read."""

    shapes: dict[str, tuple[int, ...]]
    dtypes: dict[str, torch.dtype]
    metadata: dict[str, str]

    @property
    def num_elements(self) -> int:
        return sum(map(math.prod, self.shapes.values()))

    @property
    def num_bytes(self) -> int:
        return sum(math.prod(shape) * self.dtypes[name].itemsize for name, shape in self.shapes.items())


def read_tensor_header(path: Path) -> TensorHeader:
    """Names, types and shapes; safetensors has compared them with the file's length."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
            types = {name: part.get_dtype() for name, part in slices.items()}
            shapes = {name: tuple(part.get_shape()) for name, part in slices.items()}
    except (SafetensorError, OSError) as error:
        raise _unread(path, error) from None
    if metadata.get("format") != FORMAT:
        raise FolderError(f"{path} does not say it is a {FORMAT} file: it was written by another program")
    if metadata.get("version") not in (UNCHECKED_VERSION, FILE_VERSION):
        raise FolderError(
            f"{path} has file version {one_line(metadata.get('version'), 80)}, this vlhmm reads {UNCHECKED_VERSION} and {FILE_VERSION}: update vlhmm"
        )
    for name, dtype in types.items():
        if dtype not in DTYPES:
            raise FolderError(
                f"{path} has {one_line(name, 80)} in {dtype}, but vlhmm writes {', '.join(DTYPES)}: it was written by another program"
            )
    return TensorHeader(shapes, {name: DTYPES[dtype] for name, dtype in types.items()}, metadata)


def _unread(path: Path, error: Exception) -> FolderError:
    if isinstance(error, FileNotFoundError):
        return FolderError(f"there is no file {path}; the working folder is {Path.cwd()}")
    if isinstance(error, OSError):
        return FolderError(f"{path} cannot be read: {one_line(error)}")
    return FolderError(f"{path} cannot be read ({one_line(error)}): it was cut short or is no safetensors file")


def read_tensors(path: Path, *, verify: bool | None = None) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a file of vlhmm, and its metadata.

    `verify` compares them with the file's checksum; None: unless `VLHMM_VERIFY` is 0. A file of vlhmm 0.1 has none, and is
    read with an `UncheckedFileWarning`.
    """
    header = read_tensor_header(path)
    verify = verify_wanted(verify)
    recorded = header.metadata.get("sha256")
    if recorded is None and header.metadata["version"] != UNCHECKED_VERSION:
        raise FolderError(f"{path} lacks its checksum: it was changed by another program; restore it")
    require_memory(
        header.num_bytes, str(path), "free some, or read it on a machine with more memory", torch.device("cpu")
    )
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in header.shapes}
    except (SafetensorError, OSError) as error:
        raise _unread(path, error) from None
    if verify and recorded is None:
        warnings.warn(
            f"{path} has no checksum, so damage inside it may go unnoticed: an earlier vlhmm wrote it; save it again to add one",
            UncheckedFileWarning,
            stacklevel=2,
        )
    elif verify and recorded != content_sha256(tensors, header.metadata):
        raise FolderError(f"{path} is damaged: its content does not have the SHA-256 that it records; restore it")
    return tensors, header.metadata


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """One file of tensors with text beside them and the checksum of all, whole or not at all."""
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    about = {"format": FORMAT, "version": FILE_VERSION, **metadata}
    about["sha256"] = content_sha256(contiguous, about)
    with atomic_path(path) as partial:
        # Not by way of bytes in memory: to put gigabytes of them together takes several times as long, and holds up all threads.
        try:
            save_file(contiguous, partial, about)
        except SafetensorError as error:
            # An OSError in all but its class: "... I/O error: No space left on device (os error 28)".
            found = re.search(r"\(os error (\d+)\)", str(error))
            if found is None:
                raise
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def content_sha256(tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> str:
    """Of names, types, shapes and numbers in the order of names, and of the text beside them, the checksum itself left out."""
    text = sorted((name, value) for name, value in metadata.items() if name != "sha256")
    sha = hashlib.sha256(json.dumps(text).encode())
    for name, tensor in sorted(tensors.items()):
        sha.update(json.dumps([name, str(tensor.dtype), list(tensor.shape)]).encode())
        # numpy has no bfloat16; bytes it has.
        sha.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return sha.hexdigest()


def require_tensors(path: Path, found: TensorHeader, needed: Mapping[str, Tensor]) -> None:
    """Refuses a file that has not exactly the tensors `needed`, each in its shape and type.

    Weights in bf16 may take the place of float32, which holds each of their numbers; nothing else is cast.
    """
    missing, unknown = sorted(needed.keys() - found.shapes.keys()), sorted(found.shapes.keys() - needed.keys())
    if missing or unknown:
        told = [f"lacks {_some(missing)}"] * bool(missing) + [f"has {_some(unknown)} too much"] * bool(unknown)
        raise FolderError(f"{path} does not fit its config: it {' and '.join(told)}; restore both from one save")
    for name, tensor in needed.items():
        shape, dtype = found.shapes[name], found.dtypes[name]
        if shape != tuple(tensor.shape):
            raise FolderError(
                f"{path} does not fit its config: {name} has shape {shape}, {tuple(tensor.shape)} is needed; "
                "restore both from one save"
            )
        if dtype != tensor.dtype and (dtype, tensor.dtype) != (torch.bfloat16, torch.float32):
            raise FolderError(
                f"{path} has {name} in {dtype}, but {tensor.dtype} is needed: restore it, or set torch's default dtype to "
                "that of the file before loading"
            )


def _some(names: list[str], shown: int = 3) -> str:
    more = f" and {len(names) - shown} more" if len(names) > shown else ""
    return ", ".join(one_line(name, 80) for name in names[:shown]) + more
