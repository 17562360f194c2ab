"""From features or free logits to start, transition and emission: each head independent of the others.

`live` masks the requested states: only live ones may be entered; None: all. The others get probability zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from vlhmm.memory import require_memory
from vlhmm.models.encoder import rows
from vlhmm.models.settings import ModelSettings
from vlhmm.models.unfilled import unfilled
from vlhmm.ops.blocked_recursion import choice
from vlhmm.ops.emission import WordLayout, log_emission, normalize_over_words
from vlhmm.ops.emission.by_token import token_log_emission, token_log_softmax
from vlhmm.ops.emission.word_rows import word_rows
from vlhmm.ops.row_logsumexp import factors_and_row_logsumexp
from vlhmm.ops.table_softmax import table_log_softmax
from vlhmm.precision import Numerics
from vlhmm.support import Support
from vlhmm.transitions import (
    BlockFactoredTransition,
    BlockSoftmaxTransition,
    LowRankTransition,
    SoftmaxTransition,
    TableTransition,
    Transition,
)

States = Int[Tensor, " n"] | None
"""Those asked for, or left; None: all."""
Features = Float[Tensor, "n H"]
Live = Bool[Tensor, " n"] | None
Targets = Int[Tensor, " m"] | None
"""Those entered."""
Into = Float[Tensor, "m H"]
LiveTargets = Bool[Tensor, " m"] | None
LogEmission = Float[Tensor, "X K"]
Rows = Float[Tensor, "N K"]
"""Of the emission, for each of N = B T tokens."""
Tokens = Int[Tensor, "B T"]
StateAxes = Mapping[str, tuple[int, ...]]
"""The axes of states of a head's parameters, by their names; parameters without such axes are left out."""


class FactoredStart(nn.Module):
    """log p(z_1) = log_softmax of w . start_z over the requested states."""

    state_axes: ClassVar[StateAxes] = {}

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.score = unfilled(nn.Linear, dim, 1)

    def forward(self, states: States, features: Features, live: Live) -> Float[Tensor, " n"]:
        return _mask(self.score(features).squeeze(1), live).log_softmax(dim=0)


class ScalarStart(nn.Module):
    """log p(z_1) = log_softmax of a free vector over the requested states."""

    state_axes: ClassVar[StateAxes] = {"logits": (0,)}

    def __init__(self, num_states: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(num_states))

    def forward(self, states: States, features: Features, live: Live) -> Float[Tensor, " n"]:
        return _mask(rows(self.logits, states), live).log_softmax(dim=0)


class SoftmaxHead(nn.Module):
    """log A[z, z'] = out_z . in_z' - log-sum-exp of it over the requested target states z'.

    The precision of the normaliser is that of the tiles it is for, else rows would not sum to one. Not all tiles are `rounded`:
    only the kernels of the blocked recursion round the features of theirs.
    """

    state_axes: ClassVar[StateAxes] = {}

    def __init__(self, out_scale: float, rounded: bool) -> None:
        super().__init__()
        self.out_scale = out_scale
        self.rounded = rounded

    def forward(
        self, source: States, out: Features, target: Targets, into: Into, live: LiveTargets, numerics: Numerics
    ) -> Transition:
        out = _scaled(out, self.out_scale)
        precision = numerics.recursion if self.rounded else "highest"
        out, into, log_normalizer = factors_and_row_logsumexp(out, into, live, precision=precision)
        if live is not None:
            out, into = _behind_barrier(out, into, live)
        return SoftmaxTransition(out, into, log_normalizer)

    def table(self, out: Features, into: Into, live: LiveTargets) -> TableTransition:
        """The same as a table, for a recursion that reads all pairs of states anyway: they are made once."""
        return TableTransition(_mask(_scaled(out, self.out_scale) @ into.T, live).log_softmax(dim=1))


