"""Layers are made on the default device, and draw nothing."""

import torch
from torch import nn

from vlhmm.models.unfilled import unfilled


def test_a_layer_is_made_on_the_default_device() -> None:
    assert unfilled(nn.Linear, 3, 4).weight.device.type == "cpu"
    with torch.device("meta"):
        layer = unfilled(nn.Linear, 3, 4, bias=False)
    assert layer.weight.device.type == "meta"
    assert layer.weight.shape == (4, 3)
    assert layer.bias is None


def test_nothing_is_drawn_from_the_global_generator() -> None:
    before = torch.get_rng_state()
    unfilled(nn.Embedding, 5, 2)
    torch.testing.assert_close(torch.get_rng_state(), before, rtol=0, atol=0)
