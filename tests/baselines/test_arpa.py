"""ARPA files: what is written is read back to the last bit, and other tools write and read the same."""

import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
from tiny import sentences

from vlhmm.baselines import KneserNey
from vlhmm.baselines.arpa import arpa_names
from vlhmm.data import Tokenizer, Tokens, word_tokenizer

FALLBACK = (0.5, 1.0, 1.5)

TEXT = ["the cat sees the dog", "the dog sees the cat", "the cat sleeps", "a dog sees the cat", "", "the dog sleeps"]
# What `lmplz -o 3 --discount_fallback` of kenlm 0.3.0 writes for this text.
LMPLZ = """\\data\\
ngram 1=9
ngram 2=14
ngram 3=16

\\1-grams:
-1.2363046	<unk>	0
0	<s>	-0.38021123
-0.62597215	</s>	0
-0.88785005	the	-0.30103
-1.0280287	cat	-0.30103
-0.88785005	sees	-0.30103
-0.88785005	dog	-0.30103
-0.88785005	sleeps	-0.30103
-1.0280287	a	-0.30103

\\2-grams:
-0.7401204	<s> </s>	0
-0.54520047	cat </s>	0
-0.61385155	dog </s>	0
-0.20879823	sleeps </s>	0
-0.32733876	<s> the	-0.30103
-0.2481575	sees the	-0.30103
-0.52742636	the cat	-0.30103
-0.63563883	cat sees	-0.30103
-0.5020589	dog sees	-0.30103
-0.5020589	the dog	-0.30103
-0.2481575	a dog	-0.30103
-0.63563883	cat sleeps	-0.30103
-0.7218591	dog sleeps	-0.30103
-0.91223335	<s> a	-0.30103

\\3-grams:
-0.40617678	the cat </s>
-0.5401276	the dog </s>
-0.09197001	cat sleeps </s>
-0.09197001	dog sleeps </s>
-0.10659001	cat sees the
-0.10659001	dog sees the
-0.3996398	<s> the cat
-0.31715947	sees the cat
-0.61852497	the cat sees
-0.48941112	the dog sees
-0.18219274	a dog sees
-0.39001516	<s> the dog
-0.48941112	sees the dog
-0.10659001	<s> a dog
-0.61852497	the cat sleeps
-0.582474	the dog sleeps

\\end\\
"""


def fitted(lines: list[str], order: int) -> tuple[KneserNey, Tokenizer]:
    tokenizer = word_tokenizer([word for line in lines for word in line.split()])
    return fit(tokenizer, lines, order), tokenizer


def fit(tokenizer: Tokenizer, lines: list[str], order: int) -> KneserNey:
    assert tokenizer.eos_id is not None
    ids = [[*tokenizer.encode(line), tokenizer.eos_id] for line in lines]
    tokens = Tokens.from_documents(ids, tokenizer.vocab_size)
    return KneserNey.fit(
        tokens, num_words=tokenizer.vocab_size, eos_id=tokenizer.eos_id, order=order, fallback=FALLBACK
    )


def assert_equal(one: KneserNey, other: KneserNey, tolerance: float = 0.0) -> None:
    assert (one.order, one.num_words, one.eos_id) == (other.order, other.num_words, other.eos_id)
    for ours, theirs in zip(one.orders, other.orders, strict=True):
        np.testing.assert_array_equal(ours.keys, theirs.keys)
        np.testing.assert_allclose(ours.log10_prob, theirs.log10_prob, rtol=0, atol=tolerance)
        np.testing.assert_allclose(ours.log10_backoff, theirs.log10_backoff, rtol=0, atol=tolerance)


@pytest.mark.parametrize("order", [1, 2, 4])
def test_what_is_written_is_read_back_to_the_last_bit(order: int, tmp_path: Path) -> None:
    model, tokenizer = fitted([" ".join(words) for words in sentences(80, 0)], order)
    model.save_arpa(tmp_path / "model.arpa", tokenizer)
    read = KneserNey.load_arpa(tmp_path / "model.arpa", tokenizer)
    assert_equal(read, model)
    assert read.discounts is None


def test_the_estimate_is_that_of_lmplz(tmp_path: Path) -> None:
    model, tokenizer = fitted(TEXT, 3)
    (tmp_path / "lmplz.arpa").write_text(LMPLZ)
    # lmplz counts in float32.
    assert_equal(KneserNey.load_arpa(tmp_path / "lmplz.arpa", tokenizer), model, tolerance=5e-7)


