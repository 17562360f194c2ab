"""The networks of Lee & Berg-Kirkpatrick: their formulas, their parts, and which roles share what."""

import itertools

import pytest
import torch
from small_models import PARTITIONS, small_model
from torch.nn.functional import layer_norm

from vlhmm.models import Model, ModelSettings, build
from vlhmm.models.joint_encoder import JointEncoder, LayeredNetwork
from vlhmm.support import dense_support

GRID = [
    {
        "embeddings": embeddings,
        "monolithic": monolithic,
        "layers": layers,
        "skip": skip,
        "relu": relu,
        "layer_norm": norm,
    }
    for embeddings, monolithic, layers, skip, relu, norm in itertools.product(
        ["tied", "split"], [False, True], [1, 2], [False, True], [False, True], [False, True]
    )
    if not skip or (layers == 2 and relu)
]
"""Table 3: everything that can be written down."""


def dense_model(num_states: int = 7, dim: int = 8, **settings: object) -> Model:
    values = {"states_per_block": num_states, "dim": dim, "network": "layers", "emission_bias": False, **settings}
    return build(ModelSettings.from_dict(values), dense_support(11, num_states)).double()


def encoder_of(model: Model) -> JointEncoder:
    assert isinstance(model.encoder, JointEncoder)
    return model.encoder


def test_the_network_is_that_of_the_public_code() -> None:
    """Two linear layers; the second is added to its own ReLU, not to what it read."""
    network = encoder_of(dense_model()).networks["out"]
    assert isinstance(network, LayeredNetwork)
    x = torch.randn(5, 8, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert network.first is not None
    assert network.norm is not None
    hidden = torch.clamp(x @ network.first.weight.T + network.first.bias, min=0)
    y = hidden @ network.last.weight.T + network.last.bias
    expected = layer_norm(torch.clamp(y, min=0) + y, (8,), network.norm.weight, network.norm.bias, network.norm.eps)
    torch.testing.assert_close(network(x), expected)


@pytest.mark.parametrize("embeddings", ["tied", "split"])
def test_networks_side_by_side_make_what_each_makes_alone(embeddings: str) -> None:
    encoder = encoder_of(dense_model(embeddings=embeddings))
    features = encoder.features(None)
    own = {"into": None, "out": encoder.out_embedding, "emit": encoder.emit_embedding}
    for role, network in encoder.networks.items():
        embedding = own[role] or encoder.embedding
        torch.testing.assert_close(getattr(features, role), network(embedding.weight))


@pytest.mark.parametrize("cell", GRID, ids=lambda cell: "-".join(str(value) for value in cell.values()))
def test_every_cell_of_the_grid_makes_a_whole_hmm_and_learns_in_every_parameter(cell: dict[str, object]) -> None:
    model = dense_model(**cell)
    tables = model.tables()
    rows = tables.transition.log_rows(torch.arange(7))
    ones = torch.ones(7, dtype=torch.float64)
    torch.testing.assert_close(rows.exp().sum(1), ones)
    torch.testing.assert_close(tables.log_emission.exp().sum(0), ones)
    torch.testing.assert_close(tables.log_start.exp().sum(), ones[0])
    generator = torch.Generator().manual_seed(1)
    parts = (tables.log_start, rows, tables.log_emission)
    loss = sum((part * torch.randn(part.shape, generator=generator, dtype=part.dtype)).sum() for part in parts)
    loss.backward()  # type: ignore[union-attr]
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # What all states share cancels in the softmax of the start.
        if name != "start.score.bias":
            assert (parameter.grad != 0).any(), name


@pytest.mark.parametrize("cell", GRID, ids=lambda cell: "-".join(str(value) for value in cell.values()))
def test_parameters_are_those_that_the_cell_names(cell: dict[str, object]) -> None:
    dim, states, words = 8, 7, 11
    tied = cell["embeddings"] == "tied"
    networks, width = (1, 3 * dim if tied else dim) if cell["monolithic"] else (3, dim)
    one = (dim + 1) * width + (cell["layers"] == 2) * (dim + 1) * dim + bool(cell["layer_norm"]) * 2 * width
    embeddings = (1 if tied else 3) * states * dim
    assert dense_model(**cell).num_parameters == embeddings + networks * one + words * dim + dim + 1


@pytest.mark.parametrize("parameterization", ["neural", "transformer"])
def test_one_network_for_all_gives_each_role_its_own_features(parameterization: str) -> None:
    model = dense_model(parameterization=parameterization, monolithic=True)
    features = model.encoder.features(None)
    assert features.into.shape == features.out.shape == features.emit.shape == (7, 8)
    assert not torch.allclose(features.into, features.out)
    assert not torch.allclose(features.into, features.emit)
    assert all(part.is_contiguous() for part in (features.into, features.out, features.emit))


@pytest.mark.parametrize("parameterization", ["neural", "transformer"])
def test_on_split_embeddings_one_network_reads_each(parameterization: str) -> None:
    encoder = encoder_of(dense_model(parameterization=parameterization, monolithic=True, embeddings="split"))
    features = encoder.features(None)
    assert encoder.network is not None
    assert encoder.out_embedding is not None
    assert encoder.emit_embedding is not None
    for made, embedding in (
        (features.into, encoder.embedding),
        (features.out, encoder.out_embedding),
        (features.emit, encoder.emit_embedding),
    ):
        torch.testing.assert_close(made, encoder.network(embedding.weight))


@pytest.mark.parametrize("variant", ["layers", "transformer", "linear, free transition"])
def test_the_start_reads_the_state_that_is_left(variant: str) -> None:
    model = small_model(variant, PARTITIONS["dense"])
    features = model.encoder.features(None)
    expected = model.start(None, features.out, None)
    torch.testing.assert_close(model.tables().log_start, expected)
    kept = model.kept_after_dropout(0.5, torch.Generator().manual_seed(0))
    assert kept is not None
    states = kept.states.flatten()
    torch.testing.assert_close(model.tables(kept).log_start, expected[states].log_softmax(0))


@pytest.mark.parametrize("variant", ["layers", "layers, monolithic", "transformer", "linear, free emission"])
def test_the_same_tables_come_out_every_time(variant: str) -> None:
    """In training mode too: there is no dropout of units."""
    model = small_model(variant, PARTITIONS["blocked"]).train()
    first, again, resting = model.tables(), model.tables(), model.eval().tables()
    for tables in (again, resting):
        assert torch.equal(tables.log_emission, first.log_emission)
        assert torch.equal(tables.log_start, first.log_start)
