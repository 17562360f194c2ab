"""The Model: trainable parameters that make tables. It knows no tokens and no recursion."""

from __future__ import annotations

from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from vlhmm.models.dropout import ColumnMask, StateSubset, draw_columns, draw_kept
from vlhmm.models.emission_floor import above_floor
from vlhmm.models.heads import EmissionHead, SoftmaxHead, StartHead, TransitionHead, transition_head
from vlhmm.models.initialisation import initialise
from vlhmm.models.networks import Encoder, emission_head, encoder_of, require_agreement, start_head
from vlhmm.models.settings import ModelSettings
from vlhmm.models.support_layout import SupportLayout
from vlhmm.models.window import Window, WindowParts, live_states, states_in
from vlhmm.precision import EXACT, Numerics
from vlhmm.support import Support, blocked_support
from vlhmm.tables import Tables, WindowTables
from vlhmm.transitions import Transition


class Model(nn.Module):
    """A trainable module that computes the tables of an HMM: an encoder of states, and heads for start, transition and emission.

    `neural_hmm`, `linear_hmm` and `scalar_hmm` make the usual ones. With state dropout a window uses the states of a `StateSubset`,
    renumbered 0, 1, ... in its order. Its tables are those of a smaller HMM: start and transition are normalised over the states
    kept, emissions are unchanged. Under `ColumnMask` states keep their numbers, and start and transition are normalised over the
    states alive.

    Args:
        settings: Parameterization, sizes and initialisation.
        support: Which states can emit which word.
        reset_token: After this token the next state is drawn from the start distribution; None: never.
        generator: Random numbers of the initialisation; None: the global generator of PyTorch.

    Attributes:
        settings: The settings.
        reset_token: The reset token.
        encoder: State embeddings and networks.
        start: Head of p(z_1).
        transition: Head of p(z' | z).
        emission: Head of p(x | z).

    Raises:
        ValueError: Settings and support do not agree, or a table does not fit in memory.

    Example:
        >>> import numpy as np
        >>> blocks = vlhmm.Blocks(np.array([0, 0, 1, 1, 1]), num_blocks=2)
        >>> model = vlhmm.neural_hmm(blocks, states_per_block=4, dim=8)
        >>> vlhmm.HMM(model.tables().detach())
        HMM(8 states in 2 groups, 5 words, torch.float32, cpu)
    """

    encoder: Encoder
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
        require_agreement(settings, support, reset_token)
        self.settings = settings
        self.reset_token = reset_token
        self._num_states = support.num_states
        self._partition = support.partition
        self.register_buffer("group_of_word", support.group_of_word.clone())
        self.register_buffer("states_of_group", support.states_of_group.clone())
        self.group_of_word: Tensor
        self.states_of_group: Tensor

        self._layout = SupportLayout(self.support)
        # A state that is loaded can bring another support.
        self.register_load_state_dict_post_hook(_lay_out_again)

        self.encoder = encoder_of(settings, support)
        self.start = start_head(settings, support)
        self.transition = transition_head(settings, support)
        self.emission = emission_head(settings, support)
        initialise(self, settings, generator)

    @property
    def support(self) -> Support:
        """Which states can emit which word."""
        return Support(self.group_of_word, self.states_of_group, self._num_states, self._partition)

    def __repr__(self) -> str:
        support = self.support
        blocks = f" in {support.num_groups:,} blocks" if support.num_groups > 1 else ""
        return (
            f"Model({self.settings.parameterization}, {support.num_states:,} states{blocks}, {support.num_words:,} words, "
            f"{self.num_parameters:,} parameters, {self.group_of_word.device})"
        )

    @property
    def num_parameters(self) -> int:
        """Number of trainable parameters."""
        return sum(parameter.numel() for parameter in self.parameters())

    def tables(self, window: Window = None, *, numerics: Numerics = EXACT) -> Tables:
        """Compute the tables of the HMM.

        Args:
            window: The states in use, a `StateSubset` or `ColumnMask`; None: all.
            numerics: What matrix products on a GPU read, here and in the recursion; the default is float32.

        Returns:
            The tables, differentiable in the parameters.

        Example:
            >>> import numpy as np
            >>> blocks = vlhmm.Blocks(np.array([0, 0, 1, 1, 1]), num_blocks=2)
            >>> model = vlhmm.neural_hmm(blocks, states_per_block=4, dim=8)
            >>> loss = -vlhmm.HMM(model.tables()).log_prob([[0, 2, 1]]).sum()
            >>> loss.backward()
        """
        return self.tables_with_boundary(None, window, numerics=numerics)[0]

    def boundary(self, source: StateSubset, target: StateSubset | None, *, numerics: Numerics = EXACT) -> Transition:
        """Compute the transition from the states of one window to those of the next, normalised over the latter.

        Args:
            source: Source states, of any blocks in any order.
            target: Target states; None: all.
            numerics: What matrix products on a GPU read.

        Returns:
            The transition, a row for each source state.

        Example:
            >>> import numpy as np
            >>> model = vlhmm.neural_hmm(vlhmm.Blocks(np.array([0, 0, 1]), num_blocks=2), states_per_block=4, dim=8)
            >>> kept = model.kept_after_dropout(0.5, torch.Generator().manual_seed(0))
            >>> model.boundary(model.all_states(), kept).log_rows(torch.tensor([0])).shape
            torch.Size([1, 4])
        """
        target_states = states_in(target)
        source_states = source.states.flatten()
        into = self.encoder.into(target_states, numerics)
        live = live_states(self._layout.emitting, target_states, None)
        transition: Transition = self.transition(
            source_states, self.encoder.out(source_states, numerics), target_states, into, live, numerics
        )
        return transition

    def tables_with_boundary(
        self,
        previous: StateSubset | None,
        window: Window,
        *,
        with_start: bool = True,
        numerics: Numerics = EXACT,
    ) -> tuple[Tables, Transition | None]:
        """Compute `tables(window)` and `boundary(previous, window)` in one pass of the networks.

        Args:
            previous: The states of the window before; None: no boundary is needed, beliefs move by the transition of the tables.
            window: The states in use, a `StateSubset` or `ColumnMask`; None: all.
            with_start: Compute the start distribution. Without it the start is -inf, for a window that never reads it.
            numerics: What matrix products on a GPU read.

        Returns:
            The tables, and the transition from the states of `previous` or None.

        Example:
            >>> import numpy as np
            >>> model = vlhmm.neural_hmm(vlhmm.Blocks(np.array([0, 0, 1]), num_blocks=2), states_per_block=4, dim=8)
            >>> kept = model.kept_after_dropout(0.5, torch.Generator().manual_seed(0))
            >>> tables, boundary = model.tables_with_boundary(model.all_states(), kept)
            >>> tables.num_states, boundary.log_rows(torch.tensor([0])).shape
            (4, torch.Size([1, 4]))
        """
        parts = self._parts(previous, window, with_start, numerics)
        log_emission = self.emission(parts.states, parts.features.emit, parts.support, self._layout.words(), numerics)
        log_emission = above_floor(log_emission, self.settings.emission_floor, parts.support)
        tables = Tables(
            parts.support, parts.log_start, parts.transition, log_emission, self.reset_token, numerics.recursion
        )
        return tables, parts.boundary

    def window_tables(
        self, previous: StateSubset | None, window: Window, *, with_start: bool = True, numerics: Numerics = EXACT
    ) -> tuple[WindowTables, Transition | None]:
        """Compute `tables_with_boundary` without the table of emissions, for a window that reads few of its rows.

        Args:
            previous: The states of the window before; None: no boundary is needed.
            window: The states in use; None: all.
            with_start: Compute the start distribution.
            numerics: What matrix products on a GPU read.

        Returns:
            Tables that compute the emissions of a window's tokens on demand, and the transition from the states of
            `previous` or None.

        Example:
            >>> import numpy as np
            >>> model = vlhmm.neural_hmm(vlhmm.Blocks(np.zeros(5, np.int64), 1), states_per_block=4, dim=8)
            >>> tables, _ = model.window_tables(None, None)
            >>> torch.allclose(tables.emissions_of(torch.tensor([[2]])), model.tables().log_emission[2])
            True
        """
        parts = self._parts(previous, window, with_start, numerics, as_table=True)
        emissions_of = partial(self._emissions_of, parts, numerics)
        tables = WindowTables(
            parts.support, parts.log_start, parts.transition, emissions_of, self.reset_token, numerics.recursion
        )
        return tables, parts.boundary

    def _emissions_of(
        self, parts: WindowParts, numerics: Numerics, tokens: Int[Tensor, "B T"]
    ) -> Float[Tensor, "B T K"]:
        made_for = (parts.states, parts.features.emit, parts.support, self._layout.words(), numerics)
        log_emission = self.emission.rows(tokens, *made_for)
        log_emission = above_floor(log_emission, self.settings.emission_floor, parts.support, tokens)
        return log_emission.view(*tokens.shape, -1)

    def _parts(
        self, previous: StateSubset | None, window: Window, with_start: bool, numerics: Numerics, as_table: bool = False
    ) -> WindowParts:
        """All but the emission; `as_table`: a softmax over all states of a dense HMM is not left in factors."""
        states, leaving = states_in(window), None
        if previous is not None:
            numbers = self.states_of_group.flatten() if states is None else states
            leaving = torch.cat([numbers, previous.states.flatten()])
        support = self.support_of(window)
        features = self.encoder.features(states, leaving, start=with_start, numerics=numerics)
        live = live_states(self._layout.emitting, states, window)
        if features.start is None:
            log_start = features.emit.new_full((support.num_states,), -torch.inf)
        else:
            log_start = self.start(states, features.start, live)
        head = self.transition
        if as_table and support.num_groups == 1 and isinstance(head, SoftmaxHead):
            transition: Transition = head.table(features.out, features.into, live)
        else:
            left = states if leaving is None else leaving
            transition = head(left, features.out, states, features.into, live, numerics)
        boundary = None
        if previous is not None:
            transition, boundary = transition.split_rows([support.num_states, previous.states.numel()])
        return WindowParts(support, states, features, log_start, transition, boundary)

    def forward(
        self,
        previous: StateSubset | None,
        window: Window,
        *,
        with_start: bool = True,
        numerics: Numerics = EXACT,
    ) -> tuple[Tables, Transition | None]:
        """Compute `tables_with_boundary`, as `model(...)` of PyTorch.

        Args:
            previous: The states of the window before; None: no boundary is needed.
            window: The states in use; None: all.
            with_start: Compute the start distribution.
            numerics: What matrix products on a GPU read.

        Returns:
            The tables, and the transition from the states of `previous` or None.

        Example:
            >>> import numpy as np
            >>> model = vlhmm.neural_hmm(vlhmm.Blocks(np.array([0, 0, 1]), num_blocks=2), states_per_block=4, dim=8)
            >>> tables, boundary = model(None, None)
            >>> tables.num_states, boundary
            (8, None)
        """
        return self.tables_with_boundary(previous, window, with_start=with_start, numerics=numerics)

    def kept_after_dropout(
        self, dropout: float, generator: torch.Generator | None = None, into: Int[Tensor, "M K"] | None = None
    ) -> StateSubset | None:
        """Draw the states that a window uses, equally many of each block.

        Args:
            dropout: The part of each block's states that is dropped, in [0, 1).
            generator: Random numbers; None: the global generator of PyTorch.
            into: Tensor that receives the state numbers; None: a new one.

        Returns:
            The states kept; None: all of them.

        Raises:
            ValueError: `dropout` is out of range, or the support is no partition.

        Example:
            >>> import numpy as np
            >>> model = vlhmm.neural_hmm(vlhmm.Blocks(np.array([0, 0, 1]), num_blocks=2), states_per_block=4, dim=8)
            >>> model.kept_after_dropout(0.5, torch.Generator().manual_seed(0)).states.shape
            torch.Size([2, 2])
        """
        if dropout != 0:
            self._check_partition()
        num_blocks, states_per_block = self.states_of_group.shape
        return draw_kept(num_blocks, states_per_block, dropout, generator, self.group_of_word.device, into)

    def columns_after_dropout(self, dropout: float, generator: torch.Generator | None = None) -> ColumnMask | None:
        """Draw the states that a window may enter, each independently; every word keeps at least one of its states.

        Args:
            dropout: The probability that a state cannot be entered, in [0, 1).
            generator: Random numbers; None: the global generator of PyTorch.

        Returns:
            The mask of states; None: all may be entered.

        Raises:
            ValueError: `dropout` is out of range.

        Example:
            >>> import numpy as np
            >>> model = vlhmm.neural_hmm(vlhmm.Blocks(np.array([0, 0, 1]), num_blocks=2), states_per_block=4, dim=8)
            >>> model.columns_after_dropout(0.5, torch.Generator().manual_seed(0)).live.shape
            torch.Size([8])
        """
        return draw_columns(self.support, dropout, generator, self.group_of_word.device)

    def all_states(self) -> StateSubset:
        """Return all states as a `StateSubset`, for a boundary from a window without dropout.

        Returns:
            All states of all blocks.

        Raises:
            ValueError: The support is no partition.

        Example:
            >>> import numpy as np
            >>> model = vlhmm.neural_hmm(vlhmm.Blocks(np.array([0, 0, 1]), num_blocks=2), states_per_block=4, dim=8)
            >>> model.all_states().states
            tensor([[0, 1, 2, 3],
                    [4, 5, 6, 7]])
        """
        self._check_partition()
        return StateSubset(self.states_of_group)

    def support_of(self, window: Window) -> Support:
        """Return the support of `tables(window)`.

        Args:
            window: The states in use; None: all.

        Returns:
            The support over the states in use.

        Raises:
            ValueError: The window has another number of blocks than the model.

        Example:
            >>> import numpy as np
            >>> model = vlhmm.neural_hmm(vlhmm.Blocks(np.array([0, 0, 1]), num_blocks=2), states_per_block=4, dim=8)
            >>> model.support_of(model.kept_after_dropout(0.5, torch.Generator().manual_seed(0))).num_states
            4
        """
        if not isinstance(window, StateSubset):
            return self.support
        self._check_partition()
        if window.states.shape[0] != self.states_of_group.shape[0]:
            raise ValueError(
                f"states are kept for {window.states.shape[0]} blocks, but the model has "
                f"{self.states_of_group.shape[0]}: keep some of each"
            )
        return blocked_support(self.group_of_word, *window.states.shape)

    def _check_partition(self) -> None:
        if not self._partition:
            raise ValueError(
                "state dropout keeps states of each block: it needs a support that is a partition, or dropout by columns"
            )


def _lay_out_again(model: Model, _: object) -> None:
    # A function of the module, not a bound method: copies of a model then refer to themselves, and can be pickled.
    model._layout = SupportLayout(model.support)