class BlockFactoredHead(nn.Module):
    """log A[z, z'] = log p(m' | z) + log_softmax of out_z . in_z' over the requested states of block m'."""

    state_axes: ClassVar[StateAxes] = {}

    def __init__(self, dim: int, num_blocks: int, out_scale: float) -> None:
        super().__init__()
        self.block = unfilled(nn.Linear, dim, num_blocks)
        self.out_scale = out_scale

    def forward(
        self, source: States, out: Features, target: Targets, into: Into, live: LiveTargets, numerics: Numerics
    ) -> Transition:
        if live is None:
            scaled = _scaled(out, self.out_scale)
            if choice.kernels_take(scaled, into, self.block.weight, numerics.recursion):
                weight = self.block.weight if self.out_scale == 1 else self.block.weight / self.out_scale
                return BlockSoftmaxTransition(scaled, into, weight, self.block.bias)
            return BlockFactoredTransition(self.block(out).log_softmax(dim=1), scaled, into)
        by_block = live.view(self.block.out_features, -1)
        live_blocks = by_block.any(dim=1, keepdim=True)
        log_block = _mask(self.block(out), live_blocks[:, 0]).log_softmax(dim=1)
        # A block without live states is never entered; a softmax over -inf alone would be NaN, so its states are not masked.
        within = (by_block | ~live_blocks).flatten()
        return BlockFactoredTransition(log_block, *_behind_barrier(_scaled(out, self.out_scale), into, within))


class LowRankHead(nn.Module):
    """A[z, z'] = sum over r of p(r | z) p(z' | r), both softmaxes of linear maps of the features."""

    state_axes: ClassVar[StateAxes] = {}

    def __init__(self, dim: int, rank: int, out_scale: float) -> None:
        super().__init__()
        self.to_class = unfilled(nn.Linear, dim, rank)
        self.from_class = unfilled(nn.Linear, dim, rank, bias=False)
        self.out_scale = out_scale

    def forward(
        self, source: States, out: Features, target: Targets, into: Into, live: LiveTargets, numerics: Numerics
    ) -> Transition:
        log_out = self.to_class(_scaled(out, self.out_scale)).log_softmax(dim=1)
        return LowRankTransition(log_out, _mask(self.from_class(into).T, live).log_softmax(dim=1).T)


class TableHead(nn.Module):
    """log A[z, z'] = log_softmax of a free matrix over the requested target states."""

    state_axes: ClassVar[StateAxes] = {"logits": (0, 1)}

    def __init__(self, num_states: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(num_states, num_states))

    def forward(
        self, source: States, out: Features, target: Targets, into: Into, live: LiveTargets, numerics: Numerics
    ) -> Transition:
        if source is not None and live is None:
            return TableTransition(table_log_softmax(self.logits, source, target))
        logits = rows(self.logits, source)
        if target is not None:
            logits = logits.index_select(1, target)
        return TableTransition(_mask(logits, live).log_softmax(dim=1))


class FactoredEmission(nn.Module):
    """log p(x | z) = word_x . emit_z + bias_x, normalised over the words that z can emit."""

    state_axes: ClassVar[StateAxes] = {}

    def __init__(self, num_words: int, dim: int, bias: bool) -> None:
        super().__init__()
        self.words = unfilled(nn.Linear, dim, num_words, bias=bias)

    def forward(
        self, states: States, features: Features, support: Support, layout: WordLayout | None, numerics: Numerics
    ) -> LogEmission:
        words, bias = self.words.weight, self.words.bias
        return log_emission(features, words, bias, support, layout, precision=numerics.tables)

    def rows(
        self,
        tokens: Tokens,
        states: States,
        features: Features,
        support: Support,
        layout: WordLayout | None,
        numerics: Numerics,
    ) -> Rows:
        """`forward`, its rows of the tokens."""
        words, bias = self.words.weight, self.words.bias
        return token_log_emission(features, words, bias, tokens, support, layout, precision=numerics.tables)


