"""A model folder: model.safetensors, config.json, tokenizer.json. Written whole or not at all, never pickled.

config.json says what the model is. model.safetensors records the SHA-256 of both other files, the tokenizer's identity and a
SHA-256 of its own content, and takes its place last and in one rename: a folder is whole only if all three agree. Two further
files, with which `transformers` reads the tokenizer, follow from tokenizer.json; nothing here reads them, so no hash covers them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlhmm.data import Tokenizer
from vlhmm.data.atomic import atomic_write
from vlhmm.data.checksums import sha256_of_file, verify_wanted
from vlhmm.data.json_file import one_line, parse_json, read_json_object, read_text
from vlhmm.data.transformers_files import save_transformers_files
from vlhmm.memory import require_memory
from vlhmm.models import Model, ModelSettings
from vlhmm.support import Support
from vlhmm.tensor_file import (
    UNCHECKED_VERSION,
    FolderError,
    TensorHeader,
    read_tensor_header,
    read_tensors,
    require_tensors,
    write_tensors,
)
from vlhmm.validate import check_support

__all__ = [
    "CONFIG",
    "MODEL",
    "TOKENIZER",
    "Config",
    "FolderError",
    "ModelFolder",
    "check_beside",
    "check_version",
    "config_of",
    "hashes_beside",
    "load_model",
    "read_tensors",
    "save_model",
    "save_tokenizer",
    "write_tensors",
]

FORMAT, VERSION = "vlhmm", 2
"""In config.json. Version 1 is that of vlhmm 0.1: its weights have no checksum, and settings that came later their
defaults."""
CONFIG, MODEL, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"


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
    """Writes the three files, and what `transformers` reads beside the tokenizer; `state` replaces the model's own weights (an average of them, say)."""
    folder.mkdir(parents=True, exist_ok=True)
    config = config_of(model, about).to_json()
    save_tokenizer(folder / TOKENIZER, tokenizer)
    save_transformers_files(folder, tokenizer)
    atomic_write(folder / CONFIG, config.encode())
    # The weights are written last: they record the hashes of the other two files.
    write_tensors(folder / MODEL, state or model.state_dict(), hashes_beside(folder, tokenizer))


def check_replaceable(folder: Path) -> None:
    """Refuses to save a model in place of a file, or over the files of another program's model."""
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file, but a model is saved as a folder: give another name")
    config = folder / CONFIG
    if config.is_file():
        try:
            ours = read_json_object(config).get("format") == FORMAT
        except ValueError:
            ours = False
        if not ours:
            raise FolderError(
                f"{config} is not of a {FORMAT} model, and would be replaced: give another folder, or remove it first"
            )


def save_tokenizer(path: Path, tokenizer: Tokenizer) -> None:
    """Leaves a file alone that is that tokenizer's already."""
    if not path.is_file() or path.read_bytes() != tokenizer.definition.encode():
        tokenizer.save(path)


def hashes_beside(folder: Path, tokenizer: Tokenizer) -> dict[str, str]:
    """What a model's weights record of the files beside them."""
    return {
        "config": sha256_of_file(folder / CONFIG),
        "tokenizer_file": sha256_of_file(folder / TOKENIZER),
        "tokenizer": tokenizer.hash,
    }


def check_beside(folder: Path, config: str, metadata: Mapping[str, str], *, verify: bool) -> Tokenizer:
    """The folder's tokenizer; refused unless it and the text of config.json are those that the weights record.

    Weights of vlhmm 0.1 record less; all that they record is compared.
    """
    recorded = metadata.get("config")
    if recorded is not None and recorded != hashlib.sha256(config.encode()).hexdigest():
        raise FolderError(
            f"{folder / MODEL} belongs to another {CONFIG} than the one beside it, {folder / CONFIG}: restore both from one save"
        )
    file = folder / TOKENIZER
    recorded = metadata.get("tokenizer_file")
    # The hash is compared before parsing: the parser fails on a damaged vocabulary in several ways.
    if verify and recorded is not None and recorded != sha256_of_file(file):
        raise FolderError(
            f"{file} is damaged or of another model: it does not have the SHA-256 that {folder / MODEL} records; restore it"
        )
    tokenizer = Tokenizer.load(file)
    recorded = metadata.get("tokenizer")
    if recorded is not None and recorded != tokenizer.hash:
        raise FolderError(
            f"{file} is tokenizer {tokenizer.hash[:12]}, but {folder / MODEL} was saved with {recorded[:12]}: restore that one"
        )
    return tokenizer


