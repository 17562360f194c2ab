"""Tests of the data never touch the user's cache, and find no data folder that they did not ask for."""

import io
from collections.abc import Callable
from pathlib import Path

import pytest
import sentencepiece

from vlhmm.data.pydocs import pydocs_documents


@pytest.fixture(scope="session")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def _own_cache(shared_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLHMM_CACHE", str(shared_cache))


@pytest.fixture
def sentences(_own_cache: None) -> list[str]:
    """English to work on."""
    return [line for document in pydocs_documents()["train"] for line in document]


@pytest.fixture
def train_sentencepiece(sentences: list[str]) -> Callable[..., bytes]:
    """Trains a small SentencePiece model; returns the content of its `.model` file."""

    def train(**settings: object) -> bytes:
        model = io.BytesIO()
        defaults = {"vocab_size": 500, "model_type": "bpe", "minloglevel": 2, "num_threads": 1}
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(sentences[:1500]), model_writer=model, **{**defaults, **settings}
        )
        return model.getvalue()

    return train
