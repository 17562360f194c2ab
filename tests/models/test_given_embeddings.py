"""Embeddings that a teacher gives, and which parameters can be held while the others learn."""

import pytest
import torch
from small_models import PARTITIONS, VARIANTS, small_model

from vlhmm.models import set_state_embeddings, set_word_embeddings, split_frozen
from vlhmm.models.transfer import state_embeddings, word_embeddings

SUPPORT = PARTITIONS["blocked"]


def vectors(rows: int, variant: str, seed: int = 9) -> torch.Tensor:
    return torch.randn(rows, VARIANTS[variant].dim, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize(
    ("variant", "tables"), [("layers", 1), ("linear softmax", 3), ("transformer", 1), ("linear, free emission", 2)]
)
def test_centroids_become_the_embeddings_of_every_role(variant: str, tables: int) -> None:
    model, given = small_model(variant, SUPPORT), vectors(SUPPORT.num_states, variant)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    set_state_embeddings(model, given)
    assert len(state_embeddings(model)) == tables
    assert all(torch.equal(embedding, given.double()) for embedding in state_embeddings(model))
    changed = [name for name, value in model.state_dict().items() if not torch.equal(value, before[name])]
    assert len(changed) == tables


def test_an_output_matrix_becomes_the_word_embeddings() -> None:
    model, given = small_model("layers", SUPPORT), vectors(SUPPORT.num_words, "layers")
    set_word_embeddings(model, given)
    features = model.encoder.features(None).emit
    assert torch.equal(word_embeddings(model)[0], given.double())
    assert features.shape[1] == given.shape[1]


@pytest.mark.parametrize("held", ["states", "words", "both"])
@pytest.mark.parametrize("variant", ["layers", "linear softmax", "transformer"])
def test_held_embeddings_and_the_others_are_all_parameters_once(variant: str, held: str) -> None:
    model = small_model(variant, SUPPORT)
    embeddings, others = split_frozen(model, held)  # type: ignore[arg-type]
    together = [id(parameter) for parameter in (*embeddings, *others)]
    assert len(together) == len(set(together))
    assert set(together) == {id(parameter) for parameter in model.parameters()}
    expected = (state_embeddings(model) if held != "words" else []) + (
        word_embeddings(model) if held != "states" else []
    )
    assert [id(parameter) for parameter in embeddings] == [id(parameter) for parameter in expected]


def test_at_rate_zero_weight_decay_does_not_move_what_is_held() -> None:
    model = small_model("layers", SUPPORT)
    embeddings, others = split_frozen(model, "both")
    optimizer = torch.optim.AdamW([{"params": embeddings, "lr": 0.0}, {"params": others}], lr=0.1, weight_decay=0.1)
    before = [parameter.detach().clone() for parameter in (*embeddings, *others)]
    model.tables().log_emission.square().sum().backward()
    optimizer.step()
    same = [torch.equal(*pair) for pair in zip(before, (*embeddings, *others), strict=True)]
    assert all(same[: len(embeddings)])
    assert not any(
        equal
        for equal, parameter in zip(same[len(embeddings) :], others, strict=True)
        if parameter.grad is not None and parameter.grad.any()
    )


def test_what_does_not_fit_is_refused() -> None:
    model = small_model("layers", SUPPORT)
    with pytest.raises(
        ValueError, match="state vectors are 20 of width 7, but the model has 20 states and dim 4: project"
    ):
        set_state_embeddings(model, torch.zeros(20, 7))
    with pytest.raises(ValueError, match="word vectors are 12 of width 4, but the model has 9 words"):
        set_word_embeddings(model, torch.zeros(12, 4))
    broken = torch.zeros(20, 4)
    broken[13, 2] = torch.nan
    with pytest.raises(ValueError, match="not finite in row 13"):
        set_state_embeddings(model, broken)
    with pytest.raises(ValueError, match="'scalar' with embeddings 'tied' has no embedding"):
        state_embeddings(small_model("scalar", SUPPORT))
    with pytest.raises(ValueError, match="'factored' has no embedding for each state alone"):
        state_embeddings(small_model("neural, factored", SUPPORT))
    with pytest.raises(ValueError, match="no word embeddings"):
        word_embeddings(small_model("linear, free emission", SUPPORT))
