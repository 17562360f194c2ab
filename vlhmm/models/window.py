"""What a window of text uses of a model: its states, and what its tables are made of."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Bool, Float, Int
from torch import Tensor

from vlhmm.models.dropout import ColumnMask, StateSubset
from vlhmm.models.encoder import StateFeatures, rows
from vlhmm.support import Support
from vlhmm.transitions import Transition

Window = StateSubset | ColumnMask | None
"""The states that a window uses: some of each block, all but with dead columns, or all."""


@dataclass(frozen=True)
class WindowParts:
    """What the tables of a window are made of."""

    support: Support
    states: Int[Tensor, " n"] | None
    features: StateFeatures
    log_start: Float[Tensor, " n"]
    transition: Transition
    boundary: Transition | None


def states_in(window: Window) -> Int[Tensor, " n"] | None:
    """The numbers of the states kept; None: all."""
    return window.states.flatten() if isinstance(window, StateSubset) else None


def live_states(
    emitting: Bool[Tensor, " Z"] | None, states: Int[Tensor, " n"] | None, window: Window
) -> Bool[Tensor, " n"] | None:
    """Which of these states may be entered, of which some may be `emitting` no word; None: all."""
    emitting = None if emitting is None else rows(emitting, states)
    if not isinstance(window, ColumnMask):
        return emitting
    return window.live if emitting is None else window.live & emitting
