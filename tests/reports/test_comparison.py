"""Runs side by side: differences of log p by document, their bootstrap interval, and what cannot be compared."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch

import vlhmm
from vlhmm.reports import Plan, as_json
from vlhmm.reports.comparison import LEVEL, bootstrap_interval
from vlhmm.training.presets import preset

SMALL = {"num_blocks": "4", "states_per_block": "3", "dim": "4", "batch_size": "4", "window": "128", "epochs": "1"}
"""A dozen steps: what is compared need not be good."""
WORDS = ["cat", "dog", "bird", "fish", "fox"]


def _text(path: Path, seed: int = 0, ends: str = "\n\n") -> Path:
    draw = np.random.default_rng(seed)
    lines = [f"the {draw.choice(WORDS)} sees a {draw.choice(WORDS)}" + " again" * draw.integers(3) for _ in range(500)]
    path.write_text(ends.join(lines) + "\n")
    return path


def _train(
    text: Path, out: Path, seed: int = 0, tokenizer: vlhmm.data.Tokenizer | str = "words", **changes: str
) -> Path:
    recipe = preset("demo").with_changes({**SMALL, "seed": str(seed), **changes})
    corpus = vlhmm.load_corpus(str(text), tokenizer=tokenizer)
    vlhmm.train(recipe.make_model(corpus, recipe.make_blocks(corpus)), corpus, recipe.train, out=out)
    Plan(recipe, str(text), None).save(out)
    return out


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("compared")


@pytest.fixture(scope="module")
def runs(folder: Path) -> tuple[Path, Path]:
    text = _text(folder / "animals.txt")
    return _train(text, folder / "one"), _train(text, folder / "two", seed=1, states_per_block="5")


def _log_prob_by_numpy(run: Path, tokens: vlhmm.data.Tokens) -> list[float]:
    """log p of each document given all before it, by the forward algorithm over dense tables."""
    lm = vlhmm.load(run)
    tables = lm.hmm.tables
    start = tables.log_start.double().exp().numpy()
    transition = tables.transition.log_rows(torch.arange(tables.num_states)).detach().double().exp().numpy()
    emission = np.zeros((tables.num_states, tables.num_words))
    support = tables.support
    for word in range(tables.num_words):
        states = support.states_of_group[support.group_of_word[word]]
        emission[states.numpy(), word] = tables.log_emission[word].double().exp().numpy()
    sums, belief = [], start
    for index in range(tokens.num_documents):
        total = 0.0
        for token in tokens.document(index).tolist():
            joint = belief * emission[:, token]
            total += math.log(joint.sum())
            after = joint / joint.sum()
            belief = start if token == tables.reset_token else after @ transition
        sums.append(total)
    return sums


def test_the_difference_is_that_of_the_forward_algorithm_in_numpy(runs: tuple[Path, Path], folder: Path) -> None:
    tokens = vlhmm.load_corpus(str(folder / "animals.txt"), tokenizer="words").test
    one, two = (np.array(_log_prob_by_numpy(run, tokens)) for run in runs)
    found = vlhmm.compare(*runs, num_samples=500, seed=3)
    (test,) = found.tests
    assert test.num_units == tokens.num_documents
    assert test.unit == "documents"
    assert test.difference == pytest.approx((two - one).sum() / len(tokens), abs=2e-6)
    # The same samples, drawn and summed here.
    sizes = np.diff(tokens.offsets)
    drawn = np.random.default_rng(3).integers(len(sizes), size=(500, len(sizes)))
    ratios = [sum((two - one)[index] for index in row) / sum(sizes[index] for index in row) for row in drawn]
    assert (test.low, test.high) == pytest.approx(np.quantile(ratios, [0.025, 0.975]), abs=2e-6)
    assert test.low < test.difference < test.high


def test_a_run_compared_with_itself_differs_by_exactly_nothing(runs: tuple[Path, Path]) -> None:
    found = vlhmm.compare(runs[0], runs[0])
    assert found.settings == {}
    assert [(one.difference, one.low, one.high, one.significant) for one in found.tests] == [(0.0, 0.0, 0.0, False)]


def test_exchanging_the_runs_changes_the_sign(runs: tuple[Path, Path]) -> None:
    forth, back = (vlhmm.compare(*order, num_samples=200).tests[0] for order in (runs, runs[::-1]))
    assert (back.difference, back.low, back.high) == pytest.approx((-forth.difference, -forth.high, -forth.low))


def test_settings_that_differ_are_named_and_no_others(runs: tuple[Path, Path]) -> None:
    found = vlhmm.compare(*runs, num_samples=10)
    assert found.settings == {"model.states_per_block": [3, 5], "train.seed": [0, 1]}
    assert as_json(found)["settings"] == found.settings


def test_other_texts_and_other_tokenizers_are_not_tested_and_the_reason_is_said(
    runs: tuple[Path, Path], folder: Path
) -> None:
    same_tokens = vlhmm.load(runs[0]).tokenizer
    other_text = _train(_text(folder / "others.txt", seed=9), folder / "other-text", tokenizer=same_tokens)
    other_tokens = _train(folder / "animals.txt", folder / "other-tokens", tokenizer="bpe")
    changed = folder / "changed.txt"
    run_on_changed = _train(_text(changed), folder / "on-changed")
    _text(changed, seed=5)
    found = vlhmm.compare(*runs, other_text, other_tokens, run_on_changed, num_samples=10)
    assert [one.run for one in found.tests] == [str(runs[1])]
    assert "held-out text is another" in found.not_tested[str(other_text)]
    assert "log p of other tokens" in found.not_tested[str(other_tokens)]
    assert "has changed since the training" in found.not_tested[str(run_on_changed)]
    assert [one.evaluation is None for one in found.runs] == [False, False, False, False, True]


def test_few_documents_are_cut_into_stretches(folder: Path) -> None:
    # Blank lines separate documents: here are ten, one in ten of them for the test.
    lines = _text(folder / "lines.txt", ends="\n").read_text().splitlines()
    text = folder / "ten.txt"
    text.write_text("\n\n".join("\n".join(lines[first : first + 25]) for first in range(0, 500, 25)))
    run = _train(text, folder / "few")
    (test,) = vlhmm.compare(run, run, num_samples=50).tests
    assert test.unit == "stretches"
    assert test.num_units == 100


def test_the_interval_is_that_of_all_equally_likely_samples() -> None:
    gains, sizes = np.array([1.0, -2.0, 6.0]), np.array([1, 4, 3])
    ratios = sorted(
        sum(gains[index] for index in drawn) / sum(sizes[index] for index in drawn)
        for drawn in itertools.product(range(3), repeat=3)
    )
    # 27 samples: the lowest and the highest are 1/27 each, above (1 - LEVEL) / 2.
    assert (1 - LEVEL) / 2 < 1 / 27
    found = bootstrap_interval(gains, sizes, 20_000, np.random.default_rng(0))
    assert found == (ratios[0], ratios[-1])


@pytest.mark.parametrize(
    ("arguments", "options", "said"),
    [
        (1, {}, "1 run to compare"),
        (2, {"num_samples": 0}, "num_samples is 0"),
        (2, {"seed": -1}, "seed -1 is negative"),
    ],
)
def test_what_cannot_be_asked_is_refused(
    runs: tuple[Path, Path], arguments: int, options: dict[str, int], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        vlhmm.compare(*runs[:arguments], **options)  # type: ignore[arg-type]
