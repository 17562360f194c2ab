import gzip
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from vlhmm.data import sources
from vlhmm.data.sources import files_by_split, read_batches, read_raw_lines, text_files
from vlhmm.data.splits import GROUP, find_text, split_of

DOCUMENTS = [["a first line", "a second"], ["é 中"], ["the end"]]


# 1.5 GiB of dictionary, for a file of some hundred bytes.
NEEDS_A_GIGABYTE = lzma.compress(
    b"abc\n",
    filters=[{"id": lzma.FILTER_LZMA2, "preset": 0, "dict_size": 3 << 29, "mf": lzma.MF_HC3, "mode": lzma.MODE_FAST}],
)


def stream(path: Path) -> list[str | None]:
    return [line for batch in read_batches(path) for line in batch.lines]


def marked(documents: list[list[str]]) -> list[str | None]:
    return [line for document in documents for line in (*document, None)]


@pytest.mark.parametrize("suffix", sources.SUFFIXES)
def test_every_kind_of_file_gives_the_same_documents(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"x{suffix}"
    texts = ["\n".join(lines) for lines in DOCUMENTS]
    if suffix == ".parquet":
        parquet.write_table(pyarrow.table({"id": [1, 2, 3], "text": texts}), path)
    else:
        content = "\n\n".join(texts) + "\n"
        if ".jsonl" in suffix:
            content = "\n".join(json.dumps({"id": 1, "text": text}) for text in texts)
        pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
        path.write_bytes(pack(content.encode()))
    assert stream(path) == marked(DOCUMENTS)
    assert list(read_batches(path))[-1].bytes_read == path.stat().st_size


def test_blank_lines_never_make_empty_documents(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\n \n\na\n\n\t\n\nb\nc\n\n")
    assert stream(tmp_path / "x.txt") == ["a", None, "b", "c", None]
    (tmp_path / "x.jsonl").write_text('{"text": "a\\n\\nb"}\n\n{"text": "\\n"}\n{"text": "c"}')
    assert stream(tmp_path / "x.jsonl") == ["a", "b", None, "c", None]


@given(st.text(st.sampled_from("aé中 \n\r\x0b\u2028"), max_size=30), st.integers(1, 7))
def test_lines_do_not_depend_on_the_size_of_blocks(
    tmp_path_factory: pytest.TempPathFactory, text: str, block: int
) -> None:
    path = tmp_path_factory.mktemp("text") / "x.txt"
    path.write_bytes(text.encode())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sources, "BATCH_CHARS", block)
        lines = [line for batch, _ in read_raw_lines(path) for line in batch]
    with path.open(encoding="utf-8") as file:
        assert lines == [line.removesuffix("\n") for line in file]


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_bytes(b"\xef\xbb\xbfa\r\nb")
    assert stream(tmp_path / "x.txt") == ["a", "b", None]


def test_a_line_too_long_for_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_LINE_BYTES", 100)
    monkeypatch.setattr(sources, "BATCH_CHARS", 40)
    (tmp_path / "x.txt").write_text("a\n" + "b" * 300)
    with pytest.raises(ValueError, match="100 bytes in memory"):
        stream(tmp_path / "x.txt")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("x.txt", b"abc \xff\xfe def", "not UTF-8"),
        ("x.txt", "é".encode()[:1], "not UTF-8"),
        ("x.txt.gz", gzip.compress(b"abc " * 99, mtime=0)[:-9], "cut short"),
        ("x.txt.gz", b"no gzip", "damaged"),
        ("x.txt.xz", lzma.compress(b"abc " * 99)[:-9], "cut short"),
        ("x.txt.xz", b"no xz at all", "damaged"),
        (
            "x.jsonl",
            b'{"text": "a"}\n{"body": "b", "id": 3}',
            r'line 2 has no string under "text" \(its keys: body, id',
        ),
        ("x.jsonl", b'{"text": "a"}\n["b"]', "line 2"),
        ("x.jsonl", b'{"text": 7}', "line 1"),
        ("x.jsonl", b"plain", "line 1 is no JSON"),
        ("x.jsonl", b'{"text": "a"}\n' + b'{"text": ' + b"[" * 100_000, "line 2 is JSON nested too deeply"),
        ("x.jsonl", b'{"n": ' + b"1" * 5000 + b', "text": "a"}', "line 1 is no JSON"),
        ("x.jsonl", b'{"text": "a \\ud83d b"}', r"line 1 has half a character, \\ud83d, at character 2"),
        ("x.jsonl", b'{"text": "\\ude00\\ud83d"}', r"line 1 has half a character, \\ude00, at character 0"),
        ("x.jsonl", json.dumps({f"key {i}": 0 for i in range(99)}).encode(), "key 7 and 91 more"),
        ("x.txt.xz", NEEDS_A_GIGABYTE, "emory"),
        ("x.parquet", b"no parquet", "no parquet file"),
    ],
)
def test_damaged_files_are_named(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ValueError, match=message) as raised:
        stream(tmp_path / name)
    assert name in str(raised.value)


