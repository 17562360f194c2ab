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
    """Which states can emit which word: word x only the K states `states_of_group[group_of_word[x]]`."""

    group_of_word: Int[Tensor, " X"]
    states_of_group: Int[Tensor, "G K"]
    num_states: int
    partition: bool
    """Every state is in one group, and group g holds the states g K, ..., g K + K - 1."""

    @property
    def num_words(self) -> int:
        return self.group_of_word.shape[0]

    @property
    def num_groups(self) -> int:
        return self.states_of_group.shape[0]

    @property
    def states_per_word(self) -> int:
        return self.states_of_group.shape[1]

    @property
    def dense(self) -> bool:
        """All states in their order in one group: each emits every word, and one tile moves between them."""
        return self.partition and self.num_groups == 1

    def states_of(self, words: Int[Tensor, ...]) -> Int[Tensor, "... K"]:
        if self.num_groups == 1:
            return self.states_of_group[0].expand(*words.shape, -1)
        return self.states_of_group[self.group_of_word[words]]

    def blocks(self, per_state: Tensor) -> Tensor:
        """(G, K, ...) from (Z, ...), of a partition."""
        return per_state.view(self.num_groups, -1, *per_state.shape[1:])

    def rows(self, per_state: Tensor, groups: Int[Tensor, " U"]) -> Tensor:
        """per_state[states of each group]: (U, K, ...) from (Z, ...)."""
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
    """log A[z, z'] stored whole."""

    log_prob: Float[Tensor, "Z Y"]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        return self.log_prob[states]

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
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
    """log A[z, z'] = out_z . in_z' - log_normalizer_z, the normaliser over every z'."""

    out: Float[Tensor, "Z H"]
    into: Float[Tensor, "Y H"]
    log_normalizer: Float[Tensor, " Z"]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        return self.out[states] @ self.into.T - self.log_normalizer[states, None]

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
        row_term = -source.rows(self.log_normalizer, source_groups)
        if source.partition and target.partition:
            blocks = source.blocks(self.out), target.blocks(self.into)
            return factored_tiles(*blocks, row_term, source_groups, target_groups, normalised=False)
        logits = source.rows(self.out, source_groups) @ target.rows(self.into, target_groups).mT
        return logits + row_term[:, :, None]


@dataclass(frozen=True)
class BlockFactoredTransition:
    """log A[z, z'] = log p(m' | z) + out_z . in_z' - LSE over the states of block m', where m' is the block of z'.

    Exact and normalised without a sum over all pairs of states. Needs a partition.
    """

    log_block: Float[Tensor, "Z M"]
    out: Float[Tensor, "Z H"]
    into: Float[Tensor, "Y H"]

    def log_rows(self, states: Int[Tensor, " N"]) -> Float[Tensor, "N Y"]:
        logits = (self.out[states] @ self.into.T).view(states.shape[0], self.log_block.shape[1], -1)
        return (self.log_block[states][:, :, None] + logits.log_softmax(dim=2)).flatten(1)

    def log_tiles(
        self,
        source: Support,
        source_groups: Int[Tensor, " U"],
        target: Support,
        target_groups: Int[Tensor, " U"],
    ) -> Float[Tensor, "U K J"]:
        # (M, K, M'): for each tile the source block's K states against one target block.
        log_block = source.blocks(self.log_block)[source_groups, :, target_groups]
        blocks = source.blocks(self.out), target.blocks(self.into)
        return factored_tiles(*blocks, log_block, source_groups, target_groups, normalised=True)


Transition = TableTransition | SoftmaxTransition | BlockFactoredTransition


@dataclass(frozen=True)
class Tables:
    """One hidden Markov model: all that inference needs."""

    support: Support
    log_start: Float[Tensor, " Z"]
    transition: Transition
    log_emission: Float[Tensor, "rows K"]
    """log p(x | z) for the K states z that can emit x: no cell is stored that cannot be used. A row for every word."""
    reset_token: int | None = None
    """After this token the next state is drawn from the start distribution; None: states are carried over every token."""
    precision: Precision = "bf16"
    by_position: bool = False
    """`log_emission` has a row for every position of the one text that the tables were made to score, instead of every word."""

    @property
    def num_states(self) -> int:
        return self.support.num_states

    @property
    def num_words(self) -> int:
        return self.support.num_words

    def emissions_of(self, words: Int[Tensor, "B T"]) -> Float[Tensor, "B T K"]:
        """log p(x | z) over the K states of each word."""
        rows = self.log_emission.index_select(0, words.flatten())
        return rows.view(*words.shape, -1)

    @property
    def dtype(self) -> torch.dtype:
        return self.log_emission.dtype

    @property
    def device(self) -> torch.device:
        return self.log_emission.device

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Tables:
        return convert(self, device, dtype)

    def detach(self) -> Tables:
        """The same numbers, without a way back to the parameters they were made from."""
        return mapped(self, Tensor.detach)


@dataclass(frozen=True)
class Belief:
    """p(z_t | x_<=t) over the states that can emit the last token x_t: what the past says about the future."""

    token: Int[Tensor, " B"]
    log_probs: Float[Tensor, "B K"]
    """All -inf where the past has probability zero."""

    def of(self, sequences: Int[Tensor, " R"] | list[int] | slice) -> Belief:
        """That of these sequences alone."""
        return Belief(self.token[sequences], self.log_probs[sequences])

    @property
    def probs(self) -> Float[Tensor, "B K"]:
        return self.log_probs.exp()
