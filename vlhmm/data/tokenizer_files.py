"""Tokenizers read from files: a `tokenizer.json`, a folder that holds one, or a SentencePiece model."""

import os
from pathlib import Path

from vlhmm.data.json_file import read_json_object
from vlhmm.data.sentencepiece import convert_sentencepiece
from vlhmm.data.tokenizer import Tokenizer
from vlhmm.data.tokenizer_json import MAX_TOKENIZER_BYTES


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Reads a `tokenizer.json`, a folder that holds one, or a SentencePiece `.model` (which is converted).

    In a folder, the `eos_token` of a `tokenizer_config.json` beside it is respected.
    """
    path = Path(path)
    if path.is_dir():
        file = path / "tokenizer.json"
        if not file.is_file():
            raise ValueError(f"{path} has no tokenizer.json; give a folder with one, or the file itself")
        tokenizer = Tokenizer.load(file)
        eos = _configured_eos(path / "tokenizer_config.json")
        return tokenizer if eos is None else Tokenizer.from_backend(tokenizer.backend, eos)
    if not path.is_file():
        raise ValueError(f"no tokenizer at {path}; give a tokenizer.json, a folder with one, or a .model file")
    if path.suffix == ".model":
        if (size := path.stat().st_size) > MAX_TOKENIZER_BYTES:
            raise ValueError(f"{path} has {size:,} bytes, the limit is {MAX_TOKENIZER_BYTES:,}: it is no tokenizer")
        return convert_sentencepiece(path.read_bytes(), name=str(path))
    return Tokenizer.load(path)


def _configured_eos(path: Path) -> str | None:
    if not path.is_file():
        return None
    eos = read_json_object(path, MAX_TOKENIZER_BYTES).get("eos_token")
    name = eos.get("content") if isinstance(eos, dict) else eos
    if name is not None and not isinstance(name, str):
        raise ValueError(f"{path} has eos_token = {str(eos)[:80]}, but a token's name is needed: it was edited")
    return name