@pytest.mark.parametrize("order", [2, 5])
def test_kenlm_gives_our_file_our_scores(order: int, tmp_path: Path) -> None:
    kenlm = pytest.importorskip("kenlm")
    train = [" ".join(words) for words in sentences(150, 0)]
    # <unk> is here a word of the text, with n-grams of its own, as in the Penn Treebank.
    train = [re.sub("horse|hill", "<unk>", line) for line in train]
    model, tokenizer = fitted(train, order)
    model.save_arpa(tmp_path / "model.arpa", tokenizer)
    config = kenlm.Config()
    config.show_progress = False
    theirs = kenlm.Model(str(tmp_path / "model.arpa"), config)
    unseen = [" ".join(words) for words in sentences(20, 1)]
    for line in [*unseen, "garden garden the", "in horse sees likes", "", "zebra"]:
        ids = torch.tensor([[*tokenizer.encode(line), tokenizer.eos_id]])
        ours = model.score_window(ids, torch.tensor([ids.shape[1]]), None)[0][0] / np.log(10)
        expected = [score for score, _, _ in theirs.full_scores(line, bos=True, eos=True)]
        # kenlm computes in float32.
        np.testing.assert_allclose(ours.numpy(), expected, rtol=0, atol=2e-6)


def odd_tokenizer() -> Tokenizer:
    words = ["</s>", "<s>", "[UNK]", "<unk>", "", "a b", "\n", "plain", "no\u00a0break", "<UNK>"]
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({w: i for i, w in enumerate(words)}, unk_token="[UNK]"))
    return Tokenizer.from_backend(backend)


def test_names_that_would_be_misread_are_replaced(tmp_path: Path) -> None:
    tokenizer = odd_tokenizer()
    replaced = {token: f"<token:{token}>" for token in (1, 3, 4, 5, 6, 8, 9)}
    assert arpa_names(tokenizer) == [
        {0: "</s>", 2: "<unk>", 7: "plain", 10: "<s>", **replaced}[token] for token in range(11)
    ]
    tokens = Tokens.from_documents([[7, 1, 5, 8, 2, 0], [9, 6, 4, 3, 7, 1, 0]], 10)
    model = KneserNey.fit(tokens, num_words=10, eos_id=0, order=3, fallback=FALLBACK)
    model.save_arpa(tmp_path / "odd.arpa", tokenizer)
    assert_equal(KneserNey.load_arpa(tmp_path / "odd.arpa", tokenizer), model)


def test_two_tokens_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two tokens would be called '<token:1>'"):
        arpa_names(word_tokenizer({"<token:1>": 2, "<s>": 1}))


def test_a_file_of_another_tokenizer_is_not_written(tmp_path: Path) -> None:
    model, _ = fitted(TEXT, 2)
    with pytest.raises(ValueError, match=r"3 tokens and EOS 0, the model 8 and 7"):
        model.save_arpa(tmp_path / "model.arpa", word_tokenizer({"one": 2, "<unk>": 1}, eos_count=2))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("\\data\\", "data", r"expected '\\\\data\\\\', found 'data'"),
        ("ngram 2=14", "ngram 3=14", "expected 'ngram 2=COUNT'"),
        ("ngram 1=9\nngram 2=14\nngram 3=16\n", "", "no n-gram counts"),
        ("ngram 2=14", "ngram 2=13", r"expected '\\\\3-grams:', found '-0.91"),
        ("ngram 2=14", "ngram 2=15", "is no line of 2-grams"),
        ("ngram 3=16", "ngram 3=99", "is no line of 3-grams"),
        ("\n\\end\\\n", "", r"expected '\\\\end\\\\', found ''"),
        ("-0.582474\tthe dog sleeps\n\n\\end\\\n", "", "15 of 16 3-grams"),
        ("-1.0280287\ta\t", "-1.0280287\tzebra\t", "the word 'zebra' is not among the tokenizer's 8"),
        ("-1.0280287\ta\t", "-1.0280287\tthe\t", "a 1-gram stands there twice"),
        ("ngram 1=9", "ngram 1=8", r"expected '\\\\2-grams:'|1 of the tokenizer's words"),
        ("-0.2481575\ta dog", "-0.2481575\ta a", "1 3-grams without their first 2 words"),
        ("-0.2481575\ta dog", "0.5\ta dog", "above 0"),
        ("-0.2481575\ta dog", "nan\ta dog", "not finite"),
        ("-0.2481575\ta dog\t-0.30103", "-0.2481575\ta dog\tinf", "not finite"),
        ("-0.2481575\ta dog", "-0.2481575 a dog", "is no line of 2-grams"),
        ("-0.2481575\ta dog", "-0.2481575\ta", "is no line of 2-grams"),
    ],
)
def test_damaged_files_are_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    _, tokenizer = fitted(TEXT, 3)
    assert LMPLZ.count(old) == 1
    path = tmp_path / "damaged.arpa"
    path.write_text(LMPLZ.replace(old, new))
    with pytest.raises(ValueError, match=rf"damaged.arpa: .*({message})"):
        KneserNey.load_arpa(path, tokenizer)


def test_words_without_a_probability_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.arpa").write_text(LMPLZ)
    _, tokenizer = fitted([*TEXT, "the bird flies"], 3)
    with pytest.raises(ValueError, match=r"2 of the tokenizer's words have no 1-gram, '(bird|flies)' for one"):
        KneserNey.load_arpa(tmp_path / "model.arpa", tokenizer)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no ARPA file at .*nowhere.arpa"):
        KneserNey.load_arpa(tmp_path / "nowhere.arpa", fitted(TEXT, 1)[1])
