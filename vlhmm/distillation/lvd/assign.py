"""From a teacher's vectors to the states of an HMM: clusters within each block of words, and every token's nearest one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.capture import Graphed
from vlhmm.data import Tokens
from vlhmm.distillation.decoder import Decoder
from vlhmm.distillation.lvd.kmeans import Clusters, KMeansEvent, KMeansSettings, cluster_vectors
from vlhmm.distillation.lvd.teachers import VectorTeacher
from vlhmm.distillation.lvd.vectors import (
    BrokenTeacherError,
    Projection,
    VectorSample,
    VectorSettings,
    VectorsEvent,
    check_teacher,
    contextual_vectors,
    sample_vectors,
)
from vlhmm.distributed import ALONE, World
from vlhmm.precision import float32_products
from vlhmm.records import convert
from vlhmm.support import Support
from vlhmm.tensor_file import FolderError, read_tensors, write_tensors
from vlhmm.training.trainer import relay

TILE_BYTES = 1 << 28
"""What the centroids of a batch's words may take at once."""


@dataclass(frozen=True)
class ClusterEvent:
    """A pass of k-means over the vectors of one block's words."""

    block: int
    num_blocks: int
    kmeans: KMeansEvent


@dataclass(frozen=True)
class StateClusters:
    """A centroid for every state: the k-th of block g is that of the state `states_of_group[g, k]`."""

    centroids: Float[Tensor, "G K d"]
    used: Bool[Tensor, "G K"]
    """Blocks with fewer vectors than states leave some without a centroid; no token is given those."""
    projection: Projection | None
    single_word: int | None = None
    """A word (EOS) that has the last state to itself; its vectors were not clustered."""
    distance: float = 0.0
    """Mean squared distance of the vectors to their centroids."""

    def of_states(self, support: Support) -> Float[Tensor, "Z d"]:
        """A vector for every state, as `vlhmm.models.set_state_embeddings` takes them: its centroid.

        A state without one has the mean of all those used, so that it is like any other of them.
        """
        mean = self.centroids[self.used].mean(dim=0)
        every = torch.where(self.used[:, :, None], self.centroids, mean).flatten(0, 1)
        vectors = mean.expand(support.num_states, -1).clone()
        vectors[support.states_of_group.to(every.device).flatten()] = every
        return vectors

    def save(self, path: Path, about: str) -> None:
        """`about`: what they were made from, as text that `load` returns."""
        tensors = {"centroids": self.centroids, "used": self.used}
        if self.projection is not None:
            tensors |= {"mean": self.projection.mean, "basis": self.projection.basis}
        word = -1 if self.single_word is None else self.single_word
        tensors |= {"single_word": torch.tensor(word), "distance": torch.tensor(self.distance, dtype=torch.float64)}
        write_tensors(path, tensors, {"about": about})

    @classmethod
    def load(cls, path: Path) -> tuple[StateClusters, str]:
        tensors, metadata = read_tensors(path)
        missing = {"centroids", "used", "single_word", "distance"} - tensors.keys()
        if missing or "about" not in metadata or ("mean" in tensors) != ("basis" in tensors):
            raise FolderError(
                f"{path} holds no clusters of states: it is another file of vlhmm, or was edited; delete it"
            )
        projection = Projection(tensors["mean"], tensors["basis"]) if "mean" in tensors else None
        word = int(tensors["single_word"])
        clusters = cls(
            tensors["centroids"], tensors["used"], projection, None if word < 0 else word, float(tensors["distance"])
        )
        return clusters, metadata["about"]


def check_clustering(support: Support, single_word: int | None, num_vectors: int) -> None:
    """Refuses, before anything is read, what cannot be clustered."""
    if not support.partition:
        raise ValueError(
            "clusters become the states of a block of words, but these blocks overlap: use a dense, blocked or cloned HMM"
        )
    if single_word is not None and (support.num_groups > 1 or support.num_states < 2):
        raise ValueError(
            f"a state of its own for one word needs one block of at least 2 states, but there are {support.num_groups} blocks "
            f"of {support.states_per_word}: in a blocked HMM give EOS its own block instead"
        )
    num_clusters = support.num_states - (single_word is not None)
    if num_vectors < num_clusters:
        raise ValueError(
            f"{num_vectors:,} vectors cannot make {num_clusters:,} clusters: cluster more tokens, or use fewer states"
        )