def test_a_parquet_file_without_text_names_its_columns(tmp_path: Path) -> None:
    parquet.write_table(pyarrow.table({"body": ["a"], "url": ["b"]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="its columns: body, url"):
        stream(tmp_path / "x.parquet")


def test_a_pair_of_escapes_is_one_character(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b'{"text": "a \\ud83d\\ude00 \\u00e9"}')
    assert stream(tmp_path / "x.jsonl") == ["a \U0001f600 é", None]


TEXT_COLUMNS = {
    "string": pyarrow.array(["a", None, "b"]),
    "large": pyarrow.array(["a", None, "b"], pyarrow.large_string()),
    "dictionary": pyarrow.array(["a", None, "b"]).dictionary_encode(),
}
OTHER_COLUMNS = {
    "int64": pyarrow.array([1, 2]),
    "binary": pyarrow.array([b"a", b"\xff"]),
    "list": pyarrow.array([["a"], ["b"]]),
    "struct": pyarrow.array([{"a": "b"}]),
    "bool": pyarrow.array([True]),
    "null": pyarrow.array([None, None]),
}


@pytest.mark.parametrize("column", TEXT_COLUMNS.values(), ids=TEXT_COLUMNS)
def test_every_column_of_strings_is_text(tmp_path: Path, column: pyarrow.Array) -> None:
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "x.parquet")
    assert stream(tmp_path / "x.parquet") == ["a", None, "b", None]


@pytest.mark.parametrize(("kind", "column"), OTHER_COLUMNS.items())
def test_a_column_of_other_things_is_refused_by_its_type(tmp_path: Path, kind: str, column: pyarrow.Array) -> None:
    parquet.write_table(pyarrow.table({"text": column}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match=rf"x\.parquet has text of type {kind}"):
        stream(tmp_path / "x.parquet")


@pytest.mark.parametrize("compression", ["none", "snappy", "gzip", "zstd"])
def test_damaged_pages_are_told_of_in_one_line(tmp_path: Path, compression: str) -> None:
    """Pages with checksums: every damage inside one is found, whatever the compression would have noticed."""
    path = tmp_path / "x.parquet"
    texts = [f"line {number} of a text that is long enough" for number in range(600)]
    table = pyarrow.table({"text": texts})
    parquet.write_table(table, path, compression=compression, use_dictionary=False, write_page_checksum=True)
    content, column = path.read_bytes(), parquet.read_metadata(path).row_group(0).column(0)
    begin, size = column.data_page_offset, column.total_compressed_size
    good, refused = stream(path), 0
    for position in range(begin, begin + size, max(1, size // 40)):
        changed = bytearray(content)
        changed[position] ^= 255
        path.write_bytes(changed)
        try:
            # The header of a page has no checksum, and parts that nobody reads.
            assert stream(path) == good
        except ValueError as error:
            refused += str(path) in str(error) and len(str(error).splitlines()) == 1
    assert refused >= 30


def test_a_record_too_long_for_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "MAX_RECORD_BYTES", 100)
    path = tmp_path / "x.jsonl"
    for text, fits in (
        ("a" * 80, True),
        ("é" * 20, True),
        ("中" * 20, True),
        ("a" * 80 + "中", False),
        ("😀" * 20, False),
    ):
        path.write_text(json.dumps({"text": text}))
        if fits:
            assert stream(path) == [text, None]
        else:
            with pytest.raises(ValueError, match=r"line 1 has a text of up to .* the limit is 100"):
                stream(path)


PREPARE_AND_TELL_MEMORY = """
import re, sys
from pathlib import Path
from vlhmm.data import prepare
prepare(sys.argv[1], None, sys.argv[2])
# Not ru_maxrss, which a new process has from the one that started it.
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


SENTENCES = {
    "one line": "the cat sees the dog in the garden ",
    "lines": "the cat sees the dog in the garden\\n",
    "accents": "thé çat sees the dög in the gärden ",
    "escapes": "th\\u00e9 cat sees the dog in the garden ",
    "Japanese": "猫は犬を見る。庭の中で、走る",
    "one word": "abcdefghijklmnopqrstuvwxyz",
}
"""What a record is made of, as it stands in the file."""


@pytest.mark.parametrize(
    ("text", "megabytes"),
    [("Japanese", 60), *((text, 20) for text in SENTENCES if text != "Japanese")],
)
def test_a_record_is_prepared_in_half_a_gigabyte(tmp_path: Path, text: str, megabytes: int) -> None:
    """60 MB of what takes most, 20 MB of the others: 350 MiB are taken by a record of any length that is not small."""
    sentence = SENTENCES[text] * 7
    limit = 350 + 162 * megabytes // 60
    with (tmp_path / "x.jsonl").open("w", encoding="utf-8") as file:
        file.write('{"text": "the cat"}\n' * GROUP + '{"text": "')
        for _ in range(megabytes * 1_000_000 // len(sentence.encode())):
            file.write(sentence)
        file.write('"}\n')
    command = [sys.executable, "-c", PREPARE_AND_TELL_MEMORY, str(tmp_path / "x.jsonl"), str(tmp_path / "out")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    # Of that 230 MiB are torch's.
    assert int(done.stdout) < limit << 10


def test_without_pyarrow_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(ValueError, match=r"vlhmm\[parquet\]"):
        stream(tmp_path / "x.parquet")


def test_folders_are_read_in_order_and_hidden_files_are_not(tmp_path: Path) -> None:
    for name in ("b.txt", "a.jsonl", ".hidden.txt", "README.md"):
        (tmp_path / name).touch()
    assert [path.name for path in text_files(tmp_path)] == ["a.jsonl", "b.txt"]
    assert text_files([tmp_path / "b.txt", tmp_path])[0].name == "b.txt"
    for wrong in (tmp_path / "README.md", tmp_path / "missing.txt"):
        with pytest.raises(ValueError, match=wrong.name):
            text_files(wrong)


def test_splits_go_by_name() -> None:
    def names(*files: str) -> dict[str, list[str]] | None:
        found = files_by_split(map(Path, files))
        return found and {split: [path.name for path in paths] for split, paths in found.items()}

    assert names("test.txt", "train-0.txt", "train-1.txt", "Validation.txt") == {
        "train": ["train-0.txt", "train-1.txt"],
        "valid": ["Validation.txt"],
        "test": ["test.txt"],
    }
    assert names("dev.jsonl", "train.jsonl", "test.jsonl") is not None
    assert names("a.txt", "trainer.txt", "testament.txt") is None
    assert names("train-0.txt", "train-1.txt") is None
    with pytest.raises(ValueError, match=r"no text for test; add a file named test\.txt"):
        names("train.txt", "valid.txt")
    with pytest.raises(ValueError, match=r"notes\.txt belongs to no split"):
        names("train.txt", "valid.txt", "test.txt", "notes.txt")


@given(st.integers(0, 50), st.integers(3, 40))
def test_every_group_has_one_valid_and_one_test_document(group: int, size: int) -> None:
    splits = [split_of(group * size + place, size) for place in range(size)]
    assert sorted(splits) == ["test", *["train"] * (size - 2), "valid"]


def test_all_documents_come_once_and_whole_when_split(tmp_path: Path) -> None:
    documents = [[f"{number} first", f"{number} second"] for number in range(3 * GROUP)]
    for part in range(2):
        text = "\n\n".join("\n".join(document) for document in documents[part::2])
        (tmp_path / f"{part}.txt").write_text(text)
    found: list[list[str]] = [[]]
    by_split: dict[str, list[str | None]] = {"train": [], "valid": [], "test": []}
    for batch in find_text(tmp_path).batches():
        by_split[batch.split] += batch.lines
    for lines in by_split.values():
        for line in lines:
            if line is None:
                found.append([])
            else:
                found[-1].append(line)
    assert found.pop() == []
    assert sorted(found) == sorted(documents)
    assert [lines.count(None) for lines in by_split.values()] == [54, 3, 3]


def test_lines_are_documents_where_nothing_parts_them(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("\n" + "a line\n" * GROUP + "\n")
    (tmp_path / "y.txt").write_text("\na line\n\na line\n")
    assert find_text(tmp_path / "x.txt").lines_are_documents
    assert not find_text(tmp_path / "y.txt").lines_are_documents
    assert not find_text(tmp_path).lines_are_documents
    lines = [line for batch in find_text(tmp_path / "x.txt").batches() for line in batch.lines]
    assert sorted(lines, key=str) == [None] * GROUP + ["a line"] * GROUP


def test_too_few_documents_to_split_are_refused(tmp_path: Path) -> None:
    (tmp_path / "x.txt").write_text("a line\n" * (GROUP - 1))
    with pytest.raises(ValueError, match="19 documents, at least 20"):
        list(find_text(tmp_path / "x.txt").batches())
