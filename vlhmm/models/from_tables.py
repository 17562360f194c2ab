"""From tables back to a model: free logits that are the log-probabilities."""

from __future__ import annotations

import torch

from vlhmm.memory import require_memory
from vlhmm.models.model import Model
from vlhmm.models.settings import ModelSettings
from vlhmm.tables import Tables


def model_from_tables(tables: Tables) -> Model:
    """The scalar model that makes these tables, to rounding; it can be saved, and trained on.

    In the dtype that models are made and loaded in, float32 unless torch has another default.
    """
    size = tables.log_emission.element_size()
    require_memory(
        size * (tables.num_states**2 + tables.log_emission.numel()),
        f"a model with a free logit for each of {tables.num_states:,} x {tables.num_states:,} transitions",
        "use an HMM with fewer states",
        tables.device,
    )
    settings = ModelSettings(
        parameterization="scalar", states_per_block=tables.support.states_per_word, transition="table"
    )
    model = Model(settings, tables.support, tables.reset_token, torch.Generator().manual_seed(0))
    model.to(tables.device)
    set_tables(model, tables)
    return model


@torch.no_grad()
def set_tables(model: Model, tables: Tables) -> None:
    """The log-probabilities become the logits of a scalar model: normalising them changes nothing."""
    logits = {
        "start.logits": tables.log_start,
        "transition.logits": tables.transition.log_rows(torch.arange(tables.num_states, device=tables.device)),
        "emission.logits": tables.log_emission,
    }
    parameters = dict(model.named_parameters())
    for name, values in logits.items():
        parameters[name].copy_(values)
