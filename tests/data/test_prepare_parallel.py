"""Text prepared by several processes, from several folders, and from addresses: the same corpus."""

from pathlib import Path

import numpy as np
import pytest
from test_tokenizer import byte_level

from tests.distributed.launch import on_ranks
from vlhmm.data import EosRule, Tokenizer, Tokens, load_corpus, prepare, prepare_steps, word_tokenizer
from vlhmm.data.parts import PARTS, Job, count_documents, merge_parts, write_part
from vlhmm.data.splits import find_text
from vlhmm.data.windows import Epoch
from vlhmm.distributed import World
from vlhmm.progress import result_of


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of documents of several lines; one is empty, one has a document alone."""
    folder = tmp_path_factory.mktemp("text")
    for number, documents in enumerate((31, 0, 1, 40, 12)):
        lines = [
            f"file {number} line {i} of words{i % 7} {'x ' * (i % 4)}\n" + "\n" * (i % 3 == 0)
            for i in range(3 * documents)
        ]
        (folder / f"part-{number}.txt").write_text("".join(lines))
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "corpus.json"}


@pytest.mark.parametrize("eos", ["line", "document", "none"])
@pytest.mark.parametrize("named", [True, False])
def test_parts_are_put_together_to_the_bytes_of_one_process(
    text: Path, tmp_path: Path, eos: EosRule, named: bool
) -> None:
    source = tmp_path / "text"
    source.mkdir()
    for file, split in zip(sorted(text.iterdir()), ("train-0", "train-1", "train-2", "valid", "test"), strict=True):
        (source / (f"{split}.txt" if named else file.name)).write_bytes(file.read_bytes())
    tokenizer = Tokenizer.from_backend(byte_level())
    prepare(source, tokenizer, tmp_path / "alone", eos=eos)
    job = Job(find_text(source), eos, tmp_path / "several")
    (job.folder / PARTS).mkdir(parents=True)
    tokenizer.save(job.folder / "tokenizer.json")
    numbers = range(len(job.text.files))
    documents = [count_documents(job, number) for number in numbers] if job.counts_documents else []
    # Whoever is ready first: no part knows of the others.
    made = {number: write_part(job, number, documents[:number]) for number in reversed(numbers)}
    result_of(merge_parts(job, tokenizer, iter(made[number] for number in numbers)))
    (job.folder / PARTS).rmdir()
    assert content(job.folder) == content(tmp_path / "alone")


def test_processes_and_ranks_write_the_same_bytes(text: Path, tmp_path: Path) -> None:
    alone = prepare(text, None, tmp_path / "alone")
    assert prepare(text, None, tmp_path / "processes", processes=2).hash == alone.hash
    assert content(tmp_path / "processes") == content(tmp_path / "alone")

    def on_rank(here: World) -> None:
        result_of(prepare_steps(text, None, tmp_path / "ranks", here=here))

    assert on_ranks(on_rank, 2) == ["None"] * 2
    assert content(tmp_path / "ranks") == content(tmp_path / "alone")


def test_an_error_of_one_process_or_rank_leaves_nothing(text: Path, tmp_path: Path) -> None:
    source = tmp_path / "text"
    source.mkdir()
    for file in text.iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    (source / "part-4.txt").write_bytes(b"fine\n\n\xff\n")
    tokenizer = word_tokenizer(["x"])
    with pytest.raises(ValueError, match=r"part-4\.txt is not UTF-8"):
        prepare(source, tokenizer, tmp_path / "out", processes=2)

    def on_rank(here: World) -> None:
        result_of(prepare_steps(source, tokenizer, tmp_path / "out", here=here))

    first, second = on_ranks(on_rank, 2)
    assert "part-4.txt is not UTF-8" in first
    assert "part-4.txt is not UTF-8" in second
    assert sorted(path.name for path in tmp_path.iterdir()) == ["text"]


def test_abandoned_processes_end(text: Path, tmp_path: Path) -> None:
    steps = prepare_steps(text, word_tokenizer(["x"]), tmp_path / "out", processes=2)
    next(steps)
    steps.close()
    assert list(tmp_path.iterdir()) == []


def test_folders_are_joined_without_a_copy(text: Path, tmp_path: Path) -> None:
    tokenizer = word_tokenizer(["x", "line", "of"])
    parts = [prepare(text, tokenizer, tmp_path / name) for name in ("first", "second")]
    joined = prepare([tmp_path / "first", tmp_path / "second"], None, tmp_path / "joined")
    assert sorted(path.name for path in (tmp_path / "joined").iterdir()) == ["corpus.json", "tokenizer.json"]
    for split in ("train", "valid", "test"):
        several, whole = [getattr(part, split) for part in parts], getattr(joined, split)
        ids = np.concatenate([one.ids for one in several])
        assert np.array_equal(whole.ids[:], ids)
        assert [document.tolist() for document in map(whole.document, range(whole.num_documents))] == [
            one.document(number).tolist() for one in several for number in range(one.num_documents)
        ]
        assert (whole.words, whole.bytes) == tuple(
            sum(getattr(one, name) for one in several) for name in ("words", "bytes")
        )
        in_memory = Tokens(ids, whole.offsets)
        for kind in ("carried", "independent"):
            made = zip(
                Epoch(whole, kind, 2, 5, 0, 1).windows(), Epoch(in_memory, kind, 2, 5, 0, 1).windows(), strict=True
            )
            assert all(bool((one == other).all()) for one, other in made)
    prepare(text, word_tokenizer(["x"]), tmp_path / "other")
    with pytest.raises(ValueError, match="was prepared with tokenizer"):
        prepare([tmp_path / "first", tmp_path / "other"], None, tmp_path / "out")
    with pytest.raises(ValueError, match="joined with prepared corpora alone"):
        prepare([tmp_path / "first", text], None, tmp_path / "out")
    (tmp_path / "second").rename(tmp_path / "elsewhere")
    with pytest.raises(ValueError, match="which is not a prepared corpus"):
        load_corpus(tmp_path / "joined")
    (tmp_path / "other").rename(tmp_path / "second")
    with pytest.raises(ValueError, match="which has changed since"):
        load_corpus(tmp_path / "joined")


@pytest.mark.parametrize("sizes", [[3, 0, 5, 1, 40, 7], [4] * 9])
def test_a_text_that_memory_does_not_hold_gives_the_same_windows(
    sizes: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    offsets = np.cumsum([0, *sizes], dtype=np.int64)
    tokens = Tokens(np.arange(offsets[-1], dtype=np.uint16), offsets)
    epoch = Epoch(tokens, "carried", 2, 3, 0, 0)
    in_memory = [window.tolist() for window in epoch.windows()]
    assert len(in_memory) > 2
    monkeypatch.setattr("vlhmm.data.windows.IN_MEMORY_TOKENS", 10)
    assert [window.tolist() for window in epoch.windows()] == in_memory
    assert [window.tolist() for window in epoch.windows(2)] == in_memory[2:]


def test_joined_ids_are_read_as_one_array_is() -> None:
    parts = [np.arange(4, dtype=np.uint16), np.empty(0, np.uint16), np.arange(10, 13, dtype=np.uint16)]
    whole = np.concatenate(parts)
    texts = [Tokens(part, np.array([0, len(part)], np.int64)) for part in parts]
    ids = Tokens.joined([Tokens.joined(texts[:2]), texts[2]]).ids
    assert (len(ids), ids.shape, ids.ndim, ids.dtype) == (7, (7,), 1, np.uint16)
    for key in (
        0,
        -1,
        slice(None),
        slice(1, 3),
        slice(2, 6),
        slice(5, 5),
        slice(-2, None),
        slice(6, 1, -2),
        [5, 0, -7],
        [[1, 4], [6, 6]],
    ):
        found, expected = ids[key], whole[key]
        assert np.array_equal(found, expected)
        assert np.asarray(found).dtype == np.uint16
    assert np.array_equal(np.asarray(ids), whole)
    assert ids.astype(np.int64).dtype == np.int64
    assert (np.max(ids), np.min(ids)) == (12, 0)
    for wrong in (7, [-8], 0.5):
        with pytest.raises(IndexError):
            ids[wrong]
