"""From a teacher's vectors to states: which vector belongs to which token, and which states it may get."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from graphs import graphs_on_cpu
from small_lvd import Blocks, TableTeacher, small_teacher
from tiny import tiny_corpus

from vlhmm import Corpus
from vlhmm.data import Tokens
from vlhmm.distillation.decoder import Decoder
from vlhmm.distillation.lvd import (
    BrokenTeacherError,
    KMeansSettings,
    StateClusters,
    StateLabeller,
    VectorSettings,
    VectorsEvent,
    contextual_vectors,
    find_states,
)
from vlhmm.distillation.lvd.assign import ClusterEvent
from vlhmm.distillation.lvd.vectors import VectorSample, check_teacher, sample_vectors
from vlhmm.models import linear_hmm, set_state_embeddings, set_word_embeddings
from vlhmm.support import Support, blocked_support, cloned_support, dense_support, uniform_support

PASSES = KMeansSettings(iterations=8)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return tiny_corpus()


@pytest.fixture(scope="module")
def teacher(corpus: Corpus) -> Decoder:
    return small_teacher(corpus, 4_000)


def sampled(teacher: object, tokens: Tokens, settings: VectorSettings, window: int = 16) -> VectorSample:
    *events, last = sample_vectors(teacher, tokens, settings, window)  # type: ignore[arg-type]
    assert all(isinstance(event, VectorsEvent) for event in events)
    assert events[-1].tokens == events[-1].total == len(tokens) // window * window
    assert isinstance(last, VectorSample)
    return last


def found(support: Support, tokens: Tokens, teacher: object, **options: object) -> StateClusters:
    options = {"vectors": VectorSettings(), "clustering": PASSES, "window": 16, **options}
    generator = torch.Generator().manual_seed(0)
    *events, last = find_states(support, tokens, teacher, generator=generator, **options)  # type: ignore[arg-type]
    assert any(isinstance(event, ClusterEvent) for event in events)
    assert isinstance(last, StateClusters)
    return last


def blocked(corpus: Corpus, states: int) -> Support:
    """Words in three blocks by their number."""
    return blocked_support(torch.arange(corpus.tokenizer.vocab_size) % 3, 3, states)


def test_the_vector_before_a_token_does_not_know_it(teacher: Decoder, corpus: Corpus) -> None:
    tokens = torch.from_numpy(corpus.train.ids[:12].astype(np.int64))[None]
    other = tokens.clone()
    other[0, 6] = (other[0, 6] + 1) % corpus.tokenizer.vocab_size
    for position, changes_at in (("at", 6), ("before", 7)):
        settings = VectorSettings(position)  # type: ignore[arg-type]
        one, two = (contextual_vectors(teacher, some, settings) for some in (tokens, other))
        assert torch.equal(one[:, :changes_at], two[:, :changes_at])
        assert not torch.equal(one[:, changes_at], two[:, changes_at])


def test_a_sample_holds_each_windows_vectors_but_its_first(teacher: Decoder, corpus: Corpus, monkeypatch) -> None:
    text = Tokens(corpus.train.ids[:100], np.array([0, 100]))
    monkeypatch.setattr("vlhmm.distillation.lvd.vectors.CPU_TOKENS", 32)
    sample = sampled(teacher, text, VectorSettings(layer=1))
    windows = torch.from_numpy(text.ids[:96].astype(np.int64)).view(6, 16)
    expected = contextual_vectors(teacher, windows, VectorSettings(layer=1))[:, 1:]
    torch.testing.assert_close(sample.vectors, expected.flatten(0, 1), rtol=1e-5, atol=1e-6)
    assert torch.equal(sample.words, windows[:, 1:].flatten())


def test_principal_components_keep_the_largest_variances(teacher: Decoder, corpus: Corpus) -> None:
    text = Tokens(corpus.train.ids[:640], np.array([0, 640]))
    whole, part = (sampled(teacher, text, VectorSettings(pca=pca)).vectors.double() for pca in (0, 3))
    centred = whole - whole.mean(0)
    singular = torch.linalg.svdvals(centred)
    torch.testing.assert_close(torch.linalg.svdvals(part), singular[:3], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(part.T @ part, torch.diag(singular[:3].square()), rtol=1e-3, atol=1e-2)


def test_states_belong_to_the_blocks_of_their_words(teacher: Decoder, corpus: Corpus) -> None:
    support = blocked(corpus, 4)
    clusters = found(support, corpus.train, teacher)
    assert bool(clusters.used.all())
    tokens = torch.from_numpy(corpus.train.ids[:320].astype(np.int64)).view(20, 16)
    states = StateLabeller(teacher, clusters, support, VectorSettings())(tokens)
    assert bool((support.states_of(tokens) == states[..., None]).any(2).all())
    assert states.unique().shape[0] == support.num_states


@pytest.mark.parametrize("dense", [True, False])
def test_each_token_gets_its_nearest_centroid(teacher: Decoder, corpus: Corpus, dense: bool, monkeypatch) -> None:
    support = dense_support(corpus.tokenizer.vocab_size, 7) if dense else blocked(corpus, 4)
    settings = VectorSettings(pca=5)
    clusters = found(support, corpus.train, teacher, vectors=settings)
    tokens = torch.from_numpy(corpus.valid.ids[:96].astype(np.int64)).view(6, 16)
    assert clusters.projection is not None
    vectors = clusters.projection(contextual_vectors(teacher, tokens, settings))
    centroids = clusters.centroids.flatten(0, 1)
    distance = torch.cdist(vectors.flatten(0, 1).double(), centroids.double())
    own = torch.zeros(96, support.num_states, dtype=torch.bool).scatter_(
        1, support.states_of(tokens).flatten(0, 1), True
    )
    # A few vectors at a time.
    monkeypatch.setattr("vlhmm.distillation.lvd.assign.TILE_BYTES", 1000)
    states = StateLabeller(teacher, clusters, support, settings)(tokens)
    assert torch.equal(states.flatten(), distance.masked_fill(~own, torch.inf).argmin(1))


def test_labels_of_a_graph_are_those_of_each_batch(teacher: Decoder, corpus: Corpus, monkeypatch) -> None:
    """The graph's part is played by the work itself: buffers are filled and read in the right order."""
    support = dense_support(corpus.tokenizer.vocab_size, 7)
    clusters = found(support, corpus.train, teacher)
    eager = StateLabeller(teacher, clusters, support, VectorSettings())
    made = graphs_on_cpu(monkeypatch)
    by_graph = StateLabeller(teacher, clusters, support, VectorSettings())
    ids = torch.from_numpy(corpus.train.ids[:640].astype(np.int64))
    # Batches of one size, then of another, then of the first again.
    batches = [*ids.view(10, 4, 16), *ids.view(5, 8, 16), *ids.view(10, 4, 16)]
    labels = [by_graph(batch) for batch in batches]
    assert all(torch.equal(states, eager(batch)) for states, batch in zip(labels, batches, strict=True))
    assert [graph.replays for graph in made] == [8, 3, 8]


