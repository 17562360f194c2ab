"""Which of two models is better is said truly, whichever it is."""

import math

import pytest

from vlhmm.evaluate import Evaluation
from vlhmm.reports.evaluation import compare_with_kneser_ney


def scored(perplexity: float, bits: float | None) -> Evaluation:
    return Evaluation(perplexity, -1.0, 1, 0, None, bits, None, "one stream")


@pytest.mark.parametrize(
    ("ours", "theirs", "expected"),
    [
        ((90.0, 2.0), (99.0, 2.5), "better than Kneser-Ney 5-gram on the test text: 2.000 against 2.500 bits per byte, 20.0 % less"),
        ((90.0, 2.5), (80.0, 2.0), "worse than Kneser-Ney 5-gram on the test text: 2.500 against 2.000 bits per byte, 25.0 % more"),
        ((90.0, None), (60.0, None), "worse than Kneser-Ney 5-gram on the test text: perplexity 90.0 against 60.0, 50.0 % more"),
        ((90.0, 2.0), (90.0, 2.0), "as good as Kneser-Ney 5-gram on the test text: 2.000 against 2.000 bits per byte"),
        ((9.0, 2.0), (1.0, 0.0), "worse than Kneser-Ney 5-gram on the test text: 2.000 against 0.000 bits per byte"),
        ((math.inf, None), (60.0, None), "worse than Kneser-Ney 5-gram on the test text: perplexity inf against 60.0"),
    ],
)  # fmt: skip
def test_the_comparison_says_who_is_better(
    ours: tuple[float, float | None], theirs: tuple[float, float | None], expected: str
) -> None:
    assert compare_with_kneser_ney(scored(*ours), scored(*theirs)) == f"HMM {expected}"
