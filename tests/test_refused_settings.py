"""Settings that make no sense are refused by their number and limit, whoever writes them."""

import math
from typing import Any

import pytest

from vlhmm.distillation.decoder import DecoderSettings, DecoderTraining
from vlhmm.distillation.lvd import LVDSettings, VectorSettings
from vlhmm.distillation.lvd.kmeans import KMeansSettings
from vlhmm.training.em import EMSettings


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        (EMSettings, {"iterations": 0}, "iterations is 0, but must be at least 1"),
        (EMSettings, {"window": 0}, "window is 0, but must be at least 1"),
        (EMSettings, {"pseudocount": -0.5}, "pseudocount is -0.5, but must be at least 0"),
        (EMSettings, {"rate": 1.5}, "rate is 1.5"),
        (KMeansSettings, {"iterations": 0}, "iterations is 0, but must be at least 1"),
        (KMeansSettings, {"tolerance": math.nan}, "tolerance is nan, but must be at least 0"),
        (VectorSettings, {"pca": -1}, "pca is -1, but must be at least 0"),
        (LVDSettings, {"cluster_tokens": 0}, "cluster_tokens is 0, but must be at least 1"),
        (LVDSettings, {"joint_tokens": 0}, "joint_tokens is 0, but must be at least 1"),
        (LVDSettings, {"joint_tokens": -1, "estimation": "counts"}, "joint_tokens is -1, but must be at least 1"),
        (LVDSettings, {"pseudocount": 0.0}, "pseudocount is 0.0, but must be finite and above 0"),
        (LVDSettings, {"layer": -2}, "layer is -2, but must be at least 0, or -1 for the last"),
        (LVDSettings, {"pca": -1}, "pca is -1, but must be at least 0"),
        (LVDSettings, {"iterations": 0}, "iterations is 0, but must be at least 1"),
        (DecoderSettings, {"layers": 0}, "layers is 0, but must be at least 1"),
        (DecoderSettings, {"hidden": -1}, "hidden is -1, but must be at least 0"),
        (DecoderSettings, {"dim": 6, "heads": 2}, "dim is 6"),
        (DecoderTraining, {"window": 0}, "window is 0, but must be at least 1"),
        (DecoderTraining, {"tokens": -1}, "tokens is -1, but must be at least 0"),
        (DecoderTraining, {"clip": math.inf}, "clip is inf, but must be finite and above 0"),
    ],
    ids=lambda value: value.__name__ if isinstance(value, type) else None,
)
def test_a_setting_out_of_range_is_refused(kind: type[Any], changes: dict[str, Any], message: str) -> None:
    kind()
    with pytest.raises(ValueError, match=message):
        kind(**changes)
