"""A model folder: model.safetensors, config.json, tokenizer.json. Written whole or not at all, never pickled.

config.json says what the model is; model.safetensors names the config it belongs to, so that files of two models are not
taken for one.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from vlhmm.data import Tokenizer
from vlhmm.data.atomic import atomic_path, atomic_write
from vlhmm.models import Model, ModelSettings
from vlhmm.support import Support

FORMAT, VERSION = "vlhmm", 1
CONFIG, MODEL, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


class FolderError(ValueError):
    """A folder that is no model folder, not a whole one, or one of another version."""


@dataclass(frozen=True)
class ModelFolder:
    model: Model
    tokenizer: Tokenizer
    config: dict[str, Any]


@dataclass(frozen=True)
class Config:
    """What config.json holds."""

    model: ModelSettings
    support: dict[str, Any]
    reset_token: int | None
    about: dict[str, Any] = field(default_factory=dict)
    """What else a reader wants to know: corpus, training settings."""

    def to_json(self) -> str:
        values = {
            "format": FORMAT,
            "version": VERSION,
            "model": self.model.to_dict(),
            "support": self.support,
            "reset_token": self.reset_token,
            "about": self.about,
        }
        return json.dumps(values, indent=2, ensure_ascii=False) + "\n"


def config_of(model: Model, about: Mapping[str, Any]) -> Config:
    support = model.support
    shape = {
        "num_words": support.num_words,
        "num_states": support.num_states,
        "num_groups": support.num_groups,
        "states_per_word": support.states_per_word,
        "partition": support.partition,
    }
    return Config(model.settings, shape, model.reset_token, dict(about))


def save_model(
    folder: Path,
    model: Model,
    tokenizer: Tokenizer,
    about: Mapping[str, Any],
    state: Mapping[str, Tensor] | None = None,
) -> None:
    """Writes the three files; `state` replaces the model's own weights (an average of them, say)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(model, about).to_json()
    # The weights last: they name the config, so a folder is whole only when all three agree.
    if not (folder / TOKENIZER).exists() or Tokenizer.load(folder / TOKENIZER).hash != tokenizer.hash:
        tokenizer.save(folder / TOKENIZER)
    atomic_write(folder / CONFIG, config.encode())
    write_tensors(folder / MODEL, state or model.state_dict(), {"config": _digest(config)})


def load_model(folder: str | Path, device: torch.device | str = "cpu") -> ModelFolder:
    """The model of a folder, refused with a reason if any of it is missing, cut short or of another kind."""
    folder = Path(folder)
    if not folder.is_dir():
        raise FolderError(f"{folder} is no folder: give one that `vlhmm train` or `lm.save` has written")
    for name in (CONFIG, MODEL, TOKENIZER):
        if not (folder / name).is_file():
            raise FolderError(
                f"{folder} has no {name}: it is no model folder, or its first checkpoint was never written"
            )
    text = (folder / CONFIG).read_text(encoding="utf-8")
    values = _read_config(folder / CONFIG, text)
    tensors, metadata = read_tensors(folder / MODEL)
    if metadata.get("config") != _digest(text):
        raise FolderError(
            f"{folder / MODEL} belongs to another {CONFIG} than the one beside it: restore both from one save"
        )
    settings = ModelSettings.from_dict(values["model"])
    tokenizer = Tokenizer.load(folder / TOKENIZER)
    shape = values["support"]
    if tokenizer.vocab_size != shape["num_words"]:
        raise FolderError(
            f"{folder / TOKENIZER} has {tokenizer.vocab_size} tokens, but the model has {shape['num_words']}: it is of another model"
        )
    support = Support(
        tensors["group_of_word"], tensors["states_of_group"], int(shape["num_states"]), bool(shape["partition"])
    )
    model = Model(settings, support, values["reset_token"])
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        raise FolderError(f"{folder / MODEL} does not fit {CONFIG}: {error}") from None
    return ModelFolder(model.to(device), tokenizer, values)


def _read_config(path: Path, text: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except json.JSONDecodeError as error:
        raise FolderError(f"{path} is not JSON ({error}): it was cut short or edited") from None
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise FolderError(f"{path} does not say it is a {FORMAT} model: it is another program's folder")
    if values.get("version") != VERSION:
        raise FolderError(f"{path} is of version {values.get('version')}, this vlhmm reads version {VERSION}")
    missing = {"model", "support", "reset_token"} - values.keys()
    if missing:
        raise FolderError(f"{path} lacks {', '.join(sorted(missing))}: it was edited or cut short")
    return values


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a safetensors file of ours, and its metadata."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            if metadata.get("format") != FORMAT:
                raise FolderError(f"{path} does not say it is a {FORMAT} file: it is another program's")
            return {name: file.get_tensor(name) for name in file.keys()}, metadata  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise FolderError(f"{path} cannot be read ({error}): it was cut short or is no safetensors file") from None


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """One file of tensors with text beside them, whole or not at all."""
    contiguous = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with atomic_path(path) as partial:
        # Not by way of bytes in memory: to put gigabytes of them together takes several times as long, and holds up all threads.
        try:
            save_file(contiguous, partial, {"format": FORMAT, "version": str(VERSION), **metadata})
        except SafetensorError as error:
            # An OSError in all but its class: "... I/O error: No space left on device (os error 28)".
            found = re.search(r"\(os error (\d+)\)", str(error))
            if found is None:
                raise
            raise OSError(int(found[1]), os.strerror(int(found[1])), str(path)) from error


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
