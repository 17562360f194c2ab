"""A decoder's folder: config.json, tokenizer.json and model.safetensors."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vlhmm.data import Tokenizer
from vlhmm.data.atomic import atomic_write
from vlhmm.data.checksums import verify_wanted
from vlhmm.data.json_file import one_line, parse_json, read_json_object, read_text
from vlhmm.distillation.decoder.model import Decoder
from vlhmm.distillation.decoder.settings import DecoderSettings
from vlhmm.settings import settings_from
from vlhmm.tensor_file import (
    FolderError,
    TensorHeader,
    read_tensor_header,
    read_tensors,
    require_tensors,
    write_tensors,
)
from vlhmm.training.checkpoint import (
    CONFIG,
    MODEL,
    TOKENIZER,
    VERSION,
    check_beside,
    check_version,
    hashes_beside,
    save_tokenizer,
)

FORMAT = "vlhmm-decoder"


def save_decoder(folder: str | Path, decoder: Decoder, tokenizer: Tokenizer) -> None:
    """Writes config.json, tokenizer.json and, last, model.safetensors, which records what the other two are."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "format": FORMAT,
        "version": VERSION,
        "decoder": asdict(decoder.settings),
        "num_words": decoder.num_words,
        "begin_id": decoder.begin_id,
        "name": decoder.name,
    }
    save_tokenizer(folder / TOKENIZER, tokenizer)
    atomic_write(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    write_tensors(folder / MODEL, weights_of(decoder), hashes_beside(folder, tokenizer))


def is_decoder_folder(folder: Path) -> bool:
    config = folder / CONFIG
    if not config.is_file():
        return False
    try:
        return read_json_object(config).get("format") == FORMAT
    except ValueError:
        return False


def load_decoder(
    folder: str | Path, device: torch.device | str = "cpu", *, verify: bool | None = None
) -> tuple[Decoder, Tokenizer]:
    """What `save_decoder` wrote, in evaluation mode. `verify` is that of `load_model`."""
    folder = Path(folder)
    if not is_decoder_folder(folder):
        raise FolderError(f"{folder} holds no decoder: give a folder that `save_decoder` has written")
    for name in (MODEL, TOKENIZER):
        if not (folder / name).is_file():
            raise FolderError(f"{folder} has no {name}: it is not whole; restore it")
    verify = verify_wanted(verify)
    text = read_text(folder / CONFIG)
    values = parse_json(text, str(folder / CONFIG))
    # Checked before the weights are read: a later version may store them in another layout.
    check_version(folder / CONFIG, values)
    header = read_tensor_header(folder / MODEL)
    check_version(folder / CONFIG, values, header)
    tokenizer = check_beside(folder, text, header.metadata, verify=verify)
    empty = _empty_decoder(folder, values, header)
    require_tensors(folder / MODEL, header, weights_of(empty))
    if tokenizer.vocab_size != empty.num_words:
        raise FolderError(
            f"{folder / TOKENIZER} has {tokenizer.vocab_size} tokens, but the decoder has {empty.num_words}: it is of another one"
        )
    tensors, _ = read_tensors(folder / MODEL, verify=verify)
    # Built again with memory: `to_empty` on the meta model would untie the output layer from the embedding.
    decoder = Decoder(empty.settings, empty.num_words, empty.begin_id, name=empty.name)
    load_weights(decoder, tensors)
    return decoder.to(device).requires_grad_(False).eval(), tokenizer


def _empty_decoder(folder: Path, values: dict[str, Any], found: TensorHeader) -> Decoder:
    """The decoder of a config, with parameters that have shapes but no memory yet; absurd sizes are refused first."""
    path = folder / CONFIG
    try:
        settings = settings_from(DecoderSettings, values["decoder"])
        num_words, begin_id, name = values["num_words"], values["begin_id"], values["name"]
        if type(num_words) is not int or type(begin_id) is not int or type(name) is not str:
            raise ValueError(f"num_words {num_words!r}, begin_id {begin_id!r} and name {name!r} are of another type")
        sizes = {
            "layers": (settings.layers, len(found.shapes)),
            "dim": (settings.dim, found.num_elements),
            "hidden": (settings.shape.gated_dim, found.num_elements),
            "num_words": (num_words, found.num_elements),
        }
        for size_name, (size, limit) in sizes.items():
            if size > limit:
                raise ValueError(f"{size_name} is {size}, but the tensors of {MODEL} allow at most {limit}")
        with torch.device("meta"):
            return Decoder(settings, num_words, begin_id, name=name)
    except (ValueError, TypeError, AttributeError, KeyError, OverflowError, RuntimeError) as error:
        raise FolderError(f"{path} cannot be used ({one_line(error, 400)}): it was edited or cut short") from None


def weights_of(decoder: Decoder) -> dict[str, Tensor]:
    """Each parameter once, also with tied output layer and embedding."""
    return {name: value.detach() for name, value in decoder.named_parameters()}


def load_weights(decoder: Decoder, tensors: dict[str, Tensor]) -> None:
    if decoder.settings.tied and "model.embed_tokens.weight" in tensors:
        tensors = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    decoder.load_state_dict(tensors)
