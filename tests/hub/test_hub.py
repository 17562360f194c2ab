"""Model folders on the hub: the real client against a server of our own on the loopback device, and its cache without any."""

import inspect
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from huggingface_hub import ModelCard, ModelHubMixin
from local_hub import COMMIT, LocalHub
from safetensors import safe_open
from tiny import tiny_corpus, tiny_model

import vlhmm
from vlhmm.training.checkpoint import FolderError

NAME = "someone/tiny-hmm"
RESULTS = {
    "perplexity": {"uniform": {"valid": 17.0, "test": 17.0}, "HMM": {"valid": 4.25, "test": 4.5}},
    "test": {"protocol": "every token scored"},
    "train_seconds": 12.5,
    "device": "cpu",
    "command": "vlhmm train | tee log",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus = tiny_corpus(60)
    about = {"corpus": {"name": "tiny", "hash": "ab12", "note": ""}, "train": {"epochs": 3, "seed": 0}}
    path = tmp_path_factory.mktemp("run")
    vlhmm.LanguageModel(tiny_model(corpus, reset="eos"), corpus.tokenizer, about).save(path)
    (path / "results.json").write_text(json.dumps(RESULTS))
    (path / "training.safetensors").write_bytes(b"not for others")
    return path


def python(code: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HF_HOME": str(cache), "HF_HUB_DISABLE_TELEMETRY": "1", **environment},
    )


def test_a_model_that_was_pushed_comes_back_and_is_then_read_offline(folder: Path, tmp_path: Path) -> None:
    push = f"""
import vlhmm
lm = vlhmm.load({str(folder)!r})
print(lm.push_to_hub({NAME!r}, token="hf_test", commit_message="A first model"))
print(vlhmm.LanguageModel.from_pretrained({NAME!r}).score("the cat").log_prob)
for name, token in (({NAME!r}, "hf_wrong"), ("nobody/nothing", "hf_test")):
    try:
        lm.push_to_hub(name, token=token) if token == "hf_wrong" else lm.from_pretrained(name)
    except ValueError as error:
        print(error)
"""
    with LocalHub() as hub:
        ran = python(push, tmp_path, HF_ENDPOINT=hub.url)
        assert ran.returncode == 0, ran.stderr
        url, score, unauthorised, missing = ran.stdout.splitlines()
        assert url == f"{hub.url}/{NAME}/commit/{COMMIT}"
        assert [commit["summary"] for commit in hub.commits] == ["A first model"]
        files = hub.repositories[NAME]
    expected = vlhmm.load(folder)
    assert sorted(files) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "special_tokens_map.json",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    assert files["tokenizer.json"] == (folder / "tokenizer.json").read_bytes()
    assert f"# {NAME}\n" in files["README.md"].decode()
    assert float(score) == expected.score("the cat").log_prob
    assert unauthorised.startswith(f"the model cannot be pushed to {NAME}: ")
    assert "401" in unauthorised
    assert missing.startswith("nobody/nothing is no folder, and cannot be had from the hub: ")

    offline = f"""
import vlhmm
print(vlhmm.LanguageModel.from_pretrained({NAME!r}).score("the cat").log_prob)
try:
    vlhmm.LanguageModel.from_pretrained("someone/else")
except ValueError as error:
    print(error)
"""
    ran = python(offline, tmp_path, HF_HUB_OFFLINE="1")
    assert ran.returncode == 0, ran.stderr
    score, missing = ran.stdout.splitlines()
    assert float(score) == expected.score("the cat").log_prob
    assert missing.startswith("someone/else is no folder, and cannot be had from the hub: ")


def test_arguments_are_those_of_the_mixin() -> None:
    for name in ("from_pretrained", "save_pretrained", "push_to_hub"):
        theirs, ours = (
            inspect.signature(getattr(cls, name)).parameters for cls in (ModelHubMixin, vlhmm.LanguageModel)
        )
        # The config and the card are the model's own.
        expected = [
            one
            for one in theirs.values()
            if one.name not in ("config", "model_card_kwargs") and one.kind != one.VAR_KEYWORD
        ]
        assert {one.name for one in expected} <= set(ours)
        for one in expected:
            assert ours[one.name].kind == one.kind
            assert one.name == "commit_message" or ours[one.name].default == one.default


def test_a_saved_model_is_the_model_and_carries_its_card(folder: Path, tmp_path: Path) -> None:
    lm = vlhmm.load(folder)
    assert lm.save_pretrained(tmp_path, repo_id=NAME) is None
    again = vlhmm.LanguageModel.from_pretrained(tmp_path)
    assert again.score("the cat sees") == lm.score("the cat sees")
    assert vlhmm.load(tmp_path).about == {**lm.about, "results": RESULTS}
    card = ModelCard.load(tmp_path / "README.md")
    card.validate = None
    assert card.data.library_name == "vlhmm"
    assert card.data.pipeline_tag == "text-generation"
    [valid, test] = card.data.eval_results
    assert (valid.dataset_name, valid.dataset_split, valid.metric_type, valid.metric_value) == (
        "tiny",
        "valid",
        "perplexity",
        4.25,
    )
    assert (test.dataset_split, test.metric_value) == ("test", 4.5)
    text = card.text
    for told in ("| HMM | 4.25 | 4.50 |", "| uniform | 17.00 | 17.00 |", "| train_seconds | 12.5 |", "| train.epochs | 3 |",
                 "| name | tiny |", r"vlhmm train \| tee log", f'from_pretrained("{NAME}")', "every token scored"):  # fmt: skip
        assert told in text
    # A copy knows the figures too, and a card that someone has edited is theirs.
    (tmp_path / "README.md").write_text("mine")
    again.save_pretrained(tmp_path)
    assert (tmp_path / "README.md").read_text() == "mine"
    again.save_pretrained(tmp_path / "copy")
    assert "| HMM | 4.25 | 4.50 |" in (tmp_path / "copy" / "README.md").read_text()


def test_the_card_of_a_distilled_model_has_the_figures_of_its_teacher(folder: Path, tmp_path: Path) -> None:
    lm = vlhmm.load(folder)
    held_out = {"hmm": 331.25, "teacher": 12.5, "unigram": 960.0, "num_samples": 2000, "num_tokens": 34567}
    lm.about["results"] = {"held_out": held_out, "sampling_seconds": 12.345, "command": "vlhmm distill"}
    lm.save_pretrained(tmp_path, dtype=torch.bfloat16)
    card = (tmp_path / "README.md").read_text()
    for told in ("| HMM | 331.25 |", "| unigram | 960.00 |", "| teacher, which sees the prompt | 12.50 |",
                 "| num_tokens | 34,567 |", "| sampling_seconds | 12.3 |", "| command | vlhmm distill |"):  # fmt: skip
        assert told in card
    with safe_open(tmp_path / "model.safetensors", framework="pt") as stored:
        assert stored.get_tensor("emission.words.weight").dtype == torch.bfloat16
    with pytest.raises(ValueError, match=r"dtype is torch\.float16"):
        lm.save_pretrained(tmp_path, dtype=torch.float16)


@pytest.mark.parametrize(
    "about",
    [
        {},
        {"corpus": "text", "train": None, "results": [1]},
        {"corpus": {"name": 'a "quoted": name\n---\n'}, "results": {"perplexity": {"HMM": {"valid": 3, "x: y": 2.0}}}},
        {"results": {"perplexity": {"HMM": {"valid": None}, "other": None}}, "note": "a | b\nc"},
    ],
)
def test_a_card_of_any_record_has_metadata_that_parses(about: dict[str, Any], tmp_path: Path) -> None:
    corpus = tiny_corpus(60)
    vlhmm.LanguageModel(tiny_model(corpus), corpus.tokenizer, about).save_pretrained(tmp_path)
    text = (tmp_path / "README.md").read_text()
    header = yaml.safe_load(text.split("---\n")[1])
    assert header["library_name"] == "vlhmm"
    tables = [line for line in text.splitlines() if line.startswith("|")]
    assert all(line.endswith("|") for line in tables)
    assert vlhmm.load(tmp_path).about == about


def test_what_is_no_folder_and_no_name_is_refused(tmp_path: Path) -> None:
    for name in (tmp_path / "none", "./none", "a/b/c", ""):
        with pytest.raises(FolderError, match="no folder, and no name of the hub"):
            vlhmm.LanguageModel.from_pretrained(name)
    with pytest.raises(FolderError, match=r"has no config\.json"):
        vlhmm.LanguageModel.from_pretrained(tmp_path)
    corpus = tiny_corpus(60)
    lm = vlhmm.LanguageModel(tiny_model(corpus), corpus.tokenizer)
    with pytest.raises(ValueError, match="private is for pushing, but push_to_hub is False"):
        lm.save_pretrained(tmp_path, private=True)
