"""What decides a distillation apart from the model, the teacher and the training that it begins."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from vlhmm.distillation.lvd.kmeans import KMeansSettings
from vlhmm.distillation.lvd.vectors import VectorSettings


@dataclass(frozen=True)
class LVDSettings:
    cluster_tokens: int = 10_000_000
    """Tokens whose vectors are clustered."""
    set_aside: bool = True
    """They are the end of the training text, and training never sees them; without: its beginning, and training sees all."""
    joint_tokens: int = 10_000_000
    """Tokens of p(x, z); they are the first of training's, and count in its total. -1: all, and p(x) never takes over."""
    position: Literal["at", "before"] = "at"
    """at: the vector that has read x_t; before: the one that predicts it."""
    layer: int = -1
    """Whose output the vectors are: 0 the embeddings, -1 the last layer."""
    pca: int = 0
    """Principal components that are kept; 0: all."""
    iterations: int = 20
    """Passes of k-means, at most."""
    init: Literal["kmeans++", "sample"] = "kmeans++"
    """Where k-means begins."""
    eos_state: bool = False
    """In a dense HMM: one state is kept for EOS, the others are clusters of the other tokens."""
    estimation: Literal["gradient", "counts"] = "gradient"
    """gradient: AdamW on -log p(x, z); counts: the maximum in closed form, for scalar models."""
    pseudocount: float = 1e-3
    """counts: spread over each row of the tables."""
    seed: int = 0
    """Of k-means."""

    def __post_init__(self) -> None:
        if self.cluster_tokens < 1:
            raise ValueError(f"cluster_tokens is {self.cluster_tokens}, but must be at least 1")
        if self.joint_tokens < 1 and (self.joint_tokens != -1 or self.estimation == "counts"):
            raise ValueError(
                f"joint_tokens is {self.joint_tokens}, but must be at least 1, or by gradient -1 for all of training"
            )
        if not (math.isfinite(self.pseudocount) and self.pseudocount > 0):
            raise ValueError(f"pseudocount is {self.pseudocount}, but must be finite and above 0")
        if self.layer < -1:
            raise ValueError(f"layer is {self.layer}, but must be at least 0, or -1 for the last")
        if self.pca < 0:
            raise ValueError(f"pca is {self.pca}, but must be at least 0")
        if self.iterations < 1:
            raise ValueError(f"iterations is {self.iterations}, but must be at least 1")

    @property
    def vectors(self) -> VectorSettings:
        return VectorSettings(self.position, self.layer, self.pca)

    @property
    def clustering(self) -> KMeansSettings:
        return KMeansSettings(self.iterations, self.init)