class ScalarEmission(nn.Module):
    """log p(x | z) from free logits (x, k), normalised over the words that z can emit."""

    state_axes: ClassVar[StateAxes] = {"logits": (1,)}

    def __init__(self, num_words: int, states_per_word: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(num_words, states_per_word))

    def forward(
        self, states: States, features: Features, support: Support, layout: WordLayout | None, numerics: Numerics
    ) -> LogEmission:
        return normalize_over_words(self._logits(states, support), support, layout)

    def rows(
        self,
        tokens: Tokens,
        states: States,
        features: Features,
        support: Support,
        layout: WordLayout | None,
        numerics: Numerics,
    ) -> Rows:
        """`forward`, its rows of the tokens."""
        return token_log_softmax(self._logits(states, support), tokens, support, layout)

    def _logits(self, states: States, support: Support) -> LogEmission:
        if states is None:
            return self.logits
        # A state's column is its number within its block, and blocks have as many states as columns.
        columns = states.view(support.num_groups, -1) % self.logits.shape[1]
        return self.logits.gather(1, columns.index_select(0, support.group_of_word))


class UnmaskedEmission(nn.Module):
    """log p(x | z) from free logits (z, x), normalised over all words, those that z can never emit included."""

    state_axes: ClassVar[StateAxes] = {"logits": (0,)}

    def __init__(self, num_states: int, num_words: int) -> None:
        super().__init__()
        self.logits = nn.Parameter(torch.empty(num_states, num_words))

    def forward(
        self, states: States, features: Features, support: Support, layout: WordLayout | None, numerics: Numerics
    ) -> LogEmission:
        log_prob = self.logits.log_softmax(dim=1) if states is None else table_log_softmax(self.logits, states, None)
        emitters = support.states_of_group[support.group_of_word]
        # Gathered from the flat table: gathering from the transpose would add a transposition in the backward pass.
        words = torch.arange(support.num_words, device=emitters.device)
        cells = emitters * support.num_words + words[:, None]
        return log_prob.flatten().gather(0, cells.flatten()).view_as(emitters)

    def rows(
        self,
        tokens: Tokens,
        states: States,
        features: Features,
        support: Support,
        layout: WordLayout | None,
        numerics: Numerics,
    ) -> Rows:
        """`forward`, its rows of the tokens."""
        return word_rows(self(states, features, support, layout, numerics), tokens).flatten(0, 1)


def transition_head(settings: ModelSettings, support: Support) -> TransitionHead:
    """The head of `settings.transition`; raises where the support does not allow it, or memory for a table."""
    match settings.transition:
        case "softmax":
            return SoftmaxHead(settings.out_scale, rounded=support.num_groups > 1)
        case "block-factored":
            if not support.partition:
                raise ValueError(
                    'transition "block-factored" needs words and states partitioned into blocks: use "softmax"'
                )
            return BlockFactoredHead(settings.dim, support.num_groups, settings.out_scale)
        case "low-rank":
            return LowRankHead(settings.dim, settings.rank, settings.out_scale)
        case "table":
            require_memory(
                support.num_states**2 * torch.get_default_dtype().itemsize,
                f"a transition table of {support.num_states} states",
                "use fewer states, or a neural or linear parameterization, which stores no table",
                support.group_of_word.device,
            )
            return TableHead(support.num_states)


StartHead = FactoredStart | ScalarStart
TransitionHead = SoftmaxHead | BlockFactoredHead | LowRankHead | TableHead
EmissionHead = FactoredEmission | ScalarEmission | UnmaskedEmission


def _scaled(out: Features, scale: float) -> Features:
    # Skipped for scale 1: a multiplication would read and write the whole tensor, and once more in the backward pass.
    return out if scale == 1 else out * scale


def _mask(logits: Float[Tensor, "... n"], live: Bool[Tensor, " n"] | None) -> Float[Tensor, "... n"]:
    return logits if live is None else logits.masked_fill(~live, -torch.inf)


def _behind_barrier(
    out: Float[Tensor, "n H"], into: Float[Tensor, "m H"], live: Bool[Tensor, " m"]
) -> tuple[Float[Tensor, "n W"], Float[Tensor, "m W"]]:
    """Appends a mask column to the features, 1 times 0 or -inf: masked (dead) states have probability 0 in every product out . in."""
    # Its gradient would be 0 times -inf = NaN, but is never computed: both columns are constants.
    barrier = into.new_zeros(into.shape[0], 1).masked_fill(~live[:, None], -torch.inf)
    ones = out.new_ones(out.shape[0], 1)
    return torch.cat([out, ones], dim=1), torch.cat([into, barrier], dim=1)
