"""Every neural baseline is one distribution over texts, however they are cut into windows."""

import pytest
import torch
from small_baselines import KINDS, random_tokens, small

from vlhmm.baselines import (
    AWDLSTMSettings,
    BaselineSettings,
    BuysHMMSettings,
    FeedForwardSettings,
    LSTMSettings,
    NeuralScorer,
    build_baseline,
)
from vlhmm.baselines import layers as baseline_layers
from vlhmm.baselines.scorer import num_parameters
from vlhmm.evaluate import Scorer


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("cuts", [[1, 2, 3], [6], [10]])
def test_two_windows_equal_one(name: str, cuts: list[int]) -> None:
    scorer = NeuralScorer(small(name))
    tokens = random_tokens(9, 2, 11)
    whole, _ = scorer.score_window(tokens, torch.tensor([11, 11]), None)
    parts, state = [], None
    for begin, end in zip([0, *cuts], [*cuts, 11], strict=True):
        part, state = scorer.score_window(tokens[:, begin:end], torch.tensor([end - begin] * 2), state)
        parts.append(part)
    torch.testing.assert_close(torch.cat(parts, 1), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("num_before", [0, 1, 5])
def test_all_words_sum_to_one(name: str, num_before: int) -> None:
    prefix = random_tokens(9, 1, num_before).expand(9, -1)
    tokens = torch.cat([prefix, torch.arange(9)[:, None]], dim=1)
    scores, _ = NeuralScorer(small(name)).score_window(tokens, torch.full((9,), num_before + 1), None)
    assert float(scores[:, -1].exp().sum()) == pytest.approx(1, abs=1e-12)
    # The words differ, so that a uniform distribution would not do. Before a first word there is nothing to tell them apart.
    assert num_before == 0 or float(scores[:, -1].std()) > 1e-6


@pytest.mark.parametrize("name", KINDS)
def test_a_word_depends_on_none_after_it(name: str) -> None:
    scorer = NeuralScorer(small(name))
    tokens = random_tokens(9, 1, 8)
    changed = tokens.clone()
    changed[0, 5:] = (tokens[0, 5:] + 1) % 9
    ours, theirs = (scorer.score_window(text, torch.tensor([8]), None)[0] for text in (tokens, changed))
    torch.testing.assert_close(ours[:, :5], theirs[:, :5], rtol=1e-12, atol=1e-12)


def test_logits_in_pieces_equal_all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    scorer = NeuralScorer(small("lstm"))
    tokens = random_tokens(9, 3, 7)
    whole, _ = scorer.score_window(tokens, torch.full((3,), 7), None)
    monkeypatch.setattr(baseline_layers, "MAX_LOGITS", 40)
    pieces, _ = scorer.score_window(tokens, torch.full((3,), 7), None)
    torch.testing.assert_close(pieces, whole, rtol=1e-12, atol=1e-12)


def test_a_neural_scorer_is_a_scorer() -> None:
    scorer = NeuralScorer(small("feedforward"))
    assert isinstance(scorer, Scorer)
    assert scorer.num_words == 9
    assert "carried" in scorer.protocol


@pytest.mark.parametrize(
    ("settings", "penn_treebank", "wikitext2"),
    [
        (FeedForwardSettings(), "2.89M", "8.85M"),
        (LSTMSettings(), "3.61M", "9.57M"),
        (AWDLSTMSettings(), "24.22M", "33.56M"),
        (BuysHMMSettings(), "9.82M", None),
    ],
)
def test_parameters_are_as_many_as_in_the_papers(
    settings: BaselineSettings, penn_treebank: str, wikitext2: str | None
) -> None:
    for num_words, expected in ((10_000, penn_treebank), (33_278, wikitext2)):
        with torch.device("meta"):
            model = build_baseline(settings, num_words)
        assert expected in (None, f"{num_parameters(model) / 1e6:.2f}M")
