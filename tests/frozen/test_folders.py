"""Folders of the first edition can be read, give their scores, and are gone on with."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

import vlhmm

from . import folders, records, training


@cache
def recorded() -> tuple[dict[str, Any], bool]:
    return records.read_json(folders.NAME)


def differences(found: dict[str, Any], expected: dict[str, Any]) -> list[str]:
    # As JSON has it: no tuples.
    return list(records.json_differences(json.loads(json.dumps(found)), expected, recorded()[1]))


@pytest.mark.parametrize("name", [*folders.TRAINED, folders.SUBWORD])
def test_every_kind_of_model_gives_its_scores(name: str) -> None:
    corpus = vlhmm.load_corpus(folders.SAMPLES) if name == folders.SUBWORD else training.corpus()
    assert differences(folders.model_scores(folders.MODELS / name, corpus), recorded()[0]["models"][name]) == []


def test_corpora_teacher_blocks_ngrams_and_clusters_are_read() -> None:
    assert differences(folders.other_figures(), recorded()[0]["others"]) == []


@pytest.mark.parametrize("name", folders.STOPPED_RUNS)
def test_a_run_of_the_first_edition_ends_with_the_weights_of_one_that_never_stopped(name: str, tmp_path: Path) -> None:
    copied = tmp_path / name
    shutil.copytree(folders.RUNS / name, copied)
    found = folders.resumed_run(name, copied)
    trained, bitwise = records.read_json(training.NAME)
    first = min(map(int, found["losses"]))
    assert 1 < first <= training.STOP_AT + 1
    assert training.differences(found, training.since(first, trained[name]), bitwise) == []