def check_version(path: Path, values: Mapping[str, Any], weights: TensorHeader | None = None) -> None:
    """Refuses the config of a folder that a later vlhmm has written, and `weights` of an earlier version than their config."""
    version = values.get("version", 1)
    if type(version) is not int or version < 1:
        raise FolderError(
            f"{path} has version = {_short(version)}, but an integer from 1 to {VERSION} is needed: it was edited"
        )
    if version > VERSION:
        raise FolderError(
            f"{path} is of version {_short(version)}, but this vlhmm reads versions up to {VERSION}: update vlhmm to load it"
        )
    if version > 1 and weights is not None and weights.metadata["version"] == UNCHECKED_VERSION:
        raise FolderError(
            f"{path.parent / MODEL} is of version 1, but {path} is of version {version}: restore both from one save"
        )


def load_model(folder: str | Path, device: torch.device | str = "cpu", *, verify: bool | None = None) -> ModelFolder:
    """The model of a folder, refused with a reason if any of it is missing, damaged or of another kind.

    `verify` compares all files with their checksums; None: unless `VLHMM_VERIFY` is 0. Sizes are compared with the file's
    tensors and with the memory in any case, before anything is built.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise FolderError(f"{folder} is no folder: give one that `vlhmm train` or `lm.save` has written")
    for name in (CONFIG, MODEL, TOKENIZER):
        if not (folder / name).is_file():
            raise FolderError(
                f"{folder} has no {name}: it is no model folder, or its first checkpoint was never written"
            )
    verify = verify_wanted(verify)
    try:
        text = read_text(folder / CONFIG)
        values = _read_config(folder / CONFIG, text)
        header = read_tensor_header(folder / MODEL)
        check_version(folder / CONFIG, values, header)
        if "config" not in header.metadata:
            raise FolderError(f"{folder / MODEL} names no {CONFIG}: it is no model's, or was edited")
        tokenizer = check_beside(folder, text, header.metadata, verify=verify)
        settings = _settings(folder / CONFIG, values)
        shape = values["support"]
        if tokenizer.vocab_size != shape["num_words"]:
            raise FolderError(
                f"{folder / TOKENIZER} has {tokenizer.vocab_size} tokens, but the model has {shape['num_words']}: it is of another model"
            )
        _check_sizes(folder / MODEL, settings, shape, header)
        require_memory(
            # Memory for two copies: the tensors as read, and those of the model.
            2 * header.num_bytes,
            f"the model in {folder}",
            "free some, or load it on a machine with more memory",
            torch.device("cpu"),
        )
        tensors, _ = read_tensors(folder / MODEL, verify=verify)
        model = _empty_model(folder / MODEL, settings, shape, values["reset_token"], tensors)
        require_tensors(folder / MODEL, header, model.state_dict())
        _check_numbers(folder / MODEL, tensors)
    except FolderError:
        raise
    except ValueError as error:
        raise FolderError(str(error)) from None
    # Buffers derived from the support are rebuilt when the state is loaded. Tensors are cloned, because those read are memory-mapped from
    # the file; `assign=True`, because `empty_like` of a tensor on "meta" makes torch import sympy. Weights stored in bf16 are computed
    # with in the model's own type.
    dtypes = {name: needed.dtype for name, needed in model.state_dict().items()}
    model.load_state_dict({name: tensor.to(dtypes[name], copy=True) for name, tensor in tensors.items()}, assign=True)
    return ModelFolder(model.to(device), tokenizer, values)


def _read_config(path: Path, text: str) -> dict[str, Any]:
    values = parse_json(text, str(path))
    if not isinstance(values, dict) or values.get("format") != FORMAT:
        raise FolderError(f"{path} does not say it is a {FORMAT} model: it is the folder of another program")
    check_version(path, values)
    missing = {"model", "support", "reset_token"} - values.keys()
    if missing:
        raise FolderError(f"{path} lacks {', '.join(sorted(missing))}: it was edited or cut short")
    values.setdefault("about", {})
    for name in ("model", "support", "about"):
        if not isinstance(values[name], dict):
            raise FolderError(f"{path} has {name} = {_short(values[name])}, but an object is needed: it was edited")
    shape = values["support"]
    for name in ("num_words", "num_states", "num_groups", "states_per_word"):
        if type(shape.get(name)) is not int or shape[name] < 1:
            raise FolderError(
                f"{path} has support.{name} = {_short(shape.get(name))}, but an integer of at least 1 is needed: it was edited"
            )
    if type(shape.get("partition")) is not bool:
        raise FolderError(
            f"{path} has support.partition = {_short(shape.get('partition'))}, but true or false is needed: it was edited"
        )
    reset = values["reset_token"]
    if reset is not None and type(reset) is not int:
        raise FolderError(
            f"{path} has reset_token = {_short(reset)}, but a token's id or null is needed: it was edited"
        )
    return values


def _short(value: Any) -> str:
    return one_line(repr(value), 80)


def _settings(path: Path, values: dict[str, Any]) -> ModelSettings:
    try:
        return ModelSettings.from_dict(values["model"])
    # OverflowError: an integer that no float can hold.
    except (ValueError, TypeError, OverflowError) as error:
        raise FolderError(f"{path}: {one_line(error, 400)}; it was edited or is of another version") from None


def _check_sizes(path: Path, settings: ModelSettings, shape: Mapping[str, Any], found: TensorHeader) -> None:
    """Refuses sizes that the file's tensors cannot have, before modules or index tables of that size are made.

    These are bounds; `require_tensors` compares each shape once the model is made, without memory of its own.
    """
    needed = {
        "group_of_word": (shape["num_words"],),
        "states_of_group": (shape["num_groups"], shape["states_per_word"]),
    }
    for name, expected in needed.items():
        if found.shapes.get(name) != expected or found.dtypes[name] != torch.int64:
            told = f"{found.shapes[name]} in {found.dtypes[name]}" if name in found.shapes else "missing"
            raise FolderError(
                f"{path} does not fit its {CONFIG}: {name} is {told}, {expected} in torch.int64 is needed; restore both from one save"
            )
    # Each state has a number of its own at least, an embedding or a logit, and each layer has tensors.
    sizes = {"support.num_states": (shape["num_states"], found.num_elements)}
    if settings.parameterization != "scalar":
        # Factored embeddings are two halves.
        sizes["dim"] = settings.dim, 2 * found.num_elements
    if settings.parameterization == "transformer":
        sizes["decoder_layers"] = settings.decoder_layers, len(found.shapes)
        sizes["decoder_hidden"] = settings.gated_dim, found.num_elements
    for name, (size, limit) in sizes.items():
        if size > limit:
            raise FolderError(
                f"{path} does not fit its {CONFIG}: {name} is {_short(size)}, but {len(found.shapes)} tensors of "
                f"{found.num_elements:,} numbers allow at most {limit:,}; restore both from one save"
            )


def _empty_model(
    path: Path, settings: ModelSettings, shape: Mapping[str, Any], reset_token: int | None, tensors: dict[str, Tensor]
) -> Model:
    """The model with its support, and parameters that have shapes but no memory yet."""
    support = Support(tensors["group_of_word"], tensors["states_of_group"], shape["num_states"], shape["partition"])
    try:
        check_support(support)
        with torch.device("meta"):
            return Model(settings, support, reset_token)
    # RuntimeError: a shape of more numbers than torch can count.
    except (ValueError, RuntimeError) as error:
        raise FolderError(f"{path} does not fit its {CONFIG}: {one_line(error, 400)}") from None


def _check_numbers(path: Path, tensors: Mapping[str, Tensor]) -> None:
    """Free logits may be -inf; anything else that is no number breaks every answer."""
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool((tensor < torch.inf).all()):
            raise FolderError(f"{path} is damaged: {name} has NaN or +inf; restore it")
