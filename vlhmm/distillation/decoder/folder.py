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
from vlhmm.distillation.decoder.model import Decoder
from vlhmm.distillation.decoder.settings import DecoderSettings
from vlhmm.settings import settings_from
from vlhmm.training.checkpoint import CONFIG, MODEL, TOKENIZER, FolderError, read_tensors, write_tensors

FORMAT = "vlhmm-decoder"


def save_decoder(folder: str | Path, decoder: Decoder, tokenizer: Tokenizer) -> None:
    """Writes config.json, tokenizer.json and, last, model.safetensors."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "format": FORMAT,
        "version": 1,
        "decoder": asdict(decoder.settings),
        "num_words": decoder.num_words,
        "begin_id": decoder.begin_id,
        "name": decoder.name,
    }
    tokenizer.save(folder / TOKENIZER)
    atomic_write(folder / CONFIG, (json.dumps(config, indent=2) + "\n").encode())
    write_tensors(folder / MODEL, weights_of(decoder), {})


def is_decoder_folder(folder: Path) -> bool:
    config = folder / CONFIG
    if not config.is_file():
        return False
    try:
        values: Any = json.loads(config.read_text(encoding="utf-8"))
    except ValueError:
        return False
    return isinstance(values, dict) and values.get("format") == FORMAT


def load_decoder(folder: str | Path, device: torch.device | str = "cpu") -> tuple[Decoder, Tokenizer]:
    """What `save_decoder` wrote, in evaluation mode."""
    folder = Path(folder)
    if not is_decoder_folder(folder):
        raise FolderError(f"{folder} holds no decoder: give a folder that `save_decoder` has written")
    values = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
    if values.get("version") != 1:
        raise FolderError(f"{folder / CONFIG} is of version {values.get('version')}, this vlhmm reads version 1")
    decoder = Decoder(
        settings_from(DecoderSettings, values["decoder"]), values["num_words"], values["begin_id"], name=values["name"]
    )
    tensors, _ = read_tensors(folder / MODEL)
    try:
        load_weights(decoder, tensors)
    except RuntimeError as error:
        raise FolderError(f"{folder / MODEL} does not fit {CONFIG}: {error}") from None
    return decoder.to(device).requires_grad_(False).eval(), Tokenizer.load(folder / TOKENIZER)


def weights_of(decoder: Decoder) -> dict[str, Tensor]:
    """Each parameter once, though the output layer may be the embedding."""
    return {name: value.detach() for name, value in decoder.named_parameters()}


def load_weights(decoder: Decoder, tensors: dict[str, Tensor]) -> None:
    if decoder.settings.tied and "model.embed_tokens.weight" in tensors:
        tensors = {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"]}
    decoder.load_state_dict(tensors)
