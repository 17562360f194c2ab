"""Folders as the first edition wrote them, without checksums: what damage does there must be found by other means."""

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

MODEL, CONFIG = "model.safetensors", "config.json"


def as_first_edition(
    folder: Path,
    *,
    tensors: Callable[[dict[str, Tensor]], Mapping[str, Tensor]] = lambda tensors: tensors,
    config: Callable[[dict[str, Any]], Any] = lambda values: values,
) -> None:
    """Rewrites a model folder without checksums and of version 1, its tensors and its config changed so that both still name
    each other."""
    text = json.dumps(config({**json.loads((folder / CONFIG).read_text()), "version": 1}), indent=2)
    (folder / CONFIG).write_text(text)
    metadata = {"format": "vlhmm", "version": "1", "config": hashlib.sha256(text.encode()).hexdigest()}
    changed = dict(tensors(load_file(folder / MODEL)))
    save_file(changed, folder / MODEL, metadata)
