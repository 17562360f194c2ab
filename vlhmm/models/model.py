"""The Model: trainable parameters that make tables. It knows no tokens and no recursion."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor, nn

from vlhmm.memory import require_memory
from vlhmm.models.dropout import Kept, draw_kept
from vlhmm.models.encoder import NoEncoder, StateEncoder, rows
from vlhmm.models.heads import (
    BlockFactoredHead,
    EmissionHead,
    FactoredEmission,
    FactoredStart,
    ScalarEmission,
    ScalarStart,
    SoftmaxHead,
    StartHead,
    TableHead,
    TransitionHead,
)
from vlhmm.models.initialisation import initialise
from vlhmm.models.settings import ModelSettings
from vlhmm.ops.emission import WordLayout, emitting_states, word_layout
from vlhmm.tables import Support, Tables, Transition, blocked_support


class Model(nn.Module):
    """An encoder and three heads over one support.

    States can be dropped: a window then uses the states of a `Kept`, renumbered 0, 1, ... in its order. Its
    tables are a smaller HMM: start and transition normalised over the kept states, emissions as they were.
    """

    encoder: StateEncoder | NoEncoder
    start: StartHead
    transition: TransitionHead
    emission: EmissionHead

    def __init__(
        self,
        settings: ModelSettings,
        support: Support,
        reset_token: int | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        _check(settings, support, reset_token)
        self.settings = settings
        self.reset_token = reset_token
        self._num_states = support.num_states
        self._partition = support.partition
        self.register_buffer("group_of_word", support.group_of_word.clone())
        self.register_buffer("states_of_group", support.states_of_group.clone())
        self.group_of_word: Tensor
        self.states_of_group: Tensor

        self._lay_out()
        # A state that is loaded can bring another support.
        self.register_load_state_dict_post_hook(_lay_out_again)

        scalar = settings.parameterization == "scalar"
        self.encoder = NoEncoder(support.num_states) if scalar else StateEncoder(support.num_states, settings)
        self.start = ScalarStart(support.num_states) if scalar else FactoredStart(settings.dim)
        match settings.transition:
            case "softmax":
                self.transition = SoftmaxHead(settings.out_scale, settings.precision)
            case "block-factored":
                self.transition = BlockFactoredHead(settings.dim, support.num_groups, settings.out_scale)
            case "table":
                self.transition = TableHead(support.num_states)
        if scalar:
            self.emission = ScalarEmission(support.num_words, support.states_per_word)
        else:
            self.emission = FactoredEmission(
                support.num_words, settings.dim, settings.emission_bias, settings.precision
            )
        initialise(self, settings, generator)

    def _lay_out(self) -> None:
        """What follows from the support, so is not saved with it."""
        support = self.support
        layout = word_layout(support.group_of_word, support.num_groups)
        emitting = emitting_states(support)
        self._bucket_shapes, self._tile_words = layout.shapes, layout.tile_words
        self.register_buffer("_bucket_words", layout.words, persistent=False)
        self.register_buffer("_bucket_groups", layout.groups, persistent=False)
        self.register_buffer("_word_tiles", layout.tiles, persistent=False)
        self.register_buffer("_group_spans", layout.spans, persistent=False)
        self.register_buffer("_emitting", None if emitting.all() else emitting, persistent=False)
        self._bucket_words: Tensor
        self._bucket_groups: Tensor
        self._word_tiles: Tensor
        self._group_spans: Tensor
        self._emitting: Tensor | None

    @property
    def support(self) -> Support:
        return Support(self.group_of_word, self.states_of_group, self._num_states, self._partition)

    @property
    def num_parameters(self) -> int:
        return sum(parameter.numel() for parameter in self.parameters())

    def tables(self, kept: Kept | None = None) -> Tables:
        """The HMM over the kept states; None: over all."""
        return self.tables_with_boundary(None, kept)[0]

    def boundary(self, source: Kept, target: Kept | None) -> Transition:
        """From the states of `source` to those of `target` (None: all), normalised over `target`.

        `source` may name any blocks in any order, for example those of a batch's last tokens alone.
        """
        target_states = self._flat(target)
        source_states = source.states.flatten()
        into = self.encoder.into(target_states)
        return self._transition(source_states, self.encoder.out(source_states), target_states, into)

    def tables_with_boundary(self, previous: Kept | None, kept: Kept | None) -> tuple[Tables, Transition | None]:
        """`tables(kept)` and `boundary(previous, kept)`, each network run once.

        No boundary for previous = None: then beliefs are carried by the tables' own transition.
        """
        states = self._flat(kept)
        support = self.support_of(kept)
        features = self.encoder.features(states)
        tables = Tables(
            support,
            self.start(states, features.start, self._live(states)),
            self._transition(states, features.out, states, features.into),
            self.emission(states, features.emit, support, self._layout()),
            self.reset_token,
            self.settings.precision,
        )
        if previous is None:
            return tables, None
        source = previous.states.flatten()
        return tables, self._transition(source, self.encoder.out(source), states, features.into)

    def forward(self, previous: Kept | None, kept: Kept | None) -> tuple[Tables, Transition | None]:
        """`tables_with_boundary`."""
        return self.tables_with_boundary(previous, kept)

    def kept_after_dropout(self, dropout: float, generator: torch.Generator | None = None) -> Kept | None:
        """A draw of the states that a window uses; None: all of them."""
        if dropout != 0:
            self._check_partition()
        support = self.support
        return draw_kept(support.num_groups, support.states_per_word, dropout, generator, support.group_of_word.device)

    def all_states(self) -> Kept:
        """All states as a `Kept`, for a boundary that comes from a window without dropout."""
        self._check_partition()
        return Kept(self.states_of_group)

    def support_of(self, kept: Kept | None) -> Support:
        """The support of `tables(kept)`."""
        if kept is None:
            return self.support
        self._check_partition()
        if kept.states.shape[0] != self.states_of_group.shape[0]:
            raise ValueError(
                f"states are kept for {kept.states.shape[0]} blocks, but the model has "
                f"{self.states_of_group.shape[0]}: keep some of each"
            )
        return blocked_support(self.group_of_word, *kept.states.shape)

    def _transition(self, source: Tensor | None, out: Tensor, target: Tensor | None, into: Tensor) -> Transition:
        transition: Transition = self.transition(source, out, target, into, self._live(target))
        return transition

    def _flat(self, kept: Kept | None) -> Int[Tensor, " n"] | None:
        return None if kept is None else kept.states.flatten()

    def _live(self, states: Int[Tensor, " n"] | None) -> Tensor | None:
        return None if self._emitting is None else rows(self._emitting, states)

    def _layout(self) -> WordLayout:
        return WordLayout(
            self._bucket_words,
            self._bucket_groups,
            self._bucket_shapes,
            self._word_tiles,
            self._group_spans,
            self._tile_words,
        )

    def _check_partition(self) -> None:
        if not self._partition:
            raise ValueError("state dropout keeps states of each block: it needs a support that is a partition")


def _lay_out_again(model: Model, _: object) -> None:
    # A function of the module, not a bound method: copies of a model then refer to themselves, and can be pickled.
    model._lay_out()


def _check(settings: ModelSettings, support: Support, reset_token: int | None) -> None:
    if settings.states_per_block != support.states_per_word:
        raise ValueError(
            f"the settings ask for {settings.states_per_block} states per block, but the support has "
            f"{support.states_per_word}: set states_per_block to that"
        )
    if settings.transition == "block-factored" and not support.partition:
        raise ValueError('transition "block-factored" needs words and states partitioned into blocks: use "softmax"')
    if settings.transition == "table":
        require_memory(
            support.num_states**2 * torch.get_default_dtype().itemsize,
            f"a transition table of {support.num_states} states",
            "use fewer states, or a neural or linear parameterization, which stores no table",
            support.group_of_word.device,
        )
    if reset_token is not None and not 0 <= reset_token < support.num_words:
        raise ValueError(f"the reset token is {reset_token}, but tokens go from 0 to {support.num_words - 1}")
