"""The frozen records that inference reads: all that a hidden Markov model is once its numbers are known.

Letters for axes: B batch, T time, Z states, X words, G groups of states, K states of a word, U distinct tiles, H width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from vlhmm.factored_tiles import factored_tiles
from vlhmm.precision import Precision

Record = TypeVar("Record")


def mapped(record: Record, change: Callable[[Tensor], Tensor]) -> Record:
    """The same record with each of its tensors changed."""

    def of(value: Any) -> Any:
        if isinstance(value, Tensor):
            return change(value)
        return mapped(value, change) if is_dataclass(value) else value

    return replace(record, **{field.name: of(getattr(record, field.name)) for field in fields(record)})  # type: ignore[arg-type, type-var]


def convert(record: Record, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Record:
    """The same record with its tensors on `device`, the floating ones in `dtype`."""
    return mapped(record, lambda tensor: tensor.to(device=device, dtype=dtype if tensor.is_floating_point() else None))


def requires_grad(record: Any) -> bool:
    """Whether autograd would follow any tensor of the record."""
    values = [getattr(record, field.name) for field in fields(record)]
    return torch.is_grad_enabled() and any(
        value.requires_grad if isinstance(value, Tensor) else is_dataclass(value) and requires_grad(value)
        for value in values
    )


@dataclass(frozen=True)
class Support:
    """Which states can emit which word: word x only the K states `states_of_group[group_of_word[x]]`.

    Words are in G groups, and each group has K states. `dense_support`, `blocked_support`, `cloned_support` and `uniform_support`
    of `vlhmm.tables` make the usual ones.

    Example:
        >>> from vlhmm.tables import blocked_support
        >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=4)
        >>> support.num_states, support.num_groups, support.states_per_word
        (8, 2, 4)
        >>> support.states_of_group
        tensor([[0, 1, 2, 3],
                [4, 5, 6, 7]])
    """

    group_of_word: Int[Tensor, " X"]
    """The group of each word."""
    states_of_group: Int[Tensor, "G K"]
    """The states of each group."""
    num_states: int
    """Number of states, Z."""
    partition: bool
    """Every state is in exactly one group, and group g has the states g K, ..., g K + K - 1."""

    @property
    def num_words(self) -> int:
        """Size of the vocabulary, X."""
        return self.group_of_word.shape[0]

    @property
    def num_groups(self) -> int:
        """Number of groups, G."""
        return self.states_of_group.shape[0]

    @property
    def states_per_word(self) -> int:
        """Number of states that can emit a word, K."""
        return self.states_of_group.shape[1]

    @property
    def dense(self) -> bool:
        """Whether there is one group of all states, so that every state can emit every word."""
        return self.partition and self.num_groups == 1

    def states_of(self, words: Int[Tensor, ...]) -> Int[Tensor, "... K"]:
        """Return the states that can emit each word.

        Args:
            words: Token ids of any shape.

        Returns:
            State numbers, of the shape of `words` with an axis K at the end.

        Example:
            >>> from vlhmm.tables import blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=4)
            >>> support.states_of(torch.tensor([2, 0]))
            tensor([[4, 5, 6, 7],
                    [0, 1, 2, 3]])
        """
        if self.num_groups == 1:
            return self.states_of_group[0].expand(*words.shape, -1)
        return self.states_of_group[self.group_of_word[words]]

    def blocks(self, per_state: Tensor) -> Tensor:
        """View a tensor over states as one over groups and their states; the support must be a partition.

        Args:
            per_state: Tensor (Z, ...).

        Returns:
            The view (G, K, ...).

        Example:
            >>> from vlhmm.tables import blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=2)
            >>> support.blocks(torch.tensor([0.1, 0.2, 0.3, 0.4]))
            tensor([[0.1000, 0.2000],
                    [0.3000, 0.4000]])
        """
        return per_state.view(self.num_groups, -1, *per_state.shape[1:])

    def rows(self, per_state: Tensor, groups: Int[Tensor, " U"]) -> Tensor:
        """Select per_state[states of each group].

        Args:
            per_state: Tensor (Z, ...).
            groups: Group numbers (U,).

        Returns:
            Tensor (U, K, ...).

        Example:
            >>> from vlhmm.tables import blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=2)
            >>> support.rows(torch.tensor([0.1, 0.2, 0.3, 0.4]), torch.tensor([1]))
            tensor([[0.3000, 0.4000]])
        """
        if self.partition:
            # Whole blocks: one long copy a group, and a gradient that adds whole blocks.
            blocks = self.blocks(per_state)
            whole = self.num_groups == 1 and groups.shape[0] == 1
            # Unlike indexing, `index_select` has a gradient that sorts nothing.
            return blocks if whole else blocks.index_select(0, groups)
        states = self.states_of_group[groups]
        return per_state.index_select(0, states.flatten()).view(*states.shape, *per_state.shape[1:])


def dense_support(num_words: int, num_states: int) -> Support:
    """Every state emits every word."""
    return blocked_support(torch.zeros(num_words, dtype=torch.int64), 1, num_states)


def blocked_support(block_of_word: Int[Tensor, " X"], num_blocks: int, states_per_block: int) -> Support:
    """Words and states are partitioned into blocks; a word is emitted by the states of its block."""
    num_states = num_blocks * states_per_block
    states = torch.arange(num_states, device=block_of_word.device).view(num_blocks, states_per_block)
    return Support(block_of_word, states, num_states, partition=True)


def cloned_support(num_words: int, clones: int) -> Support:
    """Every word has states of its own: a cloned HMM."""
    return blocked_support(torch.arange(num_words), num_words, clones)


def uniform_support(num_words: int, num_states: int, states_per_word: int, generator: torch.Generator) -> Support:
    """Each word draws its states independently, without replacement: no partition."""
    if not 1 <= states_per_word <= num_states:
        raise ValueError(
            f"states_per_word is {states_per_word}, but each word needs between 1 and num_states = {num_states} states"
        )
    # Sorted random keys give distinct states; a few words at a time bound the memory by 64 MiB.
    words_at_once = max(1, (1 << 23) // num_states)
    states = torch.cat(
        [
            torch.rand(min(words_at_once, num_words - first), num_states, generator=generator)
            .topk(states_per_word)
            .indices
            for first in range(0, num_words, words_at_once)
        ]
    )
    return Support(torch.arange(num_words), states.sort(dim=1).values, num_states, partition=False)


@dataclass(frozen=True)
class TableTransition:
    """A transition stored as a table, log p(z' | z) = log_prob[z, z'].

    Example:
        >>> from vlhmm.tables import TableTransition
        >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
        >>> transition.log_rows(torch.tensor([1])).exp()
        tensor([[0.4000, 0.6000]])
    """

    log_prob: Float[Tensor, "Z Y"]
    """log p(z' | z), source state z in the row."""

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        """Compute log p(z' | z) for some source states and all target states.

        Args:
            states: Source states (N,).

        Returns:
            Log-probabilities (N, Z).

        Example:
            >>> from vlhmm.tables import TableTransition
            >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> transition.log_rows(torch.tensor([0, 1])).exp()
            tensor([[0.7000, 0.3000],
                    [0.4000, 0.6000]])
        """
        return self.log_prob[states]

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
        """Compute log p(z' | z) between the states of pairs of groups.

        Args:
            source: The support of the source states.
            source_groups: Source group of each pair (U,).
            target: The support of the target states.
            target_groups: Target group of each pair (U,).

        Returns:
            One tile for each pair (U, K, K).

        Example:
            >>> from vlhmm.tables import TableTransition, blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=1)
            >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
            >>> transition.log_tiles(support, torch.tensor([0]), support, torch.tensor([1])).exp()
            tensor([[[0.3000]]])
        """
        if source.partition and target.partition:
            sources, targets = source.num_groups, target.num_groups
            if sources == targets == source_groups.shape[0] == 1:
                return self.log_prob[None]
            # Rows of a tile are pieces of rows of the table; the gradient of `index_select` sorts nothing.
            states = torch.arange(source.states_per_word, device=source_groups.device)
            pieces = (source_groups[:, None] * source.states_per_word + states) * targets + target_groups[:, None]
            width = self.log_prob.shape[1] // targets
            return self.log_prob.reshape(-1, width).index_select(0, pieces.flatten()).view(*pieces.shape, width)
        from_states = source.states_of_group[source_groups]
        to_states = target.states_of_group[target_groups]
        return self.log_prob[from_states[:, :, None], to_states[:, None, :]]


@dataclass(frozen=True)
class SoftmaxTransition:
    """A softmax over all target states, log p(z' | z) = out_z . into_z' - log_normalizer_z.

    Example:
        >>> from vlhmm.tables import SoftmaxTransition
        >>> out, into = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0]])
        >>> transition = SoftmaxTransition(out, into, (out @ into.T).logsumexp(1))
        >>> transition.log_rows(torch.tensor([0, 1])).exp()
        tensor([[0.2689, 0.7311],
                [0.1192, 0.8808]])
    """

    out: Float[Tensor, "Z H"]
    """Features of the source states."""
    into: Float[Tensor, "Y H"]
    """Features of the target states."""
    log_normalizer: Float[Tensor, " Z"]
    """log sum over z' of exp(out_z . into_z')."""

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        """Compute log p(z' | z) for some source states and all target states.

        Args:
            states: Source states (N,).

        Returns:
            Log-probabilities (N, Z).

        Example:
            >>> from vlhmm.tables import SoftmaxTransition
            >>> out, into = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0]])
            >>> transition = SoftmaxTransition(out, into, (out @ into.T).logsumexp(1))
            >>> transition.log_rows(torch.tensor([1])).exp()
            tensor([[0.1192, 0.8808]])
        """
        return self.out[states] @ self.into.T - self.log_normalizer[states, None]

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
        """Compute log p(z' | z) between the states of pairs of groups.

        Args:
            source: The support of the source states.
            source_groups: Source group of each pair (U,).
            target: The support of the target states.
            target_groups: Target group of each pair (U,).

        Returns:
            One tile for each pair (U, K, K).

        Example:
            >>> from vlhmm.tables import SoftmaxTransition, blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=1)
            >>> out, into = torch.tensor([[1.0], [2.0]]), torch.tensor([[0.0], [1.0]])
            >>> transition = SoftmaxTransition(out, into, (out @ into.T).logsumexp(1))
            >>> transition.log_tiles(support, torch.tensor([0]), support, torch.tensor([1])).exp()
            tensor([[[0.7311]]])
        """
        row_term = -source.rows(self.log_normalizer, source_groups)
        if source.partition and target.partition:
            blocks = source.blocks(self.out), target.blocks(self.into)
            return factored_tiles(*blocks, row_term, source_groups, target_groups, normalised=False)
        logits = source.rows(self.out, source_groups) @ target.rows(self.into, target_groups).mT
        return logits + row_term[:, :, None]


@dataclass(frozen=True)
class BlockFactoredTransition:
    """A softmax over blocks, then one within the block, p(z' | z) = p(m' | z) p(z' | m', z) for z' in block m'.

    log p(z' | m', z) = out_z . into_z' - log sum over the states z'' of block m' of exp(out_z . into_z''). It is exact and
    normalised without a sum over all pairs of states. The support must be a partition.

    Example:
        >>> from vlhmm.tables import BlockFactoredTransition
        >>> log_block = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
        >>> transition = BlockFactoredTransition(log_block, torch.ones(2, 1), torch.ones(2, 1))
        >>> transition.log_rows(torch.tensor([0, 1])).exp()
        tensor([[0.9000, 0.1000],
                [0.5000, 0.5000]])
    """

    log_block: Float[Tensor, "Z M"]
    """log p(m' | z), the probability of each target block."""
    out: Float[Tensor, "Z H"]
    """Features of the source states."""
    into: Float[Tensor, "Y H"]
    """Features of the target states."""

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        """Compute log p(z' | z) for some source states and all target states.

        Args:
            states: Source states (N,).

        Returns:
            Log-probabilities (N, Z).

        Example:
            >>> from vlhmm.tables import BlockFactoredTransition
            >>> log_block = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
            >>> transition = BlockFactoredTransition(log_block, torch.ones(2, 1), torch.ones(2, 1))
            >>> transition.log_rows(torch.tensor([0])).exp()
            tensor([[0.9000, 0.1000]])
        """
        logits = (self.out[states] @ self.into.T).view(states.shape[0], self.log_block.shape[1], -1)
        return (self.log_block[states][:, :, None] + logits.log_softmax(dim=2)).flatten(1)

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
        """Compute log p(z' | z) between the states of pairs of groups.

        Args:
            source: The support of the source states.
            source_groups: Source group of each pair (U,).
            target: The support of the target states.
            target_groups: Target group of each pair (U,).

        Returns:
            One tile for each pair (U, K, K).

        Example:
            >>> from vlhmm.tables import BlockFactoredTransition, blocked_support
            >>> support = blocked_support(torch.tensor([0, 0, 1]), num_blocks=2, states_per_block=1)
            >>> log_block = torch.tensor([[0.9, 0.1], [0.5, 0.5]]).log()
            >>> transition = BlockFactoredTransition(log_block, torch.ones(2, 1), torch.ones(2, 1))
            >>> transition.log_tiles(support, torch.tensor([0]), support, torch.tensor([1])).exp()
            tensor([[[0.1000]]])
        """
        # (M, K, M'): for each tile the source block's K states against one target block.
        log_block = source.blocks(self.log_block)[source_groups, :, target_groups]
        blocks = source.blocks(self.out), target.blocks(self.into)
        return factored_tiles(*blocks, log_block, source_groups, target_groups, normalised=True)


Transition = TableTransition | SoftmaxTransition | BlockFactoredTransition


@dataclass(frozen=True)
class Tables:
    """The parameters of one HMM: start, transition and emission, as log-probabilities.

    Example:
        >>> from vlhmm.tables import Tables, TableTransition, dense_support
        >>> emission = torch.tensor([[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> transition = TableTransition(torch.tensor([[0.7, 0.3], [0.4, 0.6]]).log())
        >>> tables = Tables(dense_support(3, 2), torch.tensor([0.6, 0.4]).log(), transition, emission.T.log())
        >>> vlhmm.HMM(tables)
        HMM(2 states, 3 words, torch.float32, cpu)
    """

    support: Support
    """Which states can emit which word."""
    log_start: Float[Tensor, " Z"]
    """log p(z_1)."""
    transition: Transition
    """log p(z' | z), as a table or in factors."""
    log_emission: Float[Tensor, "rows K"]
    """log p(x | z) for the K states z that can emit x, a row for every word; nothing is stored for the other states."""
    reset_token: int | None = None
    """After this token the next state is drawn from the start distribution; None: never."""
    precision: Precision = "bf16"
    """What matrix products on a GPU read: bf16, tf32 or highest (float32). A CPU computes in the dtype of the tables."""
    by_position: bool = False
    """`log_emission` has a row for every position of the one batch that the tables were made to score, instead of every word."""

    @property
    def num_states(self) -> int:
        """Number of states, Z."""
        return self.support.num_states

    @property
    def num_words(self) -> int:
        """Size of the vocabulary, X."""
        return self.support.num_words

    def emissions_of(self, words: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
        """Look up log p(x | z) over the K states that can emit each word.

        Args:
            words: Token ids (B, T).

        Returns:
            Log-probabilities (B, T, K).

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.tables.emissions_of(torch.tensor([[0, 2]])).exp()
            tensor([[[0.5000, 0.1000],
                     [0.1000, 0.6000]]])
        """
        rows = self.log_emission.index_select(0, words.flatten())
        return rows.view(*words.shape, -1)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the tables."""
        return self.log_emission.dtype

    @property
    def device(self) -> torch.device:
        """The device of the tables."""
        return self.log_emission.device

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tables:
        """Return a copy on another device or in another dtype.

        Args:
            device: The new device; None: unchanged.
            dtype: The new dtype of floating-point tensors; None: unchanged.

        Returns:
            New tables.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.tables.to(dtype=torch.float64).dtype
            torch.float64
        """
        return convert(self, device, dtype)

    def detach(self) -> Tables:
        """Return the same numbers without their autograd history.

        Returns:
            Tables that require no gradient.

        Example:
            >>> import numpy as np
            >>> model = vlhmm.scalar_hmm(vlhmm.Blocks(np.zeros(3, np.int64), 1), states_per_block=2)
            >>> tables = model.tables()
            >>> tables.log_start.requires_grad, tables.detach().log_start.requires_grad
            (True, False)
        """
        return mapped(self, Tensor.detach)


@dataclass(frozen=True)
class Belief:
    """p(z_t | x_<=t) over the K states that can emit the last token x_t: all that a query needs of the text before.

    Example:
        >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
        >>> belief = hmm.filter([[0, 1]]).belief
        >>> belief.probs
        tensor([[0.7255, 0.2745]])
        >>> hmm.next_token_probs(belief)
        tensor([[0.3471, 0.3618, 0.2912]])
    """

    token: Int[Tensor, " B"]
    """The last token x_t of each sequence."""
    log_probs: Float[Tensor, "B K"]
    """log p(z_t | x_<=t); all -inf where the text before has probability zero."""

    def of(self, sequences: Int[Tensor, " R"] | list[int] | slice) -> Belief:
        """Select the belief of some sequences.

        Args:
            sequences: Numbers of sequences, or a slice of them.

        Returns:
            The belief of these sequences.

        Example:
            >>> hmm = vlhmm.HMM.from_probabilities([0.6, 0.4], [[0.7, 0.3], [0.4, 0.6]], [[0.5, 0.4, 0.1], [0.1, 0.3, 0.6]])
            >>> hmm.filter([[0, 1], [2, 2]]).belief.of([1]).probs
            tensor([[0.1243, 0.8757]])
        """
        return Belief(self.token[sequences], self.log_probs[sequences])

    @property
    def probs(self) -> Float[Tensor, "B K"]:
        """p(z_t | x_<=t)."""
        return self.log_probs.exp()
