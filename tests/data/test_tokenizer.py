import copy
import json
import os
import re
from pathlib import Path

import numpy as np
import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st
from tiny import byte_tokenizer
from tokenizers import decoders, models, pre_tokenizers

from vlhmm.data import Tokenizer, load_tokenizer, word_tokenizer
from vlhmm.data.backend_errors import backend_errors

words = st.text(st.characters(codec="utf-8", exclude_categories=["Z", "C"]), min_size=1, max_size=5)


def byte_level(eos: str = "<|endoftext|>") -> tokenizers.Tokenizer:
    """A tokenizer of single bytes, with an end-of-text token of any name."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(alphabet)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([eos])
    return backend


def test_ids_go_by_falling_count_then_by_word() -> None:
    tokenizer = word_tokenizer(["b", "a", "c", "a", "b", "<unk>", "d", "d", "d"], eos_count=2)
    assert tokenizer.tokens() == ["d", "<eos>", "a", "b", "<unk>", "c"]


@given(st.lists(words, min_size=1))
def test_decode_inverts_encode_on_known_words(text: list[str]) -> None:
    tokenizer = word_tokenizer(text)
    ids = tokenizer.encode(" ".join(text))
    assert [tokenizer.token(i) for i in ids] == text
    if "<eos>" not in text:
        assert tokenizer.decode(ids) == " ".join(text)


def test_unknown_words_become_unk() -> None:
    tokenizer = word_tokenizer(["a", "b"])
    assert tokenizer.encode("a x\tb ") == [
        tokenizer.token_id("a"),
        tokenizer.unk_id,
        tokenizer.token_id("b"),
    ]


def test_rare_words_lend_unk_their_counts() -> None:
    tokenizer = word_tokenizer({"common": 5, "rare": 1, "scarce": 1, "some": 2}, min_count=2)
    assert tokenizer.tokens() == ["common", "<unk>", "some", "<eos>"]


def test_without_unk_an_unknown_word_is_refused() -> None:
    tokenizer = word_tokenizer(["a", "b"], unk=False)
    assert tokenizer.unk_id is None
    assert tokenizer.encode("b a") == [tokenizer.token_id("b"), tokenizer.token_id("a")]
    with pytest.raises(ValueError, match="vocabulary of 3 tokens"):
        tokenizer.encode("c")


def test_decode_breaks_lines_at_eos_and_drops_it_from_the_end() -> None:
    tokenizer = word_tokenizer(["a", "b"])
    a, b, eos = (tokenizer.token_id(name) for name in ("a", "b", "<eos>"))
    assert tokenizer.decode([a, b, eos, b, eos]) == "a b\nb"
    assert tokenizer.decode(np.array([a, eos, eos], np.uint16)) == "a"
    assert tokenizer.decode([]) == ""


def test_ids_of_another_vocabulary_are_refused() -> None:
    tokenizer = word_tokenizer(["a", "b"])
    for call in (tokenizer.token, lambda i: tokenizer.decode([i])):
        with pytest.raises(ValueError, match=r"4 is outside 0\.\.3"):
            call(4)
        with pytest.raises(ValueError, match="-1 is outside"):
            call(-1)


@pytest.mark.parametrize("unk", [True, False])
def test_roles_and_hash_survive_the_file(tmp_path: Path, unk: bool) -> None:
    tokenizer = word_tokenizer(["a", "b", "é"], unk=unk)
    tokenizer.save(tmp_path / "tokenizer.json")
    for again in (
        Tokenizer.load(tmp_path / "tokenizer.json"),
        load_tokenizer(tmp_path),
        copy.deepcopy(tokenizer),
    ):
        assert again == tokenizer
        assert again.hash == tokenizer.hash
        assert (again.eos_id, again.unk_id, again.word_level) == (tokenizer.eos_id, tokenizer.unk_id, True)
        assert again.encode("b é a") == tokenizer.encode("b é a")
    # The file is one that the backend reads as it is.
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() == tokenizer.vocab_size


def test_an_unusual_eos_survives_the_file(tmp_path: Path) -> None:
    tokenizer = Tokenizer.from_backend(byte_level("<the end>"), eos="<the end>")
    tokenizer.save(tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path / "tokenizer.json").eos_id == tokenizer.eos_id == 256
    assert tokenizer.encode("hi") == tokenizer.backend.encode("hi", add_special_tokens=False).ids


def test_the_configured_eos_of_a_folder_is_respected(tmp_path: Path) -> None:
    backend = byte_level("<|endoftext|>")
    backend.add_special_tokens(["<stop>"])
    backend.save(str(tmp_path / "tokenizer.json"))
    assert load_tokenizer(tmp_path).eos_id == 256
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<stop>"}}))
    assert load_tokenizer(tmp_path).eos_id == 257


def test_control_symbols_typed_in_text_are_text() -> None:
    tokenizer = Tokenizer.from_backend(byte_level("</s>"))
    ids = tokenizer.encode("a</s>")
    assert tokenizer.eos_id not in ids
    assert tokenizer.decode([*ids, tokenizer.eos_id]) == "a</s>"


def test_a_file_that_truncates_or_pads_does_neither_here(tmp_path: Path) -> None:
    backend = byte_level()
    backend.enable_truncation(3)
    backend.enable_padding(length=10)
    assert len(Tokenizer.from_backend(backend).encode("abcdefg")) == 7


@pytest.mark.parametrize("content", ["", "[]", "{}", '{"model": 3}', "no json"])
def test_foreign_files_are_refused(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=r"no tokenizer\.json"):
        load_tokenizer(tmp_path / "tokenizer.json")


def test_a_missing_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nowhere"):
        load_tokenizer(tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"has no tokenizer\.json"):
        load_tokenizer(tmp_path)


def test_words_with_white_space_and_empty_vocabularies_are_refused() -> None:
    with pytest.raises(ValueError, match="white space"):
        word_tokenizer(["a b"])
    with pytest.raises(ValueError, match="0 given"):
        word_tokenizer([])


def changed(**changes: object) -> str:
    return json.dumps({**json.loads(word_tokenizer(["the", "cat"]).definition), **changes})


def bpe(**changes: object) -> dict[str, object]:
    return {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "vocab": {"a": 0, "é": 1, "aé": 2},
        "merges": [],
        **changes,
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff\xfe", "not UTF-8"),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"model": ' + b"1" * 5000 + b"}", "not JSON"),
        (b'{"model": {"type": "BPE"}}', "no tokenizer.json"),
        # Each of these makes the backend panic or abort.
        (changed(normalizer={"type": "Precompiled", "precompiled_charsmap": ""}).encode(), "precompiled_charsmap"),
        (changed(normalizer={"type": "Precompiled", "precompiled_charsmap": "AAAAAA=="}).encode(), "out of bounds"),
        (changed(pre_tokenizer={"type": "FixedLength", "length": 0}).encode(), "non-zero"),
        (changed(model=bpe(continuing_subword_prefix="####", merges=["a é"])).encode(), "begins with '####'"),
        (changed(model=bpe(continuing_subword_prefix="#", merges=[["a", "é"]])).encode(), "begins with '#'"),
        # The backend reads it by its other fields.
        (changed(decoder={"type": [[]], "prefix": "##", "cleanup": True}).encode(), "the type of its decoder is [[]]"),
        (changed(decoder={"type": "Sequence", "decoders": [{"type": 3}]}).encode(), "the type of its decoder is 3"),
        # Ids that would take gigabytes for their names.
        (
            changed(model={"type": "WordLevel", "vocab": {"a": 0, "b": 4_000_000_000}, "unk_token": "a"}).encode(),
            "unused",
        ),
    ],
)
def test_a_damaged_tokenizer_is_refused_in_one_line_that_names_it(
    tmp_path: Path, content: bytes, message: str, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "tokenizer.json").write_bytes(content)
    with pytest.raises(ValueError, match=re.escape(message)) as raised:
        load_tokenizer(tmp_path / "tokenizer.json")
    assert str(raised.value).startswith(str(tmp_path / "tokenizer.json"))
    assert len(str(raised.value).splitlines()) == 1
    # A panic prints lines of its own.
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize(
    "content", [b"[]", b"\xff", b"[" * 100_000, b'{"eos_token": 3}', b'{"eos_token": {"content": []}}']
)
def test_a_damaged_tokenizer_config_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.json").write_text(changed())
    (tmp_path / "tokenizer_config.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"tokenizer_config\.json"):
        load_tokenizer(tmp_path)


def test_what_else_is_printed_while_a_tokenizer_is_loaded_is_kept(capfd: pytest.CaptureFixture[str]) -> None:
    with backend_errors("{}", quiet=True):
        os.write(2, b"kept\n")

    def fail(error: BaseException) -> None:
        with backend_errors("{}", quiet=True):
            os.write(2, b"kept too\n")
            raise error

    with pytest.raises(ValueError, match="broken"):
        fail(KeyError("broken"))
    with pytest.raises(KeyboardInterrupt):
        fail(KeyboardInterrupt())
    assert capfd.readouterr().err == "kept\nkept too\nkept too\n"


@pytest.mark.parametrize("kind", ["words", "bytes"])
def test_half_a_character_is_refused(kind: str) -> None:
    tokenizer = word_tokenizer(["a"]) if kind == "words" else Tokenizer.from_backend(byte_level())
    with pytest.raises(ValueError, match=r"'\\ud800' at character 2, half of a character"):
        tokenizer.encode("a \ud800")


def test_tokens_are_shown_as_people_read_them() -> None:
    """A byte-level token as its text, with marks for white space, and for each byte of a character that is cut its number."""
    tokens = byte_tokenizer()

    def shown(text: str) -> list[str]:
        return [tokens.shown(tokens.token(one)) for one in tokens.encode(text)]

    assert shown("M\u00e1 t\u2019\n\t") == ["M", "\u00e1", "\u2423t", "<0xE2>", "<0x80>", "<0x99>", "\u23ce", "\u21e5"]
    assert [tokens.shown(name) for name in ("\u0120", "\u0120caf\u00c3\u00a9", "\u00c3", "<eos>", "\u4e2d")] == [
        "\u2423", "\u2423caf\u00e9", "<0xC3>", "<eos>", "\u4e2d"
    ]  # fmt: skip
    # A whole character and the beginning of the next.
    assert tokens.shown("\u00c3\u00a9\u00e2\u0122") == "\u00e9<0xE2><0x80>"
    # Words are their own names, whatever letters they have.
    assert word_tokenizer(["\u0120t", "\u00c3\u00a1", "a"]).shown("\u0120t") == "\u0120t"
    pieces = tokenizers.Tokenizer(models.BPE({"\u2581the": 0, "\u00e1": 1, "<0xE2>": 2}, []))
    pieces.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback()])
    of_pieces = Tokenizer.from_backend(pieces)
    assert [of_pieces.shown(name) for name in of_pieces.tokens()] == ["\u2423the", "\u00e1", "<0xE2>"]
