import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from test_tokenizer import byte_level

from vlhmm.data import EosRule, Tokenizer, Tokens, load_corpus, prepare, prepare_steps, sources, word_tokenizer
from vlhmm.data.corpus import MANIFEST
from vlhmm.data.prepare import write_manifest


@pytest.fixture
def text(tmp_path: Path) -> Path:
    folder = tmp_path / "text"
    folder.mkdir()
    for split, number in {"train-0": 60, "train-1": 50, "valid": 20, "test": 10}.items():
        words = [f"{split[:2]} word{i % 7} {'x ' * (i % 4)}end" for i in range(number)]
        (folder / f"{split}.txt").write_text("\n".join(word + "\n" * (i % 3 == 0) for i, word in enumerate(words)))
    return folder


@pytest.mark.parametrize("kind", ["given words", "counted words", "learnt pieces", "bytes"])
def test_preparing_equals_loading(text: Path, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = {
        "given words": word_tokenizer(["end", "x", "word1"]),
        "counted words": "words",
        "learnt pieces": None,
        "bytes": Tokenizer.from_backend(byte_level()),
    }[kind]
    loaded = load_corpus(text, tokenizer=tokenizer)
    monkeypatch.setattr(sources, "BATCH_CHARS", 100)
    prepared = prepare(text, tokenizer, tmp_path / "out")
    assert prepared.hash == loaded.hash == load_corpus(tmp_path / "out").hash
    for name in ("train", "valid", "test"):
        mapped, held = getattr(prepared, name), getattr(loaded, name)
        assert isinstance(mapped.ids, np.memmap)
        assert np.array_equal(mapped.ids, held.ids)
        assert np.array_equal(mapped.offsets, held.offsets)
        assert (mapped.words, mapped.bytes) == (held.words, held.bytes)
    assert not any("partial" in path.name for path in tmp_path.rglob("*"))


def test_text_without_named_splits_is_split_in_one_pass(text: Path, tmp_path: Path) -> None:
    for file in list(text.iterdir()):
        file.rename(text / f"part-{file.name}")
    assert prepare(text, None, tmp_path / "out").hash == load_corpus(text).hash


@pytest.mark.parametrize(("eos", "number"), [("line", 60 + 50), ("document", 21 + 18), ("none", 0)])
def test_eos_comes_where_the_rule_says(text: Path, tmp_path: Path, eos: EosRule, number: int) -> None:
    corpus = prepare(text, word_tokenizer(["end"]), tmp_path / "out", eos=eos)
    assert corpus.train.count(corpus.tokenizer.eos_id) == number
    assert corpus.train.num_documents == 21 + 18


@pytest.mark.parametrize(("tokenizer", "passes"), [(None, 2), (word_tokenizer(["end"]), 1)])
def test_progress_rises_to_the_whole(text: Path, tmp_path: Path, tokenizer: Tokenizer | None, passes: int) -> None:
    steps = list(prepare_steps(text, tokenizer, tmp_path / "out"))
    read = [step.bytes_read for step in steps]
    assert read == sorted(read)
    assert read[-1] == steps[-1].bytes_total == passes * sum(file.stat().st_size for file in text.iterdir())
    corpus = load_corpus(tmp_path / "out")
    assert steps[-1].num_tokens == len(corpus.train) + len(corpus.valid) + len(corpus.test)


def test_abandoned_half_way_nothing_is_left(text: Path, tmp_path: Path) -> None:
    steps = prepare_steps(text, None, tmp_path / "out")
    while next(steps).num_tokens == 0:
        pass
    assert any("partial" in path.name for path in tmp_path.iterdir())
    steps.close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_a_bad_file_at_the_end_leaves_nothing(text: Path, tmp_path: Path) -> None:
    (text / "train-2.jsonl").write_text('{"text": "fine"}\n{"body": "not"}')
    with pytest.raises(ValueError, match=r"train-2\.jsonl, line 2"):
        prepare(text, word_tokenizer(["end"]), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_what_exists_is_never_overwritten(text: Path, tmp_path: Path) -> None:
    prepare(text, None, tmp_path / "out")
    with pytest.raises(ValueError, match="exists already"):
        prepare(text, None, tmp_path / "out")
    with pytest.raises(ValueError, match="prepare the text anew"):
        load_corpus(tmp_path / "out", tokenizer=word_tokenizer(["end"]))


@pytest.mark.parametrize("name", [MANIFEST, "tokenizer.json", "train.tokens", "test.tokens"])
def test_a_prepared_folder_that_lacks_or_mixes_files_is_refused(text: Path, tmp_path: Path, name: str) -> None:
    prepare(text, None, tmp_path / "out")
    (text / "test.txt").write_text("other words end\n")
    (text / "train-1.txt").write_text("other words end\n")
    prepare(text, word_tokenizer(["end"]) if name == "tokenizer.json" else None, tmp_path / "other")
    (tmp_path / "other" / name).replace(tmp_path / "out" / name)
    with pytest.raises(ValueError):
        load_corpus(tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    with pytest.raises((ValueError, OSError)):
        load_corpus(tmp_path / "out")


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('"version": 1', '"version": 9', "has version 9, this program reads 1; prepare it again"),
        ('"name"', '"nane"', "is no prepared corpus"),
        ("{", "", "is no prepared corpus"),
        ('"hash": "', '"hash": "0', "is damaged"),
    ],
)
def test_a_manifest_that_was_changed_is_refused(
    text: Path, tmp_path: Path, before: str, after: str, message: str
) -> None:
    prepare(text, None, tmp_path / "out")
    manifest = tmp_path / "out" / MANIFEST
    assert before in manifest.read_text()
    manifest.write_text(manifest.read_text().replace(before, after, 1))
    with pytest.raises(ValueError, match=message):
        load_corpus(tmp_path / "out")


def test_any_change_of_a_prepared_folder_is_found_before_it_is_used(text: Path, tmp_path: Path) -> None:
    """But for bytes that say nothing: padding, and white space."""
    good = prepare(text, None, tmp_path / "out")
    for path in sorted((tmp_path / "out").iterdir()):
        content = path.read_bytes()
        used = [position for position in range(len(content)) if content[position] not in b"\0 \n"]
        for position in used[::29]:
            changed = bytearray(content)
            changed[position] ^= 1
            path.write_bytes(changed)
            with pytest.raises(ValueError, match="out"):
                load_corpus(tmp_path / "out")
        path.write_bytes(content)
    assert load_corpus(tmp_path / "out").hash == good.hash


def test_damage_in_a_text_passes_only_when_nobody_looks(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepare(text, None, tmp_path / "out")
    path = tmp_path / "out" / "test.tokens"
    content = bytearray(path.read_bytes())
    content[4096] ^= 1
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"test\.tokens is damaged: its SHA-256"):
        load_corpus(tmp_path / "out")
    load_corpus(tmp_path / "out", verify=False)
    monkeypatch.setenv("VLHMM_VERIFY", "0")
    load_corpus(tmp_path / "out")


def test_a_prepared_folder_of_the_first_edition_loads() -> None:
    corpus = load_corpus(Path(__file__).parents[1] / "first_edition" / "corpus")
    assert corpus.hash == "30149f3a5df9bda08040ff7a40a96d174085b7b2adc21e78cd0f925ea0739cc7"
    assert (len(corpus.train), len(corpus.valid), len(corpus.test)) == (132, 6, 6)


def test_a_text_of_more_tokens_than_its_tokenizer_has_is_refused(text: Path, tmp_path: Path) -> None:
    corpus = prepare(text, None, tmp_path / "out")
    size, name = corpus.tokenizer.vocab_size, corpus.tokenizer.hash
    ids = np.array([0, size + 3], np.uint16)
    Tokens(ids, np.array([0, 2])).save(tmp_path / "out" / "test.tokens", vocab_size=size + 4, tokenizer_hash=name)
    with pytest.raises(
        ValueError, match=r"test\.tokens is damaged: its header is not the one that corpus\.json records"
    ):
        load_corpus(tmp_path / "out", verify=False)
    # By a program that writes manifests too.
    write_manifest(tmp_path / "out", "out", corpus.tokenizer, "line")
    with pytest.raises(ValueError, match=rf"test\.tokens is damaged: it is of {size + 4} tokens"):
        load_corpus(tmp_path / "out", verify=False)


SLOW_PREPARE = """
import sys, time
from vlhmm.data import prepare_steps, word_tokenizer
for step in prepare_steps(sys.argv[1], word_tokenizer(["end"]), sys.argv[2]):
    print(step.num_tokens, flush=True)
    time.sleep(float(sys.argv[3]))
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGINT])
def test_a_killed_run_leaves_no_corpus(text: Path, tmp_path: Path, how: signal.Signals) -> None:
    out = tmp_path / "out"
    process = subprocess.Popen(
        [sys.executable, "-c", SLOW_PREPARE, str(text), str(out), "30"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
    )
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        time.sleep(0.1)
        process.send_signal(how)
    assert process.returncode != 0
    assert not out.exists()
    leftovers = [path.name for path in tmp_path.iterdir() if path.name != "text"]
    assert all(name.startswith(".out.partial-") for name in leftovers)
    if how is signal.SIGINT:
        assert leftovers == []
    for folder in tmp_path.glob(".out.partial-*"):
        with pytest.raises(ValueError):
            load_corpus(folder)
    # And the next run is not disturbed by what the last one left.
    assert len(prepare(text, None, out).train)


@pytest.mark.skipif(os.name != "posix", reason="file size limits are a matter of POSIX")
def test_a_full_disk_leaves_no_corpus(text: Path, tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: both make a write fail half way."""
    limit = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (4500, 4500))\n"
    run = subprocess.run(
        [sys.executable, "-c", limit + SLOW_PREPARE, str(text), str(tmp_path / "out"), "0"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "nothing was kept" in run.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]