def test_states_have_their_centroids_as_embeddings(teacher: Decoder, corpus: Corpus) -> None:
    support = blocked(corpus, 4)
    clusters = found(support, corpus.train, teacher)
    model = linear_hmm(Blocks(support.group_of_word.numpy(), 3), 4, teacher.settings.dim)
    set_state_embeddings(model, clusters.of_states(support))
    set_word_embeddings(model, teacher.output_matrix())
    for block in range(3):
        for column in range(4):
            row = model.encoder.embedding.weight[support.states_of_group[block, column]]  # type: ignore[union-attr]
            assert torch.equal(row, clusters.centroids[block, column])
    assert torch.equal(model.emission.words.weight, teacher.model.embed_tokens.weight)  # type: ignore[union-attr]
    # A state that no vector is near to is like the mean of those that have some.
    used = clusters.used.clone()
    used[1, 2] = False
    vectors = replace(clusters, used=used).of_states(support)
    torch.testing.assert_close(vectors[support.states_of_group[1, 2]], clusters.centroids[used].mean(0))


def test_eos_can_have_the_last_state_to_itself(teacher: Decoder, corpus: Corpus) -> None:
    eos, support = corpus.tokenizer.eos_id, dense_support(corpus.tokenizer.vocab_size, 5)
    clusters = found(support, corpus.train, teacher, single_word=eos)
    tokens = torch.from_numpy(corpus.train.ids[:320].astype(np.int64)).view(20, 16)
    states = StateLabeller(teacher, clusters, support, VectorSettings())(tokens)
    assert torch.equal(states == 4, tokens == eos)
    assert set(states.unique().tolist()) == set(range(5))


