"""The decoder: it is Llama's, it learns, it can be stopped and resumed to the same bits."""

import math
from pathlib import Path

import pytest
import torch
from damage import as_first_edition
from tiny import tiny_corpus

from vlhmm import Corpus
from vlhmm.baselines import Unigram
from vlhmm.data import Tokens
from vlhmm.distillation.decoder import (
    Decoder,
    DecoderSettings,
    DecoderTraining,
    Snapshot,
    TrainedDecoder,
    decoder_perplexity,
    decoder_training,
    load_decoder,
    save_decoder,
)
from vlhmm.evaluate import evaluate
from vlhmm.training.checkpoint import FolderError
from vlhmm.training.trainer import CheckEvent, StepEvent

SMALL = DecoderSettings(dim=32, layers=2, heads=4, hidden=48)
QUICK = DecoderTraining(tokens=8_000, learning_rate=1e-2, batch_size=8, window=16, checks=2)


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return tiny_corpus()


def trained(corpus: Corpus, training: DecoderTraining = QUICK, **options: object) -> list[object]:
    return list(decoder_training(corpus, SMALL, training, **options))  # type: ignore[arg-type]


@pytest.mark.parametrize("tied", [True, False])
def test_it_is_a_llama_under_the_same_names(tied: bool) -> None:
    transformers = pytest.importorskip("transformers")
    decoder = Decoder(DecoderSettings(dim=32, layers=3, heads=4, hidden=40, tied=tied), num_words=11, begin_id=2)
    config = transformers.LlamaConfig(
        vocab_size=11,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=3,
        num_attention_heads=4,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
    )
    llama = transformers.LlamaForCausalLM(config).eval()
    llama.load_state_dict(decoder.state_dict(), strict=True)
    tokens = torch.randint(11, (3, 9), generator=torch.Generator().manual_seed(0))
    begun = torch.cat([torch.full((3, 1), 2), tokens], dim=1)
    with torch.no_grad():
        theirs = llama(begun, output_hidden_states=True)
        torch.testing.assert_close(decoder(tokens), theirs.logits[:, :-1], rtol=1e-4, atol=1e-5)
        for layer in (0, 1, 2, 3, -1):
            torch.testing.assert_close(decoder.hidden(tokens, layer), theirs.hidden_states[layer], rtol=1e-4, atol=1e-5)


def test_its_body_fits_a_model_of_states(corpus: Corpus) -> None:
    from vlhmm.models import ModelSettings, build
    from vlhmm.models.transfer import body_settings, load_body
    from vlhmm.support import dense_support

    decoder = Decoder(SMALL, corpus.tokenizer.vocab_size)
    settings = ModelSettings("transformer", states_per_block=6, **body_settings(decoder))
    model = build(settings, dense_support(corpus.tokenizer.vocab_size, 6))
    load_body(model, decoder)
    weights = [value for name, value in model.state_dict().items() if name.endswith("layers.1.mlp.up_proj.weight")]
    assert weights
    assert all(torch.equal(value, decoder.model.layers[1].mlp.up_proj.weight) for value in weights)


