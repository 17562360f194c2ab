"""Small models of every kind, in float64."""

from dataclasses import dataclass

import numpy as np
import torch

from vlhmm.models import Model, ModelSettings, build
from vlhmm.support import Support, blocked_support, cloned_support, dense_support, uniform_support

VARIANTS = {
    "neural softmax": ModelSettings("neural", transition="softmax", dim=4),
    "neural softmax, paper": ModelSettings(
        "neural", transition="softmax", dim=4, target_network=True, initialisation="paper"
    ),
    "neural block-factored": ModelSettings("neural", transition="block-factored", dim=4, out_scale=0.25),
    "neural, split": ModelSettings("neural", transition="softmax", dim=3, embeddings="split", target_network=True),
    "neural, factored": ModelSettings("neural", transition="softmax", dim=8, embeddings="factored"),
    "neural, factored, paper": ModelSettings(
        "neural", transition="softmax", dim=8, embeddings="factored", target_network=True, initialisation="paper"
    ),
    "linear softmax": ModelSettings("linear", transition="softmax", dim=3, embeddings="split", emission_bias=False),
    "linear, tied": ModelSettings("linear", transition="softmax", dim=3),
    "linear, factored": ModelSettings("linear", transition="block-factored", dim=6, embeddings="factored"),
    "linear block-factored": ModelSettings("linear", transition="block-factored", dim=5, embeddings="split"),
    "neural low-rank": ModelSettings("neural", transition="low-rank", dim=4, rank=3, initialisation="paper"),
    "linear low-rank": ModelSettings("linear", transition="low-rank", dim=3, rank=2, embeddings="split"),
    "scalar": ModelSettings("scalar", transition="table", init_scale=1.0),
    "layers": ModelSettings("neural", dim=4, network="layers", start="left", initialisation="normal"),
    "layers, monolithic": ModelSettings("neural", dim=4, network="layers", monolithic=True, emission_bias=False),
    "layers, split, monolithic": ModelSettings(
        "neural", dim=8, network="layers", monolithic=True, embeddings="split", layers=1, skip=False, layer_norm=False
    ),
    "transformer": ModelSettings("transformer", dim=4, decoder_layers=2, decoder_heads=2, start="left"),
    "transformer, monolithic, block-factored": ModelSettings(
        "transformer",
        transition="block-factored",
        dim=4,
        decoder_layers=1,
        decoder_heads=1,
        monolithic=True,
        causal=False,
    ),
    "linear, free transition": ModelSettings("linear", transition="table", dim=3, embeddings="split", start="left"),
    "linear, free emission": ModelSettings("linear", dim=3, embeddings="split", emission="free"),
    "layers, free start": ModelSettings("neural", dim=3, network="layers", monolithic=True, start="free"),
    "neural, free transition": ModelSettings("neural", transition="table", dim=3, target_network=True),
}

ANY_SUPPORT = [
    name
    for name, settings in VARIANTS.items()
    if settings.transition != "block-factored" and settings.embeddings != "factored"
]
"""Those that do not need a partition."""

LOW_RANK = [name for name, settings in VARIANTS.items() if settings.transition == "low-rank"]
"""Those whose rows are renormalised within classes, not as wholes, when states are dropped: see test_low_rank."""

PARTITIONS = {
    "dense": dense_support(6, 5),
    "blocked": blocked_support(torch.tensor([2, 0, 2, 1, 2, 3, 2, 0, 2]), 4, 5),
    "blocked, one without words": blocked_support(torch.tensor([3, 0, 0, 1, 3]), 4, 3),
    "cloned": cloned_support(4, 3),
}

OVERLAPPING = {
    "uniform": uniform_support(9, 6, 3, torch.Generator().manual_seed(1)),
    "uniform, states without words": uniform_support(3, 10, 2, torch.Generator().manual_seed(1)),
}


@dataclass(frozen=True)
class Blocks:
    block_of_word: np.ndarray
    num_blocks: int


def small_model(variant: str, support: Support, seed: int = 0, reset_token: int | None = None) -> Model:
    values = {**VARIANTS[variant].to_dict(), "states_per_block": support.states_per_word}
    settings = ModelSettings.from_dict(values)
    return build(settings, support, reset_token, torch.Generator().manual_seed(seed)).double()
