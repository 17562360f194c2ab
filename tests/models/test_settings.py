"""Model settings: written, read, and refused with the remedy."""

import json

import pytest

from vlhmm.models import ModelSettings


def test_settings_survive_json():
    settings = ModelSettings("linear", 3, 5, "block-factored", embeddings="split", out_scale=0.25)
    assert ModelSettings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings


def test_whole_numbers_are_taken_for_floats():
    settings = ModelSettings.from_dict({"out_scale": 1})
    assert isinstance(settings.out_scale, float)


def test_unknown_key_is_refused_with_the_nearest_known():
    with pytest.raises(ValueError, match="unknown setting 'state_per_block'; did you mean 'states_per_block'"):
        ModelSettings.from_dict({"state_per_block": 4})
    with pytest.raises(ValueError, match="known are: parameterization, states_per_block"):
        ModelSettings.from_dict({"zzz": 4})


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"parameterization": "neurl"}, "did you mean 'neural'"),
        ({"transition": "blocks"}, "transition is 'blocks'; .*known are: softmax, block-factored, low-rank, table"),
        ({"states_per_block": 0}, "states_per_block is 0, but must be at least 1"),
        ({"dim": -3}, "dim is -3"),
        ({"dim": 2.5}, "dim is 2.5, but must be of type int"),
        ({"dim": True}, "dim is True, but must be of type int"),
        ({"emission_bias": 1}, "emission_bias is 1, but must be of type bool"),
        ({"emission_floor": 1.0}, "emission_floor is 1.0, but must be at least 0 and below 1"),
        ({"out_scale": float("nan")}, "out_scale is nan"),
        ({"out_scale": "big"}, "out_scale is 'big', but must be of type float"),
        ({"parameterization": "scalar"}, "'softmax' does not go with parameterization 'scalar'"),
        ({"embeddings": "factored", "dim": 5}, "dim is 5, but factored embeddings are two halves"),
        ({"emission": "unmasked"}, '"unmasked" is for scalar models'),
        ({"transition": "table", "start": "free", "emission": "free"}, 'all free.*use parameterization "scalar"'),
        ({"network": "layers", "layers": 3}, "layers is 3; known are: 1, 2"),
        ({"network": "layers", "layers": 1}, "skip needs 2 layers, but layers is 1"),
        ({"network": "layers", "relu": False}, "relu is false, so it would double it"),
        ({"monolithic": True}, 'monolithic is for network "layers"'),
        ({"network": "layers", "embeddings": "factored"}, '"factored" go with linear models and network "residual"'),
        ({"parameterization": "transformer", "dim": 12}, "dim is 12, but 4 decoder_heads .* a multiple of 8"),
        ({"parameterization": "transformer", "decoder_kv_heads": 3}, "no multiple of decoder_kv_heads, 3"),
        ({"rope_theta": 0.0}, "rope_theta is 0.0, but must be finite and above 0"),
    ],
)
def test_bad_values_are_refused(values, message):
    with pytest.raises(ValueError, match=message):
        ModelSettings.from_dict(values)
