"""log p(x | z) for each word over its own K states, normalised over the words that a state can emit."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from vlhmm.ops import dispatch
from vlhmm.ops.emission.blocked import blocked_log_emission, blocked_log_softmax
from vlhmm.ops.emission.column import column_log_softmax
from vlhmm.ops.emission.layout import WordLayout, word_layout
from vlhmm.ops.emission.scattered import logits_of_all_pairs, scattered_log_softmax, scattered_logits
from vlhmm.precision import Precision
from vlhmm.support import Support

__all__ = ["WordLayout", "emitting_states", "log_emission", "normalize_over_words", "word_layout"]


def log_emission(
    emit: Float[Tensor, "Z H"],
    words: Float[Tensor, "X H"],
    bias: Float[Tensor, " X"] | None,
    support: Support,
    layout: WordLayout | None = None,
    *,
    precision: Precision = "highest",
) -> Float[Tensor, "X K"]:
    """emit_z . word_x + bias_x, normalised over the words that z can emit: log p(x | z) for x's own z.

    `layout` is `word_layout` of the same groups: keep one for repeated calls. On a GPU the products of float32 read their
    operands in `precision`.
    """
    if support.partition and _kernels_take(emit, words, bias):
        # Imported here, so that the CPU path does not need Triton.
        from vlhmm.ops.emission.launch import tiled_log_emission

        return tiled_log_emission(emit, words, bias, layout or _layout(support), precision)
    if support.partition and support.num_groups > 1:
        blocks = emit.view(support.num_groups, support.states_per_word, emit.shape[1])
        return blocked_log_emission(blocks, words, bias, layout or _layout(support))
    if support.partition:
        logits = words @ emit.T
    else:
        states = support.states_of_group[support.group_of_word]
        if emit.is_cuda:
            rounds = emit.dtype == words.dtype == torch.float32
            logits = logits_of_all_pairs(emit, words, states, precision if rounds else "highest")
        else:
            logits = scattered_logits(emit, words, states)
    if bias is not None:
        logits = logits + bias[:, None]
    return normalize_over_words(logits, support)


def normalize_over_words(
    logits: Float[Tensor, "X K"], support: Support, layout: WordLayout | None = None
) -> Float[Tensor, "X K"]:
    """logits - log sum exp over the words of the same state: log p(x | z) for x's own states z."""
    if support.dense:
        return column_log_softmax(logits)
    # On a GPU every group size would need kernel launches of its own.
    if not support.partition or logits.is_cuda:
        states = support.states_of_group[support.group_of_word]
        return scattered_log_softmax(logits, states, support.num_states)
    return blocked_log_softmax(logits, layout or _layout(support))


def emitting_states(support: Support) -> Bool[Tensor, " Z"]:
    """The states that can emit some word; the others must have probability zero in start and transition."""
    used_groups = torch.bincount(support.group_of_word, minlength=support.num_groups) > 0
    emitting = torch.zeros(support.num_states, dtype=torch.bool, device=support.group_of_word.device)
    emitting[support.states_of_group[used_groups].flatten()] = True
    return emitting


def _layout(support: Support) -> WordLayout:
    return word_layout(support.group_of_word, support.num_groups)


def _kernels_take(emit: Tensor, words: Tensor, bias: Tensor | None) -> bool:
    return dispatch.EMISSION.serve(emit, words, bias)