def test_no_token_sees_those_after_it() -> None:
    decoder = Decoder(SMALL, num_words=9)
    tokens = torch.randint(9, (1, 12), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[0, 7:] = (other[0, 7:] + 1) % 9
    assert torch.equal(decoder(tokens)[:, :8], decoder(other)[:, :8])
    assert not torch.equal(decoder(tokens)[:, 8], decoder(other)[:, 8])


@pytest.mark.parametrize("dim", [32, 520])
def test_the_loss_is_that_of_the_logits(dim: int) -> None:
    decoder = Decoder(DecoderSettings(dim=dim, layers=1, heads=4, hidden=32), num_words=50)
    tokens = torch.randint(50, (3, 12), generator=torch.Generator().manual_seed(0))
    log_probs = decoder(tokens).log_softmax(2).gather(2, tokens[..., None])
    torch.testing.assert_close(decoder.loss(tokens), -log_probs.mean())
    parameters = list(decoder.parameters())
    ours = torch.autograd.grad(decoder.loss(tokens), parameters)
    for one, other in zip(ours, torch.autograd.grad(-log_probs.mean(), parameters), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-6)


def test_training_beats_the_unigram(corpus: Corpus) -> None:
    *events, last = trained(corpus, DecoderTraining(**{**QUICK.__dict__, "tokens": 40_000}))
    assert isinstance(last, TrainedDecoder)
    assert last.reason == "finished"
    unigram = evaluate(Unigram.of(corpus.train, corpus.tokenizer.vocab_size), corpus.valid).perplexity
    ours = decoder_perplexity(last.decoder, corpus.valid, 16)
    assert ours < 0.5 * unigram
    checks = [event for event in events if isinstance(event, CheckEvent)]
    assert len(checks) == 2
    assert checks[-1].valid_perplexity == pytest.approx(ours, rel=1e-6)
    steps = [event for event in events if isinstance(event, StepEvent)]
    assert steps[-1].tokens == last.tokens == pytest.approx(40_000, abs=128)


def test_snapshots_come_at_their_budgets_and_are_teachers_of_their_own(corpus: Corpus, tmp_path: Path) -> None:
    events = trained(corpus, budgets=(0, 1_280, 8_000), out=tmp_path / "run")
    snapshots = [event for event in events if isinstance(event, Snapshot)]
    assert [snapshot.tokens for snapshot in snapshots] == [0, 1_280, 62 * 128]
    perplexities = [decoder_perplexity(snapshot.decoder, corpus.valid, 16) for snapshot in snapshots]
    assert perplexities[0] == pytest.approx(corpus.tokenizer.vocab_size, rel=0.1)
    assert perplexities == sorted(perplexities, reverse=True)
    assert snapshots[1].folder is not None
    loaded, tokenizer = load_decoder(snapshots[1].folder)
    assert tokenizer.hash == corpus.tokenizer.hash
    assert loaded.name == "decoder of 1,280 tokens"
    assert decoder_perplexity(loaded, corpus.valid, 16) == perplexities[1]


def test_a_folder_that_was_changed_or_is_no_decoders_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    decoder = Decoder(SMALL, corpus.tokenizer.vocab_size)
    save_decoder(tmp_path, decoder, corpus.tokenizer)
    config = tmp_path / "config.json"
    text = config.read_text()
    for before, after, message in (
        ('"version": 2', '"version": 9', "version 9, but this vlhmm reads versions up to 2: update vlhmm"),
        ('"version": 2', '"version": "2"', "version = '2', but an integer"),
        ('"dim": 32', '"dim": 64', r"belongs to another config\.json"),
        ("{", "", "holds no decoder"),
        (text, "[]", "holds no decoder"),
    ):
        assert before in text
        config.write_text(text.replace(before, after, 1))
        with pytest.raises(FolderError, match=message):
            load_decoder(tmp_path)
    config.unlink()
    with pytest.raises(FolderError, match="holds no decoder"):
        load_decoder(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layers": 10**9}, "layers is 1000000000"),
        ({"hidden": 10**12}, "hidden is 1000000000000"),
        ({"dim": 10**12}, "dim is 1000000000000"),
        ({"dim": 64}, "has shape"),
        ({"dim": "32"}, "dim is '32'"),
        ({"colour": 1}, "unknown setting 'colour'"),
    ],
)
def test_sizes_are_compared_with_the_tensors_before_a_decoder_is_built(
    corpus: Corpus, tmp_path: Path, changes: dict[str, object], message: str
) -> None:
    save_decoder(tmp_path, Decoder(SMALL, corpus.tokenizer.vocab_size), corpus.tokenizer)
    as_first_edition(tmp_path, config=lambda values: values | {"decoder": values["decoder"] | changes})
    with pytest.raises(FolderError, match=message) as raised:
        load_decoder(tmp_path)
    assert str(tmp_path) in str(raised.value)


def test_a_stopped_run_resumes_to_the_same_bits(corpus: Corpus, tmp_path: Path) -> None:
    whole = trained(corpus)[-1]
    stopped = trained(corpus, out=tmp_path / "run", max_seconds=0.0)[-1]
    assert isinstance(whole, TrainedDecoder)
    assert isinstance(stopped, TrainedDecoder)
    assert stopped.reason == "time"
    assert stopped.tokens == 128
    resumed = trained(corpus, out=tmp_path / "run", resume=True)[-1]
    assert isinstance(resumed, TrainedDecoder)
    for name, value in whole.decoder.state_dict().items():
        assert torch.equal(value, resumed.decoder.state_dict()[name]), name


def test_another_run_is_not_gone_on_with(corpus: Corpus, tmp_path: Path) -> None:
    trained(corpus, out=tmp_path, max_seconds=0.0)
    with pytest.raises(ValueError, match="other settings"):
        trained(corpus, DecoderTraining(**{**QUICK.__dict__, "seed": 1}), out=tmp_path, resume=True)


def test_bad_input_is_refused(corpus: Corpus, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="multiple of 2 x heads = 8"):
        DecoderSettings(dim=36, heads=4)
    with pytest.raises(ValueError, match="needs 100,000"):
        trained(corpus, DecoderTraining(batch_size=1000, window=100))
    with pytest.raises(ValueError, match="resume needs the folder"):
        trained(corpus, resume=True)
    with pytest.raises(FolderError, match="holds no decoder"):
        load_decoder(tmp_path)
    with pytest.raises(ValueError, match="do not fill one window"):
        decoder_perplexity(Decoder(SMALL, 5), Tokens.from_documents([[1, 2]], 5), 16)


def test_untied_weights_survive_saving(corpus: Corpus, tmp_path: Path) -> None:
    settings = DecoderSettings(dim=8, layers=1, heads=2, tied=False)
    decoder = Decoder(settings, corpus.tokenizer.vocab_size, generator=torch.Generator().manual_seed(3))
    save_decoder(tmp_path, decoder, corpus.tokenizer)
    loaded, _ = load_decoder(tmp_path)
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(loaded(tokens), decoder(tokens))
    assert math.isfinite(float(loaded(tokens).sum()))