def find_states(
    support: Support,
    tokens: Tokens,
    teacher: VectorTeacher,
    vectors: VectorSettings,
    clustering: KMeansSettings,
    *,
    window: int,
    single_word: int | None = None,
    generator: torch.Generator,
    here: World = ALONE,
) -> Iterator[VectorsEvent | ClusterEvent | StateClusters]:
    """Clusters the teacher's vectors of a text, an event at a time; the last one is `StateClusters`.

    A word is emitted by the states of its block alone, so the vectors of each block's words are clustered by themselves, into as
    many clusters as it has states. A dense HMM is one block.
    """
    check_teacher(teacher, vectors, support.num_words, window)
    check_clustering(support, single_word, len(tokens) // window * (window - 1))
    sample = yield from relay(sample_vectors(teacher, tokens, vectors, window, here), VectorSample)
    yield from cluster_states(
        support, sample, clustering, single_word=single_word, generator=generator, device=teacher.device, here=here
    )


def cluster_states(
    support: Support,
    sample: VectorSample,
    clustering: KMeansSettings,
    *,
    single_word: int | None = None,
    generator: torch.Generator,
    device: torch.device,
    here: World = ALONE,
) -> Iterator[ClusterEvent | StateClusters]:
    """k-means in every block; the last event is `StateClusters`."""
    vectors, words = sample.vectors, sample.words
    num_blocks, states = support.num_groups, support.states_per_word
    if single_word is not None:
        others = (words != single_word).nonzero()[:, 0]
        vectors, words = vectors.index_select(0, others), words.index_select(0, others)
    centroids = torch.zeros(num_blocks, states, vectors.shape[1], device=device)
    used = torch.zeros(num_blocks, states, dtype=torch.bool, device=device)
    total, block_of_word = 0.0, support.group_of_word.to(words.device)
    for block in range(num_blocks):
        members = vectors
        if num_blocks > 1:
            members = vectors.index_select(0, (block_of_word[words] == block).nonzero()[:, 0])
        # A block whose words do not occur in the sample has no centroids.
        num_clusters = states - (single_word is not None)
        if num_blocks > 1:
            num_clusters = min(num_clusters, members.shape[0])
        if not num_clusters:
            continue
        found: Clusters | None = None
        found_clusters = cluster_vectors(
            members, num_clusters, clustering, generator=generator, device=device, here=here
        )
        for event in found_clusters:
            if isinstance(event, Clusters):
                found = event
            else:
                yield ClusterEvent(block, num_blocks, event)
        assert found is not None
        num_empty = int((found.counts == 0).sum())
        if num_empty and num_blocks == 1:
            raise ValueError(
                f"{num_empty:,} of {num_clusters:,} clusters stay empty: the {members.shape[0]:,} vectors have too few different "
                "values; take a later layer, cluster more tokens, or use fewer states"
            )
        centroids[block, :num_clusters] = found.centroids
        used[block, :num_clusters] = found.counts > 0
        total += found.distance * members.shape[0]
    yield StateClusters(centroids, used, sample.projection, single_word, total / vectors.shape[0])


@torch.no_grad()
def nearest_states(
    clusters: StateClusters, support: Support, vectors: Float[Tensor, "N D"], words: Int[Tensor, " N"]
) -> Int[Tensor, " N"]:
    """The state of each vector's nearest centroid among those of its word's block; the block's first if it has none."""
    if clusters.projection is not None:
        vectors = clusters.projection(vectors)
    num_blocks, states, width = clusters.centroids.shape
    # |v - c|^2 without the |v|^2 that all centroids share; an unused one is never the nearest.
    size = torch.where(clusters.used, clusters.centroids.square().sum(dim=2), torch.inf)
    if num_blocks == 1:
        at_once = max(1, TILE_BYTES // (4 * states))
        found = [(size[0] - 2 * (part @ clusters.centroids[0].T)).argmin(dim=1) for part in vectors.split(at_once)]
        column = torch.cat(found)
    else:
        block = support.group_of_word[words]
        at_once = max(1, TILE_BYTES // (4 * states * width))
        found = [
            (size[some] - 2 * torch.bmm(clusters.centroids[some], part[:, :, None])[:, :, 0]).argmin(dim=1)
            for part, some in zip(vectors.split(at_once), block.split(at_once), strict=True)
        ]
        column = torch.cat(found) + block * states
    if clusters.single_word is not None:
        column = torch.where(words == clusters.single_word, support.num_states - 1, column)
    return column


class StateLabeller:
    """Gives every token of a batch its state: the teacher reads the batch, and the nearest centroid decides.

    On a GPU, batches of one size after the other are labelled by a CUDA graph where the teacher is a `Decoder`.
    """

    def __init__(
        self, teacher: VectorTeacher, clusters: StateClusters, support: Support, vectors: VectorSettings
    ) -> None:
        self.teacher, self.vectors = teacher, vectors
        self.clusters, self.support = convert(clusters, teacher.device), convert(support, teacher.device)
        self._broken = torch.zeros((), dtype=torch.bool, device=teacher.device)
        self._graphed = Graphed[Tensor](
            teacher.device,
            # Other models may synchronise host and device, which a CUDA graph cannot capture.
            enabled=isinstance(teacher, Decoder),
            eager_calls=2,
            # Distances in float32, whatever precision another thread has set: labels must not depend on concurrent work.
            launching=partial(float32_products, "highest", teacher.device),
        )
        self._tokens = torch.zeros(0, 0, dtype=torch.int64)

    def __call__(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        tokens = tokens.to(self.teacher.device)
        if tokens.shape != self._tokens.shape:
            self._tokens = tokens.clone()
            self._graphed.forget()
        self._tokens.copy_(tokens)
        return self._graphed(lambda: self._nearest(self._tokens)).clone()

    @torch.no_grad()
    def _nearest(self, tokens: Int[Tensor, "B T"]) -> Int[Tensor, "B T"]:
        found = contextual_vectors(self.teacher, tokens, self.vectors).flatten(0, 1)
        # Accumulated on the device and read later, so that there is no host-device synchronisation in every batch.
        self._broken |= ~found.isfinite().all()
        return nearest_states(self.clusters, self.support, found, tokens.flatten()).view_as(tokens)

    def require_sound(self) -> None:
        """Raises if the teacher has given NaN or infinity in any batch so far."""
        if bool(self._broken):
            raise BrokenTeacherError(f"{self.teacher.name} gives NaN or infinity: its weights are broken")
