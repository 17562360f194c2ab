"""A teacher's contextual vectors, streamed over a text: a sample to fit clusters on, and batches to assign."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.data import Tokens
from vlhmm.distillation.lvd.teachers import VectorTeacher
from vlhmm.distributed import ALONE, World, first_does, gather_when_done, shard, share_rows
from vlhmm.memory import available_bytes, require_memory
from vlhmm.precision import float32_products

CPU_TOKENS, GPU_TOKENS = 1 << 14, 1 << 16
"""Tokens that a teacher reads at once."""
PCA_VECTORS = 1 << 18
"""Vectors that the principal components are found on; they are the first of the sample."""
SPARE_BYTES = 2 << 30
"""What must stay free on a GPU beside the sample: the teacher and k-means work there."""


@dataclass(frozen=True)
class VectorSettings:
    position: Literal["at", "before"] = "at"
    """at: the vector that has read x_t; before: the one that predicts it, from the tokens before t alone."""
    layer: int = -1
    """Whose output: 0 are the embeddings, -1 the last layer, after its final norm."""
    pca: int = 0
    """Principal components that are kept; 0: the vectors as they are."""

    def __post_init__(self) -> None:
        if self.pca < 0:
            raise ValueError(f"pca is {self.pca}, but must be at least 0")


@dataclass(frozen=True)
class Projection:
    """v -> (v - mean) basis: the first principal components."""

    mean: Float[Tensor, " D"]
    basis: Float[Tensor, "D d"]

    def __call__(self, vectors: Float[Tensor, "... D"]) -> Float[Tensor, "... d"]:
        return (vectors - self.mean) @ self.basis

    def to(self, device: torch.device | str) -> Projection:
        return Projection(self.mean.to(device), self.basis.to(device))


@dataclass(frozen=True)
class VectorsEvent:
    """The teacher has read some more."""

    tokens: int
    total: int


@dataclass(frozen=True)
class VectorSample:
    """The last event: the vectors of a text, without those at the beginning of a window."""

    vectors: Float[Tensor, "N d"]
    words: Int[Tensor, " N"]
    projection: Projection | None


class BrokenTeacherError(ValueError):
    """The teacher gives NaN or infinity."""


def check_teacher(teacher: VectorTeacher, settings: VectorSettings, num_words: int, window: int) -> None:
    """Refuses, before anything is read, a teacher that cannot give these vectors for texts over so many words."""
    if teacher.num_words != num_words:
        raise ValueError(
            f"{teacher.name} has {teacher.num_words} tokens, but the model has {num_words}: they need one vocabulary"
        )
    if settings.position == "before" and teacher.sees_ahead:
        raise ValueError(
            f'{teacher.name} reads texts from both sides, so no vector comes before its token: use position "at"'
        )
    if not -1 <= settings.layer <= teacher.num_layers:
        raise ValueError(
            f"layer is {settings.layer}, but {teacher.name} has layers 0 (embeddings) to {teacher.num_layers}, -1 for the last"
        )
    if window > teacher.longest:
        raise ValueError(
            f"a window has {window} tokens, but {teacher.name} reads at most {teacher.longest}: make it smaller"
        )


def width_of(teacher: VectorTeacher, layer: int = -1) -> int:
    """Components of a layer's vectors."""
    return teacher.hidden(torch.zeros(1, 1, dtype=torch.int64, device=teacher.device), layer).shape[2]


@torch.no_grad()
def contextual_vectors(
    teacher: VectorTeacher, tokens: Int[Tensor, "B T"], settings: VectorSettings
) -> Float[Tensor, "B T D"]:
    """A vector for every token, in float32; so many sequences are read at a time as memory always holds."""
    at_once = read_at_once(teacher.device, tokens.shape[1])
    parts = [teacher.hidden(some, settings.layer).float() for some in tokens.to(teacher.device).split(at_once)]
    vectors = parts[0] if len(parts) == 1 else torch.cat(parts)
    return vectors[:, 1:] if settings.position == "at" else vectors[:, :-1]


