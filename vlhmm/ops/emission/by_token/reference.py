"""The emission of a text's tokens: the specification, and what models take whose tables no kernel reads."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.ops.emission import WordLayout, log_emission, normalize_over_words
from vlhmm.ops.emission.word_rows import word_rows
from vlhmm.precision import Precision
from vlhmm.support import Support


def token_log_emission(
    emit: Float[Tensor, "Z H"],
    words: Float[Tensor, "X H"],
    bias: Float[Tensor, " X"] | None,
    tokens: Int[Tensor, "B T"],
    support: Support,
    layout: WordLayout | None,
    precision: Precision,
) -> Float[Tensor, "N K"]:
    table = log_emission(emit, words, bias, support, layout, precision=precision)
    return word_rows(table, tokens).flatten(0, 1)


def token_log_softmax(
    logits: Float[Tensor, "X K"], tokens: Int[Tensor, "B T"], support: Support, layout: WordLayout | None
) -> Float[Tensor, "N K"]:
    return word_rows(normalize_over_words(logits, support, layout), tokens).flatten(0, 1)
