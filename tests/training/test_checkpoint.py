"""Model folders: what is saved comes back, and what is broken is refused with a reason."""

import os
from pathlib import Path

import pytest
import torch
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.models import linear_hmm, scalar_hmm
from vlhmm.training.checkpoint import FolderError


@pytest.fixture
def lm() -> vlhmm.LanguageModel:
    corpus = tiny_corpus(100)
    return vlhmm.LanguageModel(tiny_model(corpus), corpus.tokenizer, {"corpus": {"name": "tiny"}})


def test_a_saved_model_comes_back_bit_for_bit(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path / "model")
    assert sorted(path.name for path in (tmp_path / "model").iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    again = vlhmm.load(tmp_path / "model")
    for name, value in lm.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])
    assert again.tokenizer == lm.tokenizer
    assert again.about == lm.about
    assert again.next_tokens("the cat") == lm.next_tokens("the cat")


def test_whoever_may_read_one_file_may_read_all(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        lm.save(tmp_path / "model")
    finally:
        os.umask(before)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "model").iterdir()} == {0o644}


@pytest.mark.parametrize("make", [scalar_hmm, linear_hmm])
@pytest.mark.parametrize("reset", ["eos", "carry"])
def test_every_parameterization_comes_back(tmp_path: Path, make: object, reset: str) -> None:
    corpus = tiny_corpus(100)
    blocks = vlhmm.brown_clusters(
        corpus.train, 4, eos_id=corpus.tokenizer.eos_id, vocab_size=corpus.tokenizer.vocab_size
    )
    model = make(blocks, states_per_block=3, eos_id=corpus.tokenizer.eos_id, reset=reset)  # type: ignore[operator]
    lm = vlhmm.LanguageModel(model, corpus.tokenizer)
    lm.save(tmp_path / "model")
    assert vlhmm.load(tmp_path / "model").perplexity(corpus.test) == lm.perplexity(corpus.test)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_missing_file_is_named(lm: vlhmm.LanguageModel, tmp_path: Path, name: str) -> None:
    lm.save(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(FolderError, match=f"has no {name}"):
        vlhmm.load(tmp_path)


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.99])
def test_a_file_cut_short_is_refused(lm: vlhmm.LanguageModel, tmp_path: Path, name: str, part: float) -> None:
    lm.save(tmp_path)
    content = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(content[: int(part * len(content))])
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        vlhmm.load(tmp_path)


def test_files_of_two_models_are_not_taken_for_one(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    lm.save(tmp_path / "one")
    vlhmm.LanguageModel(lm.model, lm.tokenizer, {"other": True}).save(tmp_path / "two")
    (tmp_path / "one" / "config.json").write_bytes((tmp_path / "two" / "config.json").read_bytes())
    with pytest.raises(FolderError, match=r"belongs to another config\.json"):
        vlhmm.load(tmp_path / "one")


def test_other_programs_and_later_versions_are_refused(lm: vlhmm.LanguageModel, tmp_path: Path) -> None:
    with pytest.raises(FolderError, match="is no folder"):
        vlhmm.load(tmp_path / "nowhere")
    with pytest.raises(FolderError, match=r"has no config\.json"):
        vlhmm.load(tmp_path)
    lm.save(tmp_path)
    text = (tmp_path / "config.json").read_text()
    (tmp_path / "config.json").write_text(text.replace('"version": 1', '"version": 99'))
    with pytest.raises(FolderError, match=r"version 99.*reads version 1"):
        vlhmm.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "llama"}')
    with pytest.raises(FolderError, match="another program"):
        vlhmm.load(tmp_path)
