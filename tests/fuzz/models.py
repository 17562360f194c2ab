"""Model folders: refused, or exactly the answers of the undamaged one.

Where nothing is verified, damage to numbers may go unnoticed; but then too nothing crashes, and no probability is above one.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

import vlhmm
from tests.fuzz.clear import refused_or
from tests.fuzz.mutate import damaged_bytes, damaged_json, dumped
from vlhmm.cluster import brown_clusters, one_block
from vlhmm.data import Tokens, word_tokenizer
from vlhmm.distillation.decoder import Decoder, DecoderSettings, load_decoder, save_decoder
from vlhmm.models import build_blocked, linear_hmm, neural_hmm, scalar_hmm
from vlhmm.models.settings import ModelSettings

CONFIG, MODEL, TOKENIZER = "config.json", "model.safetensors", "tokenizer.json"
TEXT = "the cat sees the dog in the garden"
Answer = tuple[float, ...]


@dataclass(frozen=True)
class Material:
    folder: Path
    answer: Answer
    decoder: bool = False


def prepare(folder: Path) -> list[Material]:
    torch.set_num_threads(1)
    words = [*TEXT.split(), "a", "bird", "hears", "fish", "on", "hill"]
    tokenizer = word_tokenizer(words)
    ids = [
        [*tokenizer.encode(TEXT), tokenizer.eos_id or 0],
        [*tokenizer.encode("a bird hears fish on the hill"), 0],
    ] * 3
    blocks = brown_clusters(
        Tokens.from_documents(ids, tokenizer.vocab_size), 4, eos_id=tokenizer.eos_id, vocab_size=tokenizer.vocab_size
    )
    one, eos = one_block(tokenizer.vocab_size), tokenizer.eos_id
    models = {
        "neural": neural_hmm(blocks, 3, 8, eos_id=eos),
        "linear": linear_hmm(blocks, 3, 8, transition="block-factored", eos_id=eos),
        "scalar": scalar_hmm(one, 5, eos_id=eos, reset="eos", init_scale=1.0),
        "transformer": build_blocked(
            ModelSettings(parameterization="transformer", states_per_block=6, dim=8, decoder_layers=1, decoder_heads=2),
            one,
        ),
    }
    made = []
    for name, model in models.items():
        vlhmm.LanguageModel(model, tokenizer, {"corpus": {"name": "made up"}}).save(folder / name)
        made.append(Material(folder / name, _lm(folder / name, True)()))
    decoder = Decoder(DecoderSettings(dim=8, layers=1, heads=2), tokenizer.vocab_size)
    save_decoder(folder / "decoder", decoder, tokenizer)
    made.append(Material(folder / "decoder", _decoder(folder / "decoder", True)(), decoder=True))
    return made


def run(material: list[Material], seed: int, scratch: Path) -> str:
    draw = random.Random(seed)
    chosen = draw.choice(material)
    folder = scratch / "damaged"
    shutil.copytree(chosen.folder, folder)
    name = draw.choice((CONFIG, MODEL, MODEL, TOKENIZER))
    path = folder / name
    verified = draw.random() < 0.5
    if not verified and draw.random() < 0.7:
        _forget_checksums(folder)
    content = path.read_bytes()
    if draw.random() < 0.5:
        path.write_bytes(damaged_bytes(content, draw))
    elif name == MODEL:
        path.write_bytes((_damaged_header if draw.random() < 0.5 else _flipped_numbers)(content, draw))
    else:
        path.write_bytes(dumped(damaged_json(json.loads(content), draw)))
        if name == CONFIG and not verified:
            _name_config(folder)
    ask = refused_or(lambda: (_decoder if chosen.decoder else _lm)(folder, verified), folder)
    if ask is None:
        return "refused"
    try:
        answer = ask()
    except ValueError as error:
        # A vocabulary that was read, but has no longer a token for every word of the text.
        if verified or "cannot be encoded" not in str(error):
            raise
        return "loaded, text refused"
    if answer == chosen.answer:
        return "same answer"
    assert not verified, f"{chosen.folder.name}/{name} was damaged, loads, and answers {answer}, not {chosen.answer}"
    if not chosen.decoder:
        assert answer[0] <= 1e-3, f"log p is {answer[0]} after damage to {chosen.folder.name}/{name}"
        assert abs(sum(answer[1:]) - 1) < 1e-3, f"p(next) sums to {sum(answer[1:])} after damage to {name}"
    return "unverified, another answer"


def _lm(folder: Path, verify: bool) -> Callable[[], Answer]:
    """Asks a model for log p(text), then p(next token)."""
    lm = vlhmm.load(folder, verify=verify)

    def answer() -> Answer:
        next_probs = lm.hmm.next_token_probs(lm.hmm.filter([lm.tokenizer.encode(TEXT)]).belief)[0]
        return (lm.score(TEXT).log_prob, *next_probs.tolist())

    return answer


def _decoder(folder: Path, verify: bool) -> Callable[[], Answer]:
    decoder, tokenizer = load_decoder(folder, verify=verify)

    def answer() -> Answer:
        with torch.no_grad():
            return tuple(decoder(torch.tensor([tokenizer.encode(TEXT)])).flatten()[:50].tolist())

    return answer


def _forget_checksums(folder: Path) -> None:
    """As the first edition wrote it."""
    (folder / CONFIG).write_bytes(dumped({**json.loads((folder / CONFIG).read_bytes()), "version": 1}))
    config = hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest()
    save_file(load_file(folder / MODEL), folder / MODEL, {"format": "vlhmm", "version": "1", "config": config})


def _name_config(folder: Path) -> None:
    """Makes weights of the first edition name the config that lies beside them."""
    content = (folder / MODEL).read_bytes()
    header, data = _parted(content)
    header["__metadata__"]["config"] = hashlib.sha256((folder / CONFIG).read_bytes()).hexdigest()
    (folder / MODEL).write_bytes(_joined(header, data))


def _flipped_numbers(content: bytes, draw: random.Random) -> bytes:
    """Bits of numbers: what lies in a file of weights but its header."""
    header, data = _parted(content)
    changed = bytearray(data)
    for _ in range(draw.choice((1, 1, 3))):
        if draw.random() < 0.3:
            # Support first: few numbers, and all of them index something.
            name = draw.choice(
                [name for name in ("group_of_word", "states_of_group") if name in header] or list(header)
            )
            begin, end = header[name].get("data_offsets", (0, len(data)))
        else:
            begin, end = 0, len(data)
        changed[draw.randrange(begin, end)] ^= 1 << draw.randrange(8)
    return _joined(header, bytes(changed))


def _damaged_header(content: bytes, draw: random.Random) -> bytes:
    header, data = _parted(content)
    if draw.random() < 0.3:
        names = [name for name in header if name != "__metadata__"]
        first, second = draw.sample(names, 2)
        header[first], header[second] = header[second], header[first]
        return _joined(header, data)
    return _joined(damaged_json(header, draw), data)


def _parted(content: bytes) -> tuple[Any, bytes]:
    (size,) = struct.unpack_from("<Q", content)
    return json.loads(content[8 : 8 + size]), content[8 + size :]


def _joined(header: Any, data: bytes) -> bytes:
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data
