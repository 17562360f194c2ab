"""k-means on millions of vectors: Lloyd's iterations over all of them, or mini-batches; always float32 products in chunks."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.distributed import ALONE, World, all_rows, broadcast_tensors, shard, sum_in_order
from vlhmm.precision import float32_products

CHUNK_BYTES = 1 << 28
"""What the distances of one chunk of vectors may take."""
CPU_CHUNK = 1 << 12
"""Vectors of a chunk on a CPU, at most: ranks share the chunks of a mini-batch."""
CPU_BATCH = 1 << 14
"""Vectors of a mini-batch on a CPU, at the least; it grows with the number of clusters."""
INIT_VECTORS = 64
"""k-means++ draws its centres from a sample of so many vectors a cluster."""
RESCUES = 10
"""Rounds in which clusters that are still empty at the end get another centre."""


@dataclass(frozen=True)
class KMeansSettings:
    iterations: int = 20
    """Passes over the vectors, at most."""
    init: Literal["kmeans++", "sample"] = "kmeans++"
    """kmeans++: each first centre is drawn by its squared distance to those before, the best of a few draws; sample: random
    vectors."""
    batch_size: int = 0
    """Vectors between two updates of the centres; 0: all of them on a GPU, mini-batches on a CPU."""
    tolerance: float = 1e-4
    """Passes end when one lowers the mean squared distance by less than this part of it."""

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise ValueError(f"iterations is {self.iterations}, but must be at least 1")
        for name in ("batch_size", "tolerance"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} is {getattr(self, name)}, but must be at least 0")


@dataclass(frozen=True)
class KMeansEvent:
    """One pass was made."""

    iteration: int
    iterations: int
    distance: float
    """Mean squared distance of a vector to its centre, as seen during the pass."""
    num_empty: int
    """Clusters that no vector was nearest to; each got a far vector as its new centre."""


@dataclass(frozen=True)
class Clusters:
    """The last event."""

    centroids: Float[Tensor, "K D"]
    counts: Int[Tensor, " K"]
    """Vectors nearest to each centre; 0 only where there are fewer distinct vectors than clusters."""
    distance: float
    """Mean squared distance of all vectors to their centres."""


def cluster_vectors(
    vectors: Float[Tensor, "N D"],
    num_clusters: int,
    settings: KMeansSettings | None = None,
    *,
    generator: torch.Generator,
    device: torch.device | None = None,
    here: World = ALONE,
) -> Iterator[KMeansEvent | Clusters]:
    """Clusters the vectors, an event a pass; the last event is `Clusters`.

    `generator` is on the CPU and decides everything. `device`: where products are made; default: where the vectors are. Several
    ranks, which all have all vectors, share the products, and find the same clusters as one.
    """
    settings = settings or KMeansSettings()
    num_vectors = vectors.shape[0]
    if num_clusters < 1:
        raise ValueError(f"{num_clusters} clusters, at least 1 is needed")
    if num_vectors < num_clusters:
        raise ValueError(
            f"{num_vectors:,} vectors cannot make {num_clusters:,} clusters: give more text, or use fewer states"
        )
    device = device or vectors.device
    batch_size = settings.batch_size or (max(CPU_BATCH, 8 * num_clusters) if device.type == "cpu" else num_vectors)
    run = _Run(vectors, num_clusters, device, here)
    run.begin(settings.init, generator)
    last = math.inf
    for iteration in range(1, settings.iterations + 1):
        if batch_size >= num_vectors:
            found = run.update(None, fresh=True)
        else:
            order = torch.randperm(num_vectors, generator=generator).to(vectors.device)
            parts = [run.update(part, fresh=False) for part in order.split(batch_size)]
            found = _Pass(sum(part.total for part in parts), parts[-1].num_empty)
        distance = found.total / num_vectors
        yield KMeansEvent(iteration, settings.iterations, distance, found.num_empty)
        if not found.num_empty and distance >= (1 - settings.tolerance) * last:
            break
        last = distance
    yield run.finished()


@dataclass(frozen=True)
class _Pass:
    total: float
    """Squared distances, summed."""
    num_empty: int


class _Run:
    """The centres, and how vectors change them."""

    def __init__(self, vectors: Float[Tensor, "N D"], num_clusters: int, device: torch.device, here: World) -> None:
        self.vectors, self.num_clusters, self.device, self.here = vectors, num_clusters, device, here
        self.chunk = max(1, CHUNK_BYTES // (4 * max(num_clusters, vectors.shape[1])))
        if device.type == "cpu":
            self.chunk = min(self.chunk, CPU_CHUNK)
        # Vectors are centred: without that distances are differences of large numbers (cancellation).
        total = torch.zeros(vectors.shape[1], dtype=torch.float64, device=device)
        largest = 0.0
        for part in vectors.split(self.chunk):
            total += part.to(device).double().sum(dim=0)
            largest = max(largest, float(part.abs().max()))
        self.mean = self._of_first((total / vectors.shape[0]).float())
        # Values are rounded to multiples of a power of two, so that float64 sums (53 bits) are exact. They then do not depend on the
        # order of addition or the number of ranks.
        self.grain = 2.0 ** (math.ceil(math.log2(max(2 * largest * vectors.shape[0], 1e-30))) - 52)
        self.centroids = torch.zeros(num_clusters, vectors.shape[1], device=device)
        self.weights = torch.zeros(num_clusters, dtype=torch.float64, device=device)
        """Vectors that each centre is the mean of."""

    def _of_first(self, values: Tensor) -> Tensor:
        """Broadcasts the first rank's values, since devices may round differently."""
        return broadcast_tensors({"values": values}, self.here, "clustering vectors")["values"].to(self.device)

    def _centred(self, numbers: Int[Tensor, " n"]) -> Float[Tensor, "n D"]:
        rows = self.vectors.index_select(0, numbers.to(self.vectors.device))
        return rows.to(self.device, torch.float32) - self.mean

    def begin(self, init: Literal["kmeans++", "sample"], generator: torch.Generator) -> None:
        self._begin(init, generator)
        self.centroids = self._of_first(self.centroids)

    def _begin(self, init: Literal["kmeans++", "sample"], generator: torch.Generator) -> None:
        order = torch.randperm(self.vectors.shape[0], generator=generator)
        if init == "sample":
            self.centroids = self._centred(order[: self.num_clusters])
            return
        sample = self._centred(order[: INIT_VECTORS * self.num_clusters])
        # Greedy k-means++: of several candidates the one with the smallest total distance. All random numbers are drawn at once, so
        # that there is no host-device synchronisation between two centres.
        tries = 2 + int(math.log(self.num_clusters))
        draws = torch.rand(self.num_clusters, tries, dtype=torch.float64, generator=generator).to(self.device)
        self.centroids[0] = sample[0]
        nearest = (sample - sample[0]).square().sum(dim=1)
        size = sample.square().sum(dim=1)
        for number in range(1, self.num_clusters):
            heap = nearest.double().cumsum(0)
            place = torch.searchsorted(heap, draws[number] * heap[-1], right=True).clamp(max=sample.shape[0] - 1)
            candidates = sample.index_select(0, place)
            with float32_products("highest", self.device):
                distance = torch.addmm(size, candidates, sample.T, alpha=-2) + size.index_select(0, place)[:, None]
            left = torch.minimum(nearest, distance.clamp(min=0))
            best = left.sum(dim=1).argmin(dim=0, keepdim=True)
            self.centroids[number] = candidates.index_select(0, best)[0]
            nearest = left.index_select(0, best)[0]

    def update(self, numbers: Int[Tensor, " n"] | None, *, fresh: bool) -> _Pass:
        """Moves the centres to the means of the vectors of those numbers (None: of all) nearest to them.

        Not `fresh`: to the means of these and of all vectors that moved them before.
        """
        sums = torch.zeros(self.centroids.shape, dtype=torch.float64, device=self.device)
        counts = torch.zeros_like(self.weights)
        distances = []
        for part in self._chunks(numbers):
            label, distance = nearest_centroids(part, self.centroids)
            part_sums, part_counts = _sums(part, label, self.num_clusters)
            sums += (part_sums / self.grain).round() * self.grain
            counts += part_counts
            distances.append(distance)
        sums, counts = (sum_in_order(one, self.here, "clustering vectors") for one in (sums, counts))
        distance = self._all(distances)
        before = torch.zeros_like(self.weights) if fresh else self.weights
        self.weights = before + counts
        step = (sums - counts[:, None] * self.centroids) / self.weights.clamp(min=1)[:, None]
        self.centroids += step.float()
        empty = (self.weights == 0).nonzero()[:, 0]
        self._move_to_far(empty, distance, numbers)
        return _Pass(float(distance.double().sum()), empty.shape[0])

    def _chunks(self, numbers: Int[Tensor, " n"] | None) -> Iterator[Float[Tensor, "n D"]]:
        """Those of this rank."""
        count = (self.vectors if numbers is None else numbers).shape[0]
        for first in shard(range(0, count, self.chunk), self.here):
            some = slice(first, first + self.chunk)
            if numbers is None:
                yield self.vectors[some].to(self.device, torch.float32) - self.mean
            else:
                yield self._centred(numbers[some])

    def _all(self, distances: list[Tensor]) -> Float[Tensor, " N"]:
        """Those of all ranks, in the order of vectors."""
        own = torch.cat([self.centroids.new_zeros(0), *distances])
        return all_rows(own, self.here, "clustering vectors")

    def _move_to_far(
        self, empty: Int[Tensor, " E"], distance: Float[Tensor, " n"], numbers: Int[Tensor, " n"] | None
    ) -> None:
        """Empty clusters: their centres move to the vectors with the largest distance to their own centre."""
        if not empty.shape[0]:
            return
        far = distance.topk(min(empty.shape[0], distance.shape[0])).indices
        chosen = far if numbers is None else numbers.to(far.device).index_select(0, far)
        self.centroids[empty[: chosen.shape[0]]] = self._centred(chosen)

    def finished(self) -> Clusters:
        """The final assignment of every vector to its nearest centre; centres of empty clusters are moved, and it is repeated."""
        for attempt in range(RESCUES + 1):
            counts = torch.zeros(self.num_clusters, dtype=torch.int64, device=self.device)
            distances = []
            for part in self._chunks(None):
                label, distance = nearest_centroids(part, self.centroids)
                counts += torch.bincount(label, minlength=self.num_clusters)
                distances.append(distance)
            counts = sum_in_order(counts, self.here, "clustering vectors")
            distance = self._all(distances)
            empty = (counts == 0).nonzero()[:, 0]
            if not empty.shape[0] or attempt == RESCUES:
                break
            self._move_to_far(empty, distance, None)
        return Clusters(self.centroids + self.mean, counts, float(distance.double().mean()))


