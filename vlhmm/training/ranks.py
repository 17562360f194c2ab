"""Collectives of data-parallel training other than the all-reduce of a step: checks of equality, initial weights, validation."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Generic

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.distributed import SentTensors, World, all_rows, gather_objects, require_alike, shard
from vlhmm.evaluate import Scorer, State
from vlhmm.models import Model


@cache
def code_hash() -> str:
    """SHA-256 of this program's source."""
    folder = Path(__file__).parents[1]
    found = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        found.update(f"{path.relative_to(folder)}\n".encode())
        found.update(path.read_bytes())
    return found.hexdigest()


def require_same_code(settings: Mapping[str, Any], here: World) -> None:
    """Refuses ranks of another source, torch or settings."""
    if here.size > 1:
        versions = {"the code of vlhmm": code_hash()[:12], "torch": str(torch.__version__)}
        require_alike({**versions, **_flat(settings)}, here)


def _flat(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Each setting by itself, so that an error names it alone."""
    found = dict[str, Any]()
    for name, value in settings.items():
        inner = _flat(value) if isinstance(value, Mapping) else {}
        found |= {f"{name}.{key}": one for key, one in inner.items()} if inner else {name: value}
    return found


def begin_together(model: Model, batch_size: int, about: Mapping[str, Any], here: World) -> None:
    """Broadcasts the first rank's weights. Refuses ranks with other code, settings, text or shapes, and more ranks than
    rows of a batch."""
    if here.size == 1:
        return
    if batch_size < here.size:
        raise ValueError(
            f"batch_size is {batch_size}, but there are {here.size} ranks, and each takes a row at least: "
            "make it larger, or start fewer"
        )
    state = model.state_dict()
    shapes = {name: (tuple(value.shape), value.dtype) for name, value in state.items()}
    device = model.group_of_word.device.type
    settings = {"the model": model.settings.to_dict(), "its tensors": shapes, "the device": device, **about}
    require_same_code(settings, here)
    model.load_state_dict(dict(SentTensors(state, here, "the first weights").on(model.group_of_word.device)))


def require_same_weights(model: Model, here: World, step: int) -> None:
    """Raises if the replicas of the weights are not bit-identical: a device computes wrongly, or in another way than the others."""
    if here.size == 1:
        return
    sums = {name: _sum_of_bits(parameter.detach()) for name, parameter in model.named_parameters()}
    every = gather_objects(sums, here, f"the comparison of weights after step {step}")
    for rank, other in enumerate(every):
        differing = [name for name in sums if other[name] != every[0][name]]
        if differing:
            raise RuntimeError(
                f"after step {step} {differing[0]} differs between rank 0 and rank {rank}: their devices compute different results; "
                "use devices of one kind, and continue from the last checkpoint with --resume"
            )


def _sum_of_bits(values: Tensor) -> int:
    """A checksum: any single changed bit changes it."""
    kinds = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return int(values.contiguous().view(kinds[values.element_size()]).sum(dtype=torch.int64))


@dataclass(frozen=True)
class ScoredByRanks(Generic[State]):
    """A `Scorer` of which each rank scores its rows; all get the scores of all."""

    scorer: Scorer[State]
    here: World

    @property
    def num_words(self) -> int:
        return self.scorer.num_words

    @property
    def protocol(self) -> str:
        return self.scorer.protocol

    def score_window(
        self, tokens: Int[Tensor, "B T"], lengths: Int[Tensor, " B"], state: State | None
    ) -> tuple[Float[Tensor, "B T"], State | None]:
        rows = shard(range(len(tokens)), self.here)
        part = slice(rows.start, rows.stop)
        log_probs = torch.zeros(0, tokens.shape[1])
        if rows:
            log_probs, state = self.scorer.score_window(tokens[part], lengths[part], state)
        return all_rows(log_probs, self.here, "the check"), state