def test_blocks_with_few_vectors_leave_states_unused(corpus: Corpus) -> None:
    num_words = corpus.tokenizer.vocab_size
    teacher = TableTeacher(torch.randn(num_words, 6, generator=torch.Generator().manual_seed(0)))
    support = cloned_support(num_words, 3)
    clusters = found(support, corpus.train, teacher)
    # A word's vectors are all the same, so one of its three clones is enough.
    met = torch.from_numpy(np.bincount(corpus.train.ids, minlength=num_words) > 0)
    assert torch.equal(clusters.used.sum(1), met.long())
    tokens = torch.from_numpy(corpus.train.ids[:160].astype(np.int64)).view(10, 16)
    states = StateLabeller(teacher, clusters, support, VectorSettings())(tokens)
    assert torch.equal(states // 3, tokens)
    assert bool(clusters.used.flatten()[states].all())


def test_clusters_come_back_from_their_file(teacher: Decoder, corpus: Corpus, tmp_path: Path) -> None:
    clusters = found(blocked(corpus, 3), corpus.train, teacher, vectors=VectorSettings(pca=4))
    clusters.save(tmp_path / "clusters", "about them")
    loaded, about = StateClusters.load(tmp_path / "clusters")
    assert about == "about them"
    assert torch.equal(loaded.centroids, clusters.centroids)
    assert torch.equal(loaded.used, clusters.used)
    assert loaded.projection is not None
    assert clusters.projection is not None
    assert torch.equal(loaded.projection.basis, clusters.projection.basis)
    assert (loaded.single_word, loaded.distance) == (None, clusters.distance)


def test_what_cannot_be_clustered_is_refused_before_the_teacher_reads(corpus: Corpus) -> None:
    class Untouched(TableTeacher):
        def hidden(self, tokens: torch.Tensor, layer: int) -> torch.Tensor:
            raise AssertionError("the teacher was asked")

    num_words = corpus.tokenizer.vocab_size
    teacher = Untouched(torch.zeros(num_words, 4))
    text = Tokens(corpus.train.ids[:64], np.array([0, 64]))
    with pytest.raises(ValueError, match="60 vectors cannot make 61 clusters"):
        found(dense_support(num_words, 61), text, teacher)
    with pytest.raises(ValueError, match="these blocks overlap"):
        found(uniform_support(num_words, 8, 3, torch.Generator()), text, teacher)
    with pytest.raises(ValueError, match="3 blocks of 2: in a blocked HMM"):
        found(blocked(corpus, 2), text, teacher, single_word=0)
    with pytest.raises(ValueError, match=f"has {num_words} tokens, but the model has {num_words + 1}"):
        found(dense_support(num_words + 1, 4), text, teacher)
    with pytest.raises(ValueError, match="layer is 2, but table has layers 0"):
        found(dense_support(num_words, 4), text, teacher, vectors=VectorSettings(layer=2))
    with pytest.raises(ValueError, match="a window has 2000 tokens, but table reads at most 1000"):
        check_teacher(teacher, VectorSettings(), num_words, 2000)
    both_sides = Untouched(torch.zeros(num_words, 4), sees_ahead=True)
    with pytest.raises(ValueError, match='use position "at"'):
        found(dense_support(num_words, 4), text, both_sides, vectors=VectorSettings("before"))


def test_vectors_that_do_not_fit_are_refused_with_their_size(corpus: Corpus, monkeypatch) -> None:
    teacher = TableTeacher(torch.zeros(corpus.tokenizer.vocab_size, 4))
    monkeypatch.setattr("vlhmm.memory._system_available", lambda: 1000)
    with pytest.raises(ValueError, match=r"vectors of 4 components would take .* GiB"):
        sampled(teacher, corpus.train, VectorSettings())


def test_a_teacher_of_few_different_vectors_is_refused_for_many_states(corpus: Corpus) -> None:
    teacher = TableTeacher(torch.eye(corpus.tokenizer.vocab_size)[:, :3].contiguous())
    with pytest.raises(ValueError, match="of 9 clusters stay empty"):
        found(dense_support(corpus.tokenizer.vocab_size, 9), corpus.train, teacher)


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_a_broken_teacher_is_named(corpus: Corpus, value: float) -> None:
    table = torch.zeros(corpus.tokenizer.vocab_size, 4)
    table[int(corpus.train.ids[5])] = value
    with pytest.raises(BrokenTeacherError, match="table gives NaN or infinity"):
        sampled(TableTeacher(table), corpus.train, VectorSettings())
    sound = found(dense_support(table.shape[0], 2), corpus.train, TableTeacher(torch.randn(table.shape)))
    label = StateLabeller(TableTeacher(table), sound, dense_support(table.shape[0], 2), VectorSettings())
    label(torch.from_numpy(corpus.train.ids[:32].astype(np.int64)).view(2, 16))
    with pytest.raises(BrokenTeacherError, match="table gives NaN or infinity"):
        label.require_sound()
