"""Several ranks cluster, sample and read with a teacher to the bits of one process."""

from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from tiny import tiny_corpus
from tiny_teacher import write_tiny_teacher

import vlhmm
from tests.distributed.launch import on_ranks
from vlhmm.baselines import LSTMSettings, build_baseline
from vlhmm.cluster import clustering
from vlhmm.distillation.decoder import Decoder, DecoderSettings
from vlhmm.distillation.lvd import KMeansSettings, StateClusters, VectorSettings, find_states
from vlhmm.distillation.teachers import load_teacher
from vlhmm.distillation.teachers.continuations import ContinuationSettings, baseline_writer, draw_continuations
from vlhmm.distillation.teachers.samples import SampleSettings, draw_samples
from vlhmm.distributed import ALONE, World
from vlhmm.progress import result_of
from vlhmm.support import dense_support
from vlhmm.tensor_file import read_tensors


@pytest.fixture(scope="module")
def corpus() -> vlhmm.Corpus:
    return tiny_corpus(60)


def test_words_are_clustered_alike(corpus: vlhmm.Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vlhmm.cluster.bigrams.CHUNK", 50)

    def found(here: World) -> list[object]:
        blocks = result_of(clustering(corpus.train, 4, refine=False, here=here))
        return [*blocks.block_of_word.tolist(), blocks.information]

    assert on_ranks(found, 3) == [str(found(ALONE))] * 3


@pytest.mark.parametrize("batch_size", [0, 64])
def test_vectors_and_clusters_are_those_of_one_process(
    corpus: vlhmm.Corpus, monkeypatch: pytest.MonkeyPatch, batch_size: int
) -> None:
    torch.manual_seed(0)
    num_words = corpus.tokenizer.vocab_size
    teacher = Decoder(DecoderSettings(dim=16, layers=1, heads=2), num_words).eval()
    # Several batches for the teacher, several chunks for k-means, and one rank with fewer than the others.
    monkeypatch.setattr("vlhmm.distillation.lvd.vectors.CPU_TOKENS", 64)
    monkeypatch.setattr("vlhmm.distillation.lvd.kmeans.CPU_CHUNK", 40)

    def found(here: World) -> str:
        clustering = KMeansSettings(iterations=5, batch_size=batch_size)
        *_, last = find_states(
            dense_support(num_words, 12),
            corpus.train,
            teacher,
            VectorSettings(pca=6),
            clustering,
            window=16,
            generator=torch.Generator().manual_seed(0),
            here=here,
        )
        assert isinstance(last, StateClusters)
        assert bool(last.used.all())
        return f"{last.centroids.numpy().tobytes().hex()} {last.distance!r}"

    assert on_ranks(found, 3) == [found(ALONE)] * 3


def shards(folder: Path) -> dict[str, list[object]]:
    found = {}
    for path in sorted((folder / "shards").iterdir()):
        tensors, metadata = read_tensors(path)
        found[path.name] = [metadata, {name: value.tolist() for name, value in tensors.items()}]
    return found


def same_files(one: Path, other: Path) -> bool:
    names = [f"{split}.tokens" for split in ("train", "valid", "test")] + ["teacher.json", "tokenizer.json"]
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in names)


def test_continuations_are_those_of_one_process(corpus: vlhmm.Corpus, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = build_baseline(LSTMSettings(dim=8), corpus.tokenizer.vocab_size).eval()
    settings = ContinuationSettings("lstm", corpus.hash, 8, 4, 1.0, 5, 0, "cpu")

    def draw(folder: Path, tokens: int, here: World) -> None:
        list(draw_continuations(folder, settings, tokens, lambda: baseline_writer(model, settings), corpus, here))

    # Two ranks would draw one shard more than is needed.
    draw(tmp_path / "alone", 3 * 40, ALONE)
    assert len(shards(tmp_path / "alone")) == 3
    assert on_ranks(partial(draw, tmp_path / "ranks", 3 * 40), 2) == ["None"] * 2
    assert shards(tmp_path / "ranks") == shards(tmp_path / "alone")
    assert same_files(tmp_path / "ranks", tmp_path / "alone")


def test_samples_of_a_language_model_are_those_of_one_process(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    write_tiny_teacher(tmp_path / "teacher", num_steps=1)
    teacher = load_teacher(str(tmp_path / "teacher"))
    settings = SampleSettings("tiny", max_tokens=6, batch_size=8)

    def draw(folder: Path, tokens: int, here: World) -> None:
        list(draw_samples(folder, settings, tokens, lambda: teacher, here=here))

    draw(tmp_path / "alone", 200, ALONE)
    assert len(shards(tmp_path / "alone")) % 2
    # Drawing goes on with any number of ranks.
    draw(tmp_path / "ranks", 100, ALONE)
    assert on_ranks(partial(draw, tmp_path / "ranks", 200), 2) == ["None"] * 2
    assert shards(tmp_path / "ranks") == shards(tmp_path / "alone")
    assert same_files(tmp_path / "ranks", tmp_path / "alone")


def test_sums_over_ranks_are_exact_in_any_order() -> None:
    generator = np.random.default_rng(0)
    parts = [torch.from_numpy(generator.normal(size=50).astype(np.float32)).double() for _ in range(100)]
    grain = 2.0**-40
    rounded = [(part / grain).round() * grain for part in parts]
    forward, backward = sum(rounded), sum(reversed(rounded))
    assert torch.equal(torch.as_tensor(forward), torch.as_tensor(backward))
