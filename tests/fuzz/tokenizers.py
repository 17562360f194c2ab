"""Tokenizers of every kind: refused, or one that encodes and decodes. They carry no checksum of their own."""

from __future__ import annotations

import base64
import io
import json
import random
from pathlib import Path

from tests.fuzz.clear import refused_or
from tests.fuzz.mutate import damaged_bytes, damaged_json, dumped
from vlhmm.data import Tokenizer, load_tokenizer, word_tokenizer

LINES = ["the cat sees the dog in the garden", "a bird hears fish on the hill", "Å é 中 1234 <unk> </s>"]


def prepare(folder: Path) -> dict[str, bytes]:
    import sentencepiece
    from tokenizers import Tokenizer as Backend
    from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

    byte_level = Backend(models.BPE())
    byte_level.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    byte_level.decoder = decoders.ByteLevel()
    byte_level.train_from_iterator(
        LINES, trainers.BpeTrainer(vocab_size=280, special_tokens=["</s>"], show_progress=False)
    )
    unigram = Backend(models.Unigram())
    unigram.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("  ", " ")])
    unigram.pre_tokenizer, unigram.decoder = pre_tokenizers.Metaspace(), decoders.Metaspace()
    unigram.train_from_iterator(
        LINES,
        trainers.UnigramTrainer(
            vocab_size=60, special_tokens=["<unk>", "</s>"], unk_token="<unk>", show_progress=False
        ),
    )
    pieces = Backend(models.WordPiece(unk_token="[UNK]"))
    pieces.normalizer, pieces.pre_tokenizer = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
    pieces.decoder = decoders.WordPiece()
    special = ["[UNK]", "[CLS]", "[SEP]"]
    pieces.train_from_iterator(
        LINES, trainers.WordPieceTrainer(vocab_size=80, special_tokens=special, show_progress=False)
    )
    pieces.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    backends = {"byte_level": byte_level, "unigram": unigram, "pieces": pieces}
    made = {f"{name}.json": backend.to_str().encode() for name, backend in backends.items()}
    made["words.json"] = word_tokenizer(" ".join(LINES).split()).definition.encode()
    for kind in ("bpe", "unigram"):
        model = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(LINES * 20),
            model_writer=model,
            vocab_size=50,
            model_type=kind,
            hard_vocab_limit=False,
            minloglevel=2,
            num_threads=1,
        )
        made[f"{kind}.model"] = model.getvalue()
    # With the table of characters that a conversion brings along.
    (folder / "bpe.model").write_bytes(made["bpe.model"])
    made["converted.json"] = load_tokenizer(folder / "bpe.model").definition.encode()
    return made


def run(material: dict[str, bytes], seed: int, scratch: Path) -> str:
    draw = random.Random(seed)
    name, content = draw.choice(sorted(material.items()))
    path = scratch / name
    if name.endswith(".json") and draw.random() < 0.7:
        path.write_bytes(dumped(_damaged_table(content, draw) or damaged_json(json.loads(content), draw)))
    else:
        path.write_bytes(damaged_bytes(content, draw))
    tokenizer = refused_or(lambda: load_tokenizer(path), path)
    if tokenizer is None:
        return "refused"
    text = draw.choice(LINES) + chr(draw.choice((0, 32, 0x301, 0x4E2D, 0x1F600)))
    told = ""
    try:
        ids = tokenizer.encode(text)
        assert all(0 <= token < tokenizer.vocab_size for token in ids), (
            f"ids {ids} of a vocabulary of {tokenizer.vocab_size}"
        )
        tokenizer.decode(range(min(30, tokenizer.vocab_size)))
        assert len(tokenizer.tokens()) == tokenizer.vocab_size
    except ValueError as error:
        told = str(error)
    if told:
        assert "cannot be encoded" in told or "cannot be decoded" in told, f"an unclear error: {told}"
        return "loaded, text refused"
    if name.endswith(".json") and tokenizer.hash == Tokenizer(content.decode()).hash:
        assert ids == Tokenizer(content.decode()).encode(text), "the same tokenizer by its hash, but other ids"
        return "same answer"
    return "loaded"


def _damaged_table(content: bytes, draw: random.Random) -> object | None:
    """The table of characters changed within its base64; None where there is none, or nothing is to be done to it."""
    values = json.loads(content)
    normalizer = values.get("normalizer") or {}
    for step in (normalizer, *normalizer.get("normalizers", ())):
        if step.get("type") == "Precompiled" and draw.random() < 0.5:
            table = base64.b64decode(step["precompiled_charsmap"])
            step["precompiled_charsmap"] = base64.b64encode(damaged_bytes(table, draw)).decode()
            return values
    return None
