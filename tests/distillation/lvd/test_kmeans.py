"""k-means: as good as scikit-learn's, repeatable, and without empty clusters."""

import itertools

import pytest
import torch
from sklearn.cluster import KMeans

from vlhmm.distillation.lvd.kmeans import Clusters, KMeansEvent, KMeansSettings, cluster_vectors, nearest_centroids


def blobs(num: int, centres: int, dim: int, seed: int = 0, shift: float = 0.0) -> torch.Tensor:
    """Points around centres of different weight, far from the origin if asked."""
    generator = torch.Generator().manual_seed(seed)
    where = 3 * torch.randn(centres, dim, generator=generator)
    chosen = torch.multinomial(torch.rand(centres, generator=generator) + 0.1, num, True, generator=generator)
    return where[chosen] + torch.randn(num, dim, generator=generator) + shift


def clustered(vectors: torch.Tensor, num: int, seed: int = 0, **settings: object) -> tuple[list[KMeansEvent], Clusters]:
    generator = torch.Generator().manual_seed(seed)
    *passes, found = cluster_vectors(vectors, num, KMeansSettings(**settings), generator=generator)
    assert isinstance(found, Clusters)
    return passes, found


@pytest.mark.parametrize("init", ["kmeans++", "sample"])
def test_lloyd_from_one_start_ends_where_scikit_learn_does(init: str) -> None:
    vectors = blobs(500, 8, 5)
    # No pass at all but the first: its centres are where both begin.
    _, begin = clustered(vectors, 8, init=init, iterations=1, batch_size=500, tolerance=0.0)
    _, ours = clustered(vectors, 8, init=init, iterations=60, batch_size=500, tolerance=0.0)
    theirs = KMeans(8, init=begin.centroids.double().numpy(), n_init=1, max_iter=300, tol=0).fit(vectors.double())
    assert ours.distance * 500 == pytest.approx(theirs.inertia_, rel=1e-5)
    torch.testing.assert_close(ours.centroids.double(), torch.from_numpy(theirs.cluster_centers_), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("batch_size", [0, 4000, 256], ids=["default", "all", "mini-batch"])
def test_over_many_starts_no_worse_than_scikit_learn(batch_size: int) -> None:
    # One start says little: those of either program differ by 10 %.
    vectors, starts = blobs(2000, 24, 12, seed=1), range(12)
    theirs = sum(KMeans(20, n_init=1, random_state=seed).fit(vectors).inertia_ for seed in starts)
    ours = sum(clustered(vectors, 20, seed=seed, batch_size=batch_size)[1].distance * 2000 for seed in starts)
    assert ours < 1.03 * theirs


def test_passes_go_on_until_one_gains_less_than_the_tolerance() -> None:
    passes, _ = clustered(blobs(2000, 24, 12, seed=1), 20, iterations=100, batch_size=2000, tolerance=1e-3)
    gains = [1 - after.distance / before.distance for before, after in itertools.pairwise(passes)]
    assert len(passes) > 3
    assert all(gain > 1e-3 for gain in gains[:-1])
    assert gains[-1] <= 1e-3


def test_the_distance_is_that_of_every_vector_to_its_nearest_centroid() -> None:
    vectors = blobs(700, 5, 4)
    _, found = clustered(vectors, 6, batch_size=128)
    squared = torch.cdist(vectors.double(), found.centroids.double()).square()
    assert found.distance == pytest.approx(float(squared.min(1).values.mean()), rel=1e-5)
    assert torch.equal(found.counts, squared.argmin(1).bincount(minlength=6))


def test_passes_of_lloyd_never_go_up() -> None:
    passes, found = clustered(blobs(900, 10, 6), 10, init="sample", iterations=15, batch_size=900, tolerance=0.0)
    distances = [event.distance for event in passes if not event.num_empty] + [found.distance]
    assert len(distances) > 5
    assert all(after <= before * (1 + 1e-6) for before, after in itertools.pairwise(distances))


def test_far_from_the_origin_nothing_is_lost() -> None:
    near, far = blobs(600, 6, 5), blobs(600, 6, 5, shift=3000.0)
    (_, one), (_, other) = clustered(near, 6, batch_size=600), clustered(far, 6, batch_size=600)
    # float32 keeps 3 decimals at 3,000; squares of it would keep none.
    assert other.distance == pytest.approx(one.distance, rel=1e-2)


def test_the_generator_decides_everything() -> None:
    vectors = blobs(3000, 9, 4)
    (_, one), (_, same), (_, other) = (clustered(vectors, 9, seed=seed, batch_size=500) for seed in (1, 1, 2))
    assert torch.equal(one.centroids, same.centroids)
    assert not torch.equal(one.centroids, other.centroids)


def test_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = blobs(500, 5, 4)
    _, whole = clustered(vectors, 5, batch_size=500)
    monkeypatch.setattr("vlhmm.distillation.lvd.kmeans.CHUNK_BYTES", 4 * 5 * 64)
    _, parts = clustered(vectors, 5, batch_size=500)
    torch.testing.assert_close(parts.centroids, whole.centroids, rtol=1e-5, atol=1e-5)
    assert torch.equal(parts.counts, whole.counts)


@pytest.mark.parametrize("batch_size", [300, 50])
def test_no_cluster_stays_empty_if_there_are_enough_vectors(batch_size: int) -> None:
    # From a sample most centres begin on the same point, so all but one of them are empty.
    vectors = torch.cat([torch.zeros(280, 2), torch.arange(40.0).view(20, 2) + 5])
    passes, found = clustered(vectors, 12, init="sample", batch_size=batch_size)
    assert any(event.num_empty for event in passes)
    assert int(found.counts.min()) > 0
    assert int(found.counts.sum()) == 300


def test_fewer_distinct_vectors_than_clusters_leave_some_empty() -> None:
    _, found = clustered(torch.eye(3).repeat(10, 1), 5)
    assert int((found.counts > 0).sum()) == 3
    assert found.distance == pytest.approx(0.0, abs=1e-6)
    assert bool(found.centroids.isfinite().all())


def test_as_many_clusters_as_vectors_are_the_vectors() -> None:
    vectors = blobs(9, 3, 2)
    _, found = clustered(vectors, 9)
    assert found.distance == pytest.approx(0.0, abs=1e-6)
    labels, _ = nearest_centroids(vectors, found.centroids)
    assert sorted(labels.tolist()) == list(range(9))


@pytest.mark.parametrize("num", [0, 11])
def test_impossible_numbers_of_clusters_are_refused(num: int) -> None:
    with pytest.raises(ValueError, match=f"{num} clusters"):
        clustered(blobs(10, 2, 2), num)


@pytest.mark.gpu
def test_on_a_gpu_the_same_bits_come_every_time() -> None:
    vectors = blobs(20_000, 30, 16).cuda()
    runs = [list(cluster_vectors(vectors, 24, generator=torch.Generator().manual_seed(0)))[-1] for _ in range(2)]
    assert torch.equal(runs[0].centroids, runs[1].centroids)
    _, ours = clustered(vectors.cpu(), 24, batch_size=20_000)
    assert runs[0].distance == pytest.approx(ours.distance, rel=1e-3)
