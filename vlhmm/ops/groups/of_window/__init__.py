"""Source and target group of each position of a window, and where states restart from an initial row (the reset token)."""

from __future__ import annotations

from jaxtyping import Int
from torch import Tensor

from vlhmm.ops import dispatch
from vlhmm.ops.groups.of_window import reference
from vlhmm.ops.groups.of_window.reference import WindowGroups, beginnings

__all__ = ["WindowGroups", "beginnings", "window_groups", "window_groups_by_kernel"]


def window_groups(
    tokens: Int[Tensor, "B T"],
    group_of_word: Int[Tensor, " X"],
    reset_token: int | None = None,
    past: Int[Tensor, " B"] | None = None,
    first_entered: int | None = None,
) -> WindowGroups:
    """States restart from the initial distribution after `reset_token`, and at position 0 without a `past` token.

    At position 0 the source is the group of the past token, or group 0 without one. With `first_entered` it is group
    `first_entered` + b for sequence b.
    """
    by = window_groups_by_kernel if _kernel_takes(tokens) else reference.window_groups
    return by(tokens, group_of_word, reset_token, past, first_entered)


def window_groups_by_kernel(
    tokens: Int[Tensor, "B T"],
    group_of_word: Int[Tensor, " X"],
    reset_token: int | None,
    past: Int[Tensor, " B"] | None,
    first_entered: int | None,
) -> WindowGroups:
    """`window_groups` in one kernel; a word out of range, which is not checked, counts as of group 0."""
    # Imported here, so that the CPU path does not need Triton.
    from vlhmm.ops.groups.of_window import launch

    past = None if past is None else past.contiguous()
    return launch.look_up(tokens.contiguous(), group_of_word.contiguous(), reset_token, past, first_entered)


def _kernel_takes(tokens: Tensor) -> bool:
    return dispatch.WINDOW_GROUPS.serve(tokens)
