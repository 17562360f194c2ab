"""The values that parameters start from, all drawn from one generator."""

from __future__ import annotations

import math

import torch
from torch import nn

from vlhmm.models.heads import FactoredEmission, ScalarEmission, ScalarStart, TableHead, UnmaskedEmission
from vlhmm.models.settings import ModelSettings


@torch.no_grad()
def initialise(model: nn.Module, settings: ModelSettings, generator: torch.Generator | None) -> None:
    """Initialises every parameter of `model` from the generator. Results for a seed depend on the order of modules.

    On the device "meta" there are no values to draw.
    """
    if any(parameter.is_meta for parameter in model.parameters()):
        return
    paper, normal = settings.initialisation == "paper", settings.initialisation == "normal"
    words = {module.words for module in model.modules() if isinstance(module, FactoredEmission)}
    for module in model.modules():
        match module:
            case nn.Embedding() if paper:
                _uniform(module.weight, _kaiming_bound(module.embedding_dim), generator)
            case nn.Embedding():
                module.weight.normal_(generator=generator)
            case nn.Linear():
                default_bound = 1 / math.sqrt(module.in_features)
                if normal and module in words:
                    module.weight.normal_(generator=generator)
                else:
                    _uniform(module.weight, _kaiming_bound(module.in_features) if paper else default_bound, generator)
                if module.bias is not None:
                    _uniform(module.bias, 0.0 if paper else default_bound, generator)
            case nn.LayerNorm():
                module.weight.fill_(1.0)
                module.bias.zero_()
            case nn.RMSNorm():
                module.weight.fill_(1.0)
            case ScalarStart() | TableHead() | ScalarEmission() | UnmaskedEmission() if normal:
                module.logits.normal_(std=settings.init_scale, generator=generator)
            case ScalarStart() | TableHead() | ScalarEmission() | UnmaskedEmission():
                _uniform(module.logits, settings.init_scale, generator)
            case _:
                pass
    for module in model.modules():
        match module:
            case nn.Embedding():
                module.weight.mul_(settings.embedding_scale)
            case FactoredEmission():
                module.words.weight.mul_(settings.word_scale)
            case _:
                pass


def _uniform(parameter: torch.Tensor, bound: float, generator: torch.Generator | None) -> None:
    parameter.uniform_(-bound, bound, generator=generator)


def _kaiming_bound(fan_in: int) -> float:
    """For ReLU: the variance of U(-b, b) is then 2 / fan_in."""
    return math.sqrt(6 / fan_in)