def nearest_centroids(
    vectors: Float[Tensor, "n D"], centroids: Float[Tensor, "K D"]
) -> tuple[Int[Tensor, " n"], Float[Tensor, " n"]]:
    """The number of the nearest centroid and the squared distance to it, for as many vectors as fit at once."""
    # |v - c|^2 up to the term |v|^2, which is the same for all centroids.
    with float32_products("highest", vectors.device):
        relative = torch.addmm(centroids.square().sum(dim=1), vectors, centroids.T, alpha=-2)
    best = relative.min(dim=1)
    return best.indices, (best.values + vectors.square().sum(dim=1)).clamp(min=0)


def _sums(
    vectors: Float[Tensor, "n D"], label: Int[Tensor, " n"], num_clusters: int
) -> tuple[Float[Tensor, "K D"], Float[Tensor, " K"]]:
    """The sum and the number of each cluster's vectors."""
    counts = torch.bincount(label, minlength=num_clusters).double()
    if vectors.is_cuda:
        # On a GPU `index_add_` uses atomics in arbitrary order; a one-hot product is deterministic.
        member = torch.zeros(vectors.shape[0], num_clusters, device=vectors.device).scatter_(1, label[:, None], 1.0)
        with float32_products("highest", vectors.device):
            return (member.T @ vectors).double(), counts
    sums = torch.zeros(num_clusters, vectors.shape[1]).index_add_(0, label, vectors)
    return sums.double(), counts