@torch.no_grad()
def sample_vectors(
    teacher: VectorTeacher, tokens: Tokens, settings: VectorSettings, window: int, here: World = ALONE
) -> Iterator[VectorsEvent | VectorSample]:
    """The vectors of a text in windows of so many tokens, an event a batch; the last event is `VectorSample`.

    Ranks share the batches, and have all vectors in the end.

    The first position of each window is left out: in a causal model it knows nothing but its own token, and "before" it nothing.
    Kept on the teacher's device, or in main memory where they do not fit; refused with the number if neither holds them.
    """
    if window < 2:
        raise ValueError(f"a window has {window} token(s), but at least 2 are needed: the first gives no vector")
    num_windows = len(tokens) // window
    if not num_windows:
        raise ValueError(f"{len(tokens):,} tokens do not fill one window of {window}: give more text")
    device, width = teacher.device, width_of(teacher, settings.layer)
    if settings.pca > width:
        raise ValueError(
            f"pca is {settings.pca}, but the vectors of {teacher.name} have {width} components: keep fewer"
        )
    kept = settings.pca or width
    num_vectors = num_windows * (window - 1)
    where = _place(num_vectors, kept, device, f"{num_vectors:,} vectors of {kept} components")

    projection = None
    if settings.pca:
        found = first_does(
            lambda: _components(teacher, tokens, settings, window).to("cpu"), here, "principal components"
        )
        projection = found.to(device)
    vectors = torch.empty(num_vectors, kept, device=where)
    words = torch.empty(num_vectors, dtype=torch.int64, device=where)
    at_once = read_at_once(device, window)
    batches = range(0, num_windows, at_once)
    ends = [min(shard(batches, World(rank, here.size)).stop, num_windows) for rank in range(here.size)]
    own = shard(batches, here)
    begin = done = own.start * (window - 1)
    for read in windows_of(tokens, window, device, own):
        made = _sound(teacher, contextual_vectors(teacher, read, settings)[:, 1:].flatten(0, 1))
        end = done + made.shape[0]
        with float32_products("highest", device):
            vectors[done:end] = made if projection is None else projection(made)
        words[done:end] = read[:, 1:].flatten().to(where)
        done = end
        yield VectorsEvent(min(here.size * (done - begin) // (window - 1), num_windows) * window, num_windows * window)
    gather_when_done(None, here, "vectors of a teacher")
    for rows in (vectors, words):
        share_rows(rows, [end * (window - 1) for end in ends], here, "vectors of a teacher")
    yield VectorSample(vectors, words, projection)


def _place(num_vectors: int, width: int, device: torch.device, what: str) -> torch.device:
    # A word's number beside each vector.
    needed = num_vectors * (4 * width + 8)
    if device.type != "cpu" and needed + SPARE_BYTES <= available_bytes(device):
        return device
    require_memory(needed, what, "cluster fewer tokens, or keep fewer components by pca", torch.device("cpu"))
    return torch.device("cpu")


def read_at_once(device: torch.device, window: int) -> int:
    """Windows that a teacher on that device reads at once."""
    return max(1, (GPU_TOKENS if device.type == "cuda" else CPU_TOKENS) // window)


def windows_of(
    tokens: Tokens, window: int, device: torch.device, firsts: Iterable[int] | None = None
) -> Iterator[Int[Tensor, "B T"]]:
    """The text in windows, as many at a time as a teacher on that device reads at once; on the device already.

    `firsts`: the first windows of those batches that are wanted; None: all are.
    """
    at_once = read_at_once(device, window)
    for first in range(0, len(tokens) // window, at_once) if firsts is None else firsts:
        ends = min(first + at_once, len(tokens) // window) * window
        read = torch.from_numpy(tokens.ids[first * window : ends].astype(np.int64)).view(-1, window)
        # Pinned memory: an asynchronous copy from pageable memory would synchronise with the previous batch.
        yield read.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else read


def _components(teacher: VectorTeacher, tokens: Tokens, settings: VectorSettings, window: int) -> Projection:
    """The principal components of the first vectors, from running sums (streaming): no vectors are stored."""
    seen, total, products = 0, torch.zeros(()), torch.zeros(())
    for read in windows_of(tokens, window, teacher.device):
        found = _sound(teacher, contextual_vectors(teacher, read, settings)[:, 1:].flatten(0, 1)).double()
        total = total.to(found) + found.sum(dim=0)
        products = products.to(found) + found.T @ found
        seen += found.shape[0]
        if seen >= PCA_VECTORS:
            break
    if seen < settings.pca:
        raise ValueError(
            f"{seen:,} vectors do not have {settings.pca} principal components: give more text, or keep fewer"
        )
    mean = total / seen
    # `eigh` sorts eigenvalues in ascending order: the largest components are last.
    basis = torch.linalg.eigh(products / seen - mean[:, None] * mean).eigenvectors[:, -settings.pca :].flip(1)
    return Projection(mean.float(), basis.float().contiguous())


def _sound(teacher: VectorTeacher, vectors: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    if not bool(vectors.isfinite().all()):
        row = int((~vectors.isfinite()).any(dim=1).nonzero()[0, 0])
        raise BrokenTeacherError(
            f"{teacher.name} gives NaN or infinity (vector {row} of a batch): its weights are broken, or its precision too low"
        )
    return vectors
