import lzma
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from vlhmm.data import load_tokenizer
from vlhmm.data.encode import LineEncoder, words_are_independent
from vlhmm.data.sentencepiece import convert_sentencepiece

LLAMA_LIKE = {"normalization_rule_name": "identity", "remove_extra_whitespaces": False, "byte_fallback": True}
SETTINGS = {
    "like Llama 2": LLAMA_LIKE,
    "no byte fallback": {"normalization_rule_name": "identity", "remove_extra_whitespaces": False},
    "normalised": {"byte_fallback": True},
    "normalised, folded": {"normalization_rule_name": "nfkc_cf"},
    "no prefix": {"add_dummy_prefix": False},
    "pieces over several words": {"split_by_whitespace": False},
    "symbols": {"user_defined_symbols": ["<sep>", "ing"], **LLAMA_LIKE},
    "unigram": {"model_type": "unigram"},
    "unigram with bytes and symbols": {
        "model_type": "unigram",
        "byte_fallback": True,
        "user_defined_symbols": ["<sep>"],
    },
}
PARTS = [
    " ",
    "  ",
    "a",
    "the",
    "ing",
    "É",
    "ﬁ",
    "中",
    "🙂",
    "\t",
    "\xa0",
    "\u200b",
    "▁",
    "<sep>",
    "banana",
    "...",
    "--",
]


@pytest.mark.parametrize("settings", SETTINGS.values(), ids=SETTINGS)
def test_ids_are_those_of_sentencepiece(
    train_sentencepiece: Callable[..., bytes], sentences: list[str], settings: dict[str, object]
) -> None:
    model = train_sentencepiece(**settings)
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    converted = convert_sentencepiece(model)
    draw = random.Random(0)
    noise = ["".join(draw.choices(PARTS, k=draw.randrange(12))) for _ in range(1000)]
    texts = [*sentences[1500:2500], *noise]
    for text, ids, expected in zip(texts, converted.encode_batch(texts), original.encode(texts), strict=True):
        assert ids == expected, text
    assert converted.tokens() == [original.id_to_piece(i) for i in range(original.vocab_size())]
    assert (converted.eos_id, converted.unk_id) == (original.eos_id(), original.unk_id())


def test_decoding_gives_the_text_back(train_sentencepiece: Callable[..., bytes], sentences: list[str]) -> None:
    tokenizer = convert_sentencepiece(train_sentencepiece(**LLAMA_LIKE))
    for text in [*sentences[:100], " two  spaces ", "中\t🙂"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_control_symbols_typed_in_text_are_text(train_sentencepiece: Callable[..., bytes]) -> None:
    model = train_sentencepiece(**LLAMA_LIKE)
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    for text in ("</s>", "a</s> b", "<unk>", "<0x41>"):
        assert convert_sentencepiece(model).encode(text) == original.encode(text)


def test_merges_go_by_score_not_by_id(train_sentencepiece: Callable[..., bytes], sentences: list[str]) -> None:
    """Scores that fall by id hide a wrong order of merges: here every id stays and the scores turn around."""
    from sentencepiece import sentencepiece_model_pb2

    proto = sentencepiece_model_pb2.ModelProto.FromString(train_sentencepiece(**LLAMA_LIKE))
    for piece in proto.pieces:
        if piece.type == 1:
            piece.score = -1000 - piece.score
    model = proto.SerializeToString()
    original = sentencepiece.SentencePieceProcessor(model_proto=model)
    converted = convert_sentencepiece(model)
    assert converted.encode_batch(sentences[:500]) == original.encode(sentences[:500])


def test_words_are_found_independent_only_where_they_are(train_sentencepiece: Callable[..., bytes]) -> None:
    assert words_are_independent(convert_sentencepiece(train_sentencepiece(**LLAMA_LIKE)))
    for settings in ({**LLAMA_LIKE, "split_by_whitespace": False}, {}, {**LLAMA_LIKE, "user_defined_symbols": ["ab"]}):
        assert not words_are_independent(convert_sentencepiece(train_sentencepiece(**settings)))


@pytest.mark.parametrize("settings", [{"model_type": "char"}, {"treat_whitespace_as_suffix": True}])
def test_what_cannot_be_converted_is_refused(
    train_sentencepiece: Callable[..., bytes], settings: dict[str, object]
) -> None:
    with pytest.raises(ValueError, match=r"no tokenizer\.json can express"):
        convert_sentencepiece(train_sentencepiece(vocab_size=60, hard_vocab_limit=False, **settings))


def test_truncated_and_foreign_files_are_refused(train_sentencepiece: Callable[..., bytes], tmp_path: Path) -> None:
    model = train_sentencepiece(**LLAMA_LIKE)
    for content in (model[: len(model) // 3], b"", b"plain text, no model", b"\xff" * 50):
        (tmp_path / "bad.model").write_bytes(content)
        with pytest.raises(ValueError, match=r"bad\.model is no SentencePiece model"):
            load_tokenizer(tmp_path / "bad.model")


@given(st.binary(max_size=60))
def test_any_bytes_give_a_model_or_a_clear_error(data: bytes) -> None:
    with pytest.raises(ValueError, match="SentencePiece model"):
        convert_sentencepiece(data)


@pytest.mark.data
def test_llama_ids_on_all_validation_text_are_those_of_sentencepiece() -> None:
    folder = Path(os.environ["VLHMM_DATA"])
    path = folder / "tokenizers" / "llama2_tokenizer.model"
    lines = lzma.decompress((folder / "english" / "valid.txt.xz").read_bytes()).decode().split("\n")
    expected = sentencepiece.SentencePieceProcessor(model_file=str(path)).encode(lines)
    tokenizer = load_tokenizer(path)
    assert tokenizer.encode_batch(lines) == expected
    assert LineEncoder(tokenizer, "none").encode(lines).ids.tolist() == [i for line in expected for i in line]
    assert (tokenizer.vocab_size, tokenizer.token(tokenizer.eos_id)) == (32_000, "</s>")


@pytest.mark.data
def test_llama_ids_on_runs_and_odd_text_are_those_of_sentencepiece() -> None:
    path = Path(os.environ["VLHMM_DATA"]) / "tokenizers" / "llama2_tokenizer.model"
    original = sentencepiece.SentencePieceProcessor(model_file=str(path))
    tokenizer = load_tokenizer(path)
    draw = random.Random(0)
    texts = []
    for _ in range(2000):
        run = tokenizer.token(draw.randrange(259, 32_000)).replace("▁", " ")[:3] * draw.randrange(20)
        texts.append("".join(draw.choices([*PARTS, run, " " * draw.randrange(40)], k=draw.randrange(6))))
    for text, ids, expected in zip(texts, tokenizer.encode_batch(texts), original.encode(texts), strict=True):
        assert ids == expected, text
