"""`AutoTokenizer` of transformers reads our model folders and gives our ids, on real text and on ugly text."""

import lzma
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
import torch
from transformers import AutoTokenizer

import vlhmm
from vlhmm.data import word_tokenizer
from vlhmm.data.sentencepiece import convert_sentencepiece
from vlhmm.data.tokenizer_files import load_tokenizer

UGLY = [
    "",
    " ",
    "  two  spaces ",
    "a<eos>b <eos> the <unk> <unk>",
    "the </s> end</s>of it<s> <|endoftext|> <|endoftext|>x",
    "don't , do n't ? ! .",
    "naïve Ａ１ 中文 🙂 e\u0301 \u200b\ufeff",
    "line\nbreak\ttab\r\n",
    "Hello , world ! [UNK] ##ing",
]


def saved(tokenizer: vlhmm.Tokenizer, folder: Path) -> Path:
    size = tokenizer.vocab_size
    hmm = vlhmm.HMM.from_probabilities([1.0], [[1.0]], torch.full((1, size), 1 / size, dtype=torch.float64))
    vlhmm.LanguageModel.from_hmm(hmm, tokenizer).save(folder)
    return folder


def assert_same_ids(tokenizer: vlhmm.Tokenizer, folder: Path, texts: list[str]) -> None:
    theirs = AutoTokenizer.from_pretrained(saved(tokenizer, folder))
    found = theirs([*texts, *UGLY], add_special_tokens=False)["input_ids"]
    for text, ids, expected in zip([*texts, *UGLY], found, tokenizer.encode_batch([*texts, *UGLY]), strict=True):
        assert ids == expected, text
    assert len(theirs) == tokenizer.vocab_size
    assert theirs.eos_token_id == tokenizer.eos_id
    assert theirs.unk_token_id == tokenizer.unk_id
    assert theirs.convert_ids_to_tokens(list(range(min(1000, tokenizer.vocab_size)))) == tokenizer.tokens()[:1000]
    # Saved by transformers it is still the same tokenizer to us.
    theirs.save_pretrained(folder / "again")
    again = load_tokenizer(folder / "again")
    assert again.encode_batch(texts) == tokenizer.encode_batch(texts)
    assert again.eos_id == tokenizer.eos_id


@pytest.mark.parametrize("unk", [True, False])
def test_words(sentences: list[str], tmp_path: Path, unk: bool) -> None:
    words = {word for text in [*sentences[:500], *([] if unk else UGLY)] for word in text.split()}
    tokenizer = word_tokenizer(words, unk=unk)
    assert_same_ids(tokenizer, tmp_path, sentences[: 800 if unk else 500])


@pytest.mark.parametrize("eos", ["<|endoftext|>", None])
def test_byte_level_bpe(sentences: list[str], tmp_path: Path, eos: str | None) -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.BPE())
    backend.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    special = [] if eos is None else [eos]
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=special, show_progress=False
    )
    backend.train_from_iterator(sentences[:500], trainer)
    assert_same_ids(vlhmm.Tokenizer.from_backend(backend, eos), tmp_path, sentences[:800])


@pytest.mark.parametrize("model_type", ["bpe", "unigram"])
def test_converted_sentencepiece(
    sentences: list[str], train_sentencepiece: Callable[..., bytes], tmp_path: Path, model_type: str
) -> None:
    model = train_sentencepiece(model_type=model_type, byte_fallback=True, vocab_size=700)
    assert_same_ids(convert_sentencepiece(model, name="a.model"), tmp_path, sentences[:800])


@pytest.mark.data
def test_the_tokenizer_of_llama_2_on_english(tmp_path: Path) -> None:
    data = Path(os.environ["VLHMM_DATA"])
    with lzma.open(data / "english" / "test.txt.xz", "rt", encoding="utf-8") as file:
        text = file.read(300_000)
    lines = [line for line in text.splitlines() if line]
    assert_same_ids(load_tokenizer(data / "tokenizers" / "llama2_tokenizer.model"), tmp_path, lines)


def test_the_files_say_no_more_than_the_tokenizer_does(tmp_path: Path) -> None:
    """They follow from tokenizer.json, so that loading needs neither of them."""
    folder = saved(word_tokenizer(["the", "cat"]), tmp_path)
    expected = vlhmm.load(folder).score("the cat")
    for name in ("tokenizer_config.json", "special_tokens_map.json"):
        (folder / name).unlink()
    lm = vlhmm.load(folder)
    assert lm.score("the cat") == expected
    lm.save(folder)
    assert (folder / "tokenizer_config.json").is_file()
