"""What `transformers` reads beside a tokenizer.json: which class reads it, and which tokens are special."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from vlhmm.data.atomic import atomic_write
from vlhmm.data.tokenizer import Tokenizer

TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP = "tokenizer_config.json", "special_tokens_map.json"


def transformers_files(tokenizer: Tokenizer) -> dict[str, str]:
    """The files with which `AutoTokenizer.from_pretrained` gives the ids of `tokenizer`."""
    special = {
        name: tokenizer.token(token)
        for name, token in (("eos_token", tokenizer.eos_id), ("unk_token", tokenizer.unk_id))
        if token is not None
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **special,
        "clean_up_tokenization_spaces": False,
        # A special token that is typed in a text stays text.
        "split_special_tokens": True,
    }
    return {TOKENIZER_CONFIG: _json(config), SPECIAL_TOKENS_MAP: _json(special)}


def save_transformers_files(folder: Path, tokenizer: Tokenizer) -> None:
    """Leaves files alone that are the same already."""
    for name, text in transformers_files(tokenizer).items():
        path = folder / name
        if not path.is_file() or path.read_bytes() != text.encode():
            atomic_write(path, text.encode())


def _json(values: Mapping[str, object]) -> str:
    return json.dumps(values, indent=2, ensure_ascii=False) + "\n"
